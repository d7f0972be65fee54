"""Who keeps the others waiting, and what that costs.

Where the recorder timed operations, by the time that each rank takes for its own work (`own_time.py`); otherwise by
who launches last (`late_launches.py`), which is less sure. Clocks of different nodes are not compared for either.
"""

from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.slowness.late_launches import LateLaunches, late_launches
from hangscope.diagnosis.slowness.own_time import OwnTime, own_times
from hangscope.diagnosis.verdict import Lateness


@dataclass(frozen=True, slots=True)
class Stragglers:
    """The result over the recorded window: `ranks` that kept others waiting, slowest first, by durations (`own`) or,
    where the recorder timed nothing, by launches."""

    ranks: tuple[Lateness, ...]
    window_ms: float
    own: list[OwnTime]
    launches: list[LateLaunches]


def stragglers(alignment: Alignment) -> Stragglers:
    """For every rank that keeps others waiting: how often, by how much, and which share of the time that costs."""
    ops = alignment.job.ops
    created = ops.column("created_ns")
    index = alignment.index
    first = index.smallest(np.where(created >= 0, created, np.iinfo(np.int64).max))
    window_ms = max(int((index.largest(created) - first).max(initial=0)), 0) / 1e6
    timed = bool(np.any(np.isfinite(ops.columns["duration_ms"])))
    own = own_times(alignment) if timed else []
    launches = late_launches(alignment) if not timed and window_ms > 0 else []
    ranks = [Lateness(i.rank, i.late_ms, i.cost_ms / i.span_ms, i.late, i.stretches) for i in own]
    ranks += [Lateness(i.rank, i.late_ms, i.cost_ms / window_ms, i.times, i.collectives) for i in launches]
    ranks.sort(key=lambda item: (-item.share_of_step, item.rank))
    return Stragglers(tuple(ranks), window_ms, own, launches)
