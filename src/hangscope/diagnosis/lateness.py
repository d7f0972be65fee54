"""Who keeps the others waiting, and what that costs.

Where the recorder timed operations, by the time that each rank takes for its own work (`own_time.py`); otherwise by
who launches last (`launches.py`), which is less sure. Clocks of different nodes are not compared for either.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.align import Alignment
from hangscope.diagnosis.launches import LateLaunches, late_launches
from hangscope.diagnosis.own_time import OwnTime, own_times
from hangscope.diagnosis.verdict import Lateness


@dataclass(frozen=True, slots=True)
class Tardiness:
    """The result over the recorded window."""

    ranks: tuple[Lateness, ...]
    """Slowest first; only ranks that kept others waiting."""
    window_ms: float
    timed: bool
    """Whether the recorder timed the operations."""
    own: tuple[OwnTime, ...]
    """By durations…"""
    launches: tuple[LateLaunches, ...]
    """…or, where there are none, by launches."""


def tardiness(alignment: Alignment) -> Tardiness:
    """For every rank that keeps others waiting: how often, by how much, and which share of the time that costs."""
    window_ms = _window_ms(alignment)
    timed = bool(np.any(np.isfinite(alignment.job.ops.columns["duration_ms"].astype(np.float64))))
    own = own_times(alignment) if timed else []
    launches = late_launches(alignment) if not timed and window_ms > 0 else []
    ranks = [Lateness(i.rank, i.late_ms, i.cost_ms / i.span_ms, i.late, i.stretches) for i in own] + [
        Lateness(i.rank, i.late_ms, i.cost_ms / window_ms, i.times, i.collectives) for i in launches
    ]
    ranks.sort(key=lambda item: (-item.share_of_step, item.rank))
    return Tardiness(tuple(ranks), window_ms, timed, tuple(own), tuple(launches))


def _window_ms(alignment: Alignment) -> float:
    """The recorded time of the rank with the longest recording."""
    ops = alignment.job.ops
    created = ops.column("created_ns")
    longest = 0
    for rank in alignment.job.ranks:
        mine = created[ops.span(rank)]
        mine = mine[mine >= 0]
        if len(mine):
            longest = max(longest, int(mine.max() - mine.min()))
    return longest / 1e6
