"""For a slow job: how long every rank worked and how long it waited for others, and how late those at fault come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hangscope.diagnosis.align.column_tools import Floats, Ints, runs
from hangscope.diagnosis.verdict import Diagnosis, Lateness
from hangscope.model import Kind, State
from hangscope.report.op_times import OpTimes
from hangscope.report.page.page_text import SHORT, shown
from hangscope.text import plural

_BARS = 32
_WIDE = 420


def lateness(diagnosis: Diagnosis, times: OpTimes) -> dict[str, Any] | None:
    """One bar a rank, the latest first; None where nobody keeps the others waiting."""
    if not diagnosis.lateness:
        return None
    waiting = _waiting(times)
    late = {item.rank: item for item in diagnosis.lateness}

    def weight(rank: int) -> tuple[float, float, int]:
        share = late[rank].share_of_step if rank in late else 0.0
        return -share, -(waiting.own_share(rank) or 0.0), rank

    order = sorted(times.job.ranks, key=weight)
    accused = {culprit.rank for culprit in diagnosis.culprits}
    bars = []
    for rank in order[:_BARS]:
        own = waiting.own_share(rank) if rank in waiting.seconds else None
        bars.append(
            {
                "rank": rank,
                "node": shown(times.job.nodes.get(rank, ""), SHORT),
                "culprit": rank in accused,
                "own": None if own is None else round(own * _WIDE),
                "own_text": "unknown" if own is None else f"{own:.0%}",
                "late": _late(late.get(rank)),
            }
        )
    rest = len(order) - len(bars)
    more = f"and {plural(rest, 'rank')} more" if rest > 0 else ""
    return {"bars": bars, "wide": _WIDE, "by": waiting.by, "rest": more}


def _late(item: Lateness | None) -> str:
    if item is None:
        return ""
    return f"{item.late_ms_median:,.1f} ms late, last in {item.times_last} of {item.operations}"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Seconds that each rank spent in collectives waiting for the last to come, out of the recorded time."""

    seconds: dict[int, float]
    window_s: float
    by: str
    """What that was measured by."""

    def own_share(self, rank: int) -> float | None:
        """The share of the time that the rank did not wait."""
        if self.window_s <= 0:
            return None
        return max(1 - self.seconds.get(rank, 0.0) / self.window_s, 0.0)


def _waiting(times: OpTimes) -> _Waiting:
    """The last to come waits for nobody: what others spend in the same collective beyond its time is waiting."""
    ops = times.job.ops
    ended = (ops.column("state") == State.COMPLETED) & (ops.column("kind") == Kind.COLLECTIVE) & times.known
    inside: Floats = ops.columns["duration_ms"].astype(np.float64) / 1e3
    by = "time in collectives as the GPU measured it"
    timed = ended & np.isfinite(inside)
    if not timed.any():
        by = "launches on aligned clocks"
        timed = ended
        inside = -times.begin_ns.astype(np.float64) / 1e9
    rows = times.alignment.collectives
    rows = rows[timed[rows]]
    if not len(rows):
        return _Waiting({}, 0.0, by)
    starts = runs(ops.column("group")[rows], ops.column("seq")[rows])
    least = np.repeat(np.minimum.reduceat(inside[rows], starts[:-1]), np.diff(starts))
    ranks, of_rank = np.unique(ops.column("rank")[rows], return_inverse=True)
    total = np.bincount(of_rank.reshape(-1), inside[rows] - least)
    return _Waiting(dict(zip(ranks.tolist(), total.tolist(), strict=True)), _window_s(times, rows), by)


def _window_s(times: OpTimes, rows: Ints) -> float:
    ends: Floats = times.end_ns[rows] / 1e9
    return float(ends.max() - (times.begin_ns[rows] / 1e9).min())
