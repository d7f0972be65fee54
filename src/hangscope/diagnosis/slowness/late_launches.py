"""Which rank launches late, for recordings without durations.

From its launch to its end an operation is in flight, by the rank's own clock. Who launches last sees it end at once,
while it was in flight on the others for as long as they were in front. A CPU may well be in front of its own GPU, so
this says less than durations do: a rank is named only if nothing it launches ever stays in flight, and only for more
than the watchdog's sweep can explain, since the end is recorded when the watchdog notices it.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.clocks import met_by_all
from hangscope.diagnosis.align.column_tools import Floats, Ints
from hangscope.model import UNKNOWN, Job, Operations

# How often PyTorch's watchdog looks (torch 2.2-2.15).
_SWEEP_MS = 100.0
# Launches of one clock need no sweep: this is what a scheduler may add.
_MEETING_MS = 5.0
# By chance alone somebody is last most times in a few.
_LEAST_MEETINGS = 12


@dataclass(frozen=True, slots=True)
class LateLaunches:
    """One rank that launches last while others have the same collective in flight: how often, and by how much (median).

    `cost_ms`: how long others had anything in flight that it had not launched. `own_waits`: how often it waited itself.
    """

    rank: int
    times: int
    collectives: int
    late_ms: float
    cost_ms: float
    own_waits: int


def late_launches(alignment: Alignment) -> list[LateLaunches]:
    """Per rank how often and by how much it launched last, the costliest first."""
    created = alignment.job.ops.column("created_ns")
    ranks = alignment.job.ops.column("rank")
    # A pipeline's stages launch at different times by nature; nothing says here which rank they waited for.
    staged = set(np.unique(ranks[alignment.point_to_point]).tolist())
    by_clock = _on_one_clock(alignment.job)
    least_ms = _MEETING_MS if by_clock else _SWEEP_MS
    flight = _in_flight_ms(alignment.job.ops)
    late: dict[int, list[_Late]] = defaultdict(list)
    waits = Counter[int]()
    joined = Counter[int]()
    for lane in alignment.lanes.values():
        rows = met_by_all(alignment, lane)
        here = (np.max(created[rows], axis=1, keepdims=True) - created[rows]) / 1e6 if by_clock else flight[rows]
        known = np.all(np.isfinite(here), axis=1)
        rows = rows[known]
        here = here[known]
        members = ranks[rows[0]].tolist() if len(rows) >= (_LEAST_MEETINGS if by_clock else 1) else []
        if not members or not staged.isdisjoint(members):
            continue
        last = np.argmin(here, axis=1)
        shortest = np.min(here, axis=1)
        cost = np.median(here, axis=1) - shortest
        for column, rank in enumerate(members):
            joined[rank] += len(rows)
            waits[rank] += int(np.sum(here[:, column] > shortest + least_ms))
        for row in np.flatnonzero(cost > least_ms).tolist():
            late[members[last[row]]].append(_Late(int(rows[row, last[row]]), float(cost[row])))
    result = [_summed(created, rank, found, joined[rank], waits[rank]) for rank, found in late.items()]
    return sorted(result, key=lambda item: (-item.cost_ms, item.rank))


class _Late(NamedTuple):
    """One launch that others waited for, and how long."""

    row: int
    by_ms: float


def _on_one_clock(job: Job) -> bool:
    """Gloo records no end. Its calls block and end when the last member comes: on one node, by one clock."""
    gloo = all(dump.backend == "gloo" for dumps in job.dumps.values() for dump in dumps)
    return gloo and len(set(job.nodes.values())) == 1


def _in_flight_ms(ops: Operations) -> Floats:
    """From each launch to its end, where the watchdog saw that."""
    created = ops.column("created_ns")
    ended = np.where(ops.column("retired") == 1, ops.column("completed_ns"), UNKNOWN)
    return np.where((created >= 0) & (ended >= 0), (ended - created) / 1e6, np.nan)


def _summed(created: Ints, rank: int, found: list[_Late], joined: int, waits: int) -> LateLaunches:
    launched = created[[late.row for late in found]] / 1e6
    by = np.asarray([late.by_ms for late in found])
    cost_ms = _union(launched - by, launched)
    return LateLaunches(rank, len(found), joined, float(np.median(by)), cost_ms, waits)


def _union(begin: Floats, end: Floats) -> float:
    """How much time intervals cover together: a lateness that lasts over many calls is one."""
    order = np.argsort(begin)
    begin = begin[order]
    end = end[order]
    before = np.append(begin[0], np.maximum.accumulate(end)[:-1])
    return float(np.sum(np.maximum(end - np.maximum(begin, before), 0.0)))
