"""Which rank launches late, for recordings without durations.

From its launch to its end an operation is in flight, by the rank's own clock. Who launches last sees it end at once,
while it was in flight on the others for as long as they were in front. A CPU may well be in front of its own GPU, so
this says less than durations do: a rank is named only if nothing it launches ever stays in flight, and only for more
than the watchdog's sweep can explain, since the end is recorded when the watchdog notices it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.align import Alignment
from hangscope.diagnosis.clocks import met_by_all

Floats = npt.NDArray[np.float64]

_SWEEP_MS = 100.0
"""How often PyTorch's watchdog looks (torch 2.2-2.15)."""


@dataclass(frozen=True, slots=True)
class LateLaunches:
    """One rank that launches last while others have the same collective in flight."""

    rank: int
    times: int
    collectives: int
    late_ms: float
    """By how much (median)."""
    cost_ms: float
    """How long others had anything in flight that it had not launched."""
    own_waits: int
    """How often it waited itself."""


def late_launches(alignment: Alignment) -> list[LateLaunches]:
    """Per rank how often and by how much it launched last, the costliest first."""
    ops = alignment.job.ops
    created, ranks = ops.column("created_ns"), ops.column("rank")
    ended = np.where(ops.column("retired") == 1, ops.column("completed_ns"), -1)
    flight = np.where((created >= 0) & (ended >= 0), (ended - created) / 1e6, np.nan)
    # A pipeline's stages launch at different times by nature; nothing says here whom they waited for.
    staged = set(np.unique(ranks[alignment.point_to_point]).tolist())
    late: dict[int, list[tuple[int, float]]] = {}
    waits: dict[int, int] = {}
    joined: dict[int, int] = {}
    for lane in alignment.lanes.values():
        rows = met_by_all(alignment, lane)
        rows = rows[np.all(np.isfinite(flight[rows]), axis=1)]
        members = ranks[rows[0]].tolist() if len(rows) else []
        if not members or not staged.isdisjoint(members):
            continue
        here = flight[rows]
        last = np.argmin(here, axis=1)
        shortest = here[np.arange(len(rows)), last]
        cost = np.median(here, axis=1) - shortest
        for column, rank in enumerate(members):
            joined[rank] = joined.get(rank, 0) + len(rows)
            waits[rank] = waits.get(rank, 0) + int(np.sum(here[:, column] > shortest + _SWEEP_MS))
        for row in np.flatnonzero(cost > _SWEEP_MS).tolist():
            late.setdefault(members[last[row]], []).append((int(rows[row, last[row]]), float(cost[row])))
    result: list[LateLaunches] = []
    for rank, found in late.items():
        launched = created[[row for row, _ in found]] / 1e6
        by = np.asarray([ms for _, ms in found])
        result.append(
            LateLaunches(
                rank, len(found), joined[rank], float(np.median(by)), _union(launched - by, launched), waits[rank]
            )
        )
    return sorted(result, key=lambda item: (-item.cost_ms, item.rank))


def _union(begin: Floats, end: Floats) -> float:
    """How much time intervals cover together: a lateness that lasts over many calls is one."""
    order = np.argsort(begin)
    begin, end = begin[order], end[order]
    before = np.append(begin[0], np.maximum.accumulate(end)[:-1])
    return float(np.sum(np.maximum(end - np.maximum(begin, before), 0.0)))
