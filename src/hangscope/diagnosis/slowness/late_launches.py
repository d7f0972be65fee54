"""Which rank launches late, for recordings without durations.

From its launch to its end an operation is in flight, by the rank's own clock. Who launches last sees it end at once,
while it was in flight on the others for as long as they were in front. A CPU may well be in front of its own GPU, so
this says less than durations do: a rank is named only if nothing it launches ever stays in flight, and only for more
than the watchdog's sweep can explain, since the end is recorded when the watchdog notices it.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.clocks import met_by_all
from hangscope.diagnosis.align.column_tools import Floats

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
    ops = alignment.job.ops
    created = ops.column("created_ns")
    ranks = ops.column("rank")
    ended = np.where(ops.column("retired") == 1, ops.column("completed_ns"), -1)
    flight = np.where((created >= 0) & (ended >= 0), (ended - created) / 1e6, np.nan)
    # A pipeline's stages launch at different times by nature; nothing says here which rank they waited for.
    staged = set(np.unique(ranks[alignment.point_to_point]).tolist())
    late: dict[int, list[tuple[int, float]]] = defaultdict(list)
    waits = Counter[int]()
    joined = Counter[int]()
    # Gloo records no end. Its calls block and end when the last member comes: on one node, by one clock.
    gloo = all(dump.backend == "gloo" for dumps in alignment.job.dumps.values() for dump in dumps)
    meets = gloo and len(set(alignment.job.nodes.values())) == 1
    sweep_ms, least = (_MEETING_MS, _LEAST_MEETINGS) if meets else (_SWEEP_MS, 1)
    for lane in alignment.lanes.values():
        rows = met_by_all(alignment, lane)
        here = (np.max(created[rows], axis=1, keepdims=True) - created[rows]) / 1e6 if meets else flight[rows]
        rows, here = (found[np.all(np.isfinite(here), axis=1)] for found in (rows, here))
        members = ranks[rows[0]].tolist() if len(rows) >= least else []
        if not members or not staged.isdisjoint(members):
            continue
        last = np.argmin(here, axis=1)
        shortest = np.min(here, axis=1)
        cost = np.median(here, axis=1) - shortest
        for column, rank in enumerate(members):
            joined[rank] += len(rows)
            waits[rank] += int(np.sum(here[:, column] > shortest + sweep_ms))
        for row in np.flatnonzero(cost > sweep_ms).tolist():
            late[members[last[row]]].append((int(rows[row, last[row]]), float(cost[row])))
    result: list[LateLaunches] = []
    for rank, found in late.items():
        launched = created[[row for row, _ in found]] / 1e6
        by = np.asarray([ms for _, ms in found])
        cost_ms = _union(launched - by, launched)
        result.append(LateLaunches(rank, len(found), joined[rank], float(np.median(by)), cost_ms, waits[rank]))
    return sorted(result, key=lambda item: (-item.cost_ms, item.rank))


def _union(begin: Floats, end: Floats) -> float:
    """How much time intervals cover together: a lateness that lasts over many calls is one."""
    order = np.argsort(begin)
    begin = begin[order]
    end = end[order]
    before = np.append(begin[0], np.maximum.accumulate(end)[:-1])
    return float(np.sum(np.maximum(end - np.maximum(begin, before), 0.0)))
