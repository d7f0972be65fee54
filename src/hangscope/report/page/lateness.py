"""For a slow job: how long every rank worked and how long it waited for others, and how late those at fault come."""

from __future__ import annotations

from typing import Any

import numpy as np

from hangscope.diagnosis.verdict import CauseKind, Diagnosis
from hangscope.model import Job, Kind, State
from hangscope.report.page.page_text import SHORT, shown
from hangscope.report.spans import Floats, Ints, Spans, paired
from hangscope.text import plural

_BARS = 32
_WIDE = 420


def lateness(diagnosis: Diagnosis, job: Job, spans: Spans) -> dict[str, Any] | None:
    """One bar a rank, the latest first; None where nobody keeps the others waiting."""
    if diagnosis.kind != CauseKind.SLOW and not diagnosis.lateness:
        return None
    if not diagnosis.lateness:
        return None
    waited, window, by = _waited(job, spans)
    late = {item.rank: item for item in diagnosis.lateness}
    own = {rank: max(1 - waited.get(rank, 0.0) / window, 0.0) if window > 0 else None for rank in job.ranks}
    share = {item.rank: item.share_of_step for item in diagnosis.lateness}
    order = sorted(job.ranks, key=lambda rank: (-share.get(rank, 0.0), -(own[rank] or 0.0), rank))
    accused = {culprit.rank for culprit in diagnosis.culprits}
    bars = []
    for rank in order[:_BARS]:
        item = late.get(rank)
        part = own[rank] if rank in waited else None
        said = "" if item is None else f"last in {item.times_last} of {item.operations}"
        bars.append(
            {
                "rank": rank,
                "node": shown(job.nodes.get(rank, ""), SHORT),
                "culprit": rank in accused,
                "own": None if part is None else round(part * _WIDE),
                "own_text": "not known" if part is None else f"{part:.0%}",
                "late": "" if item is None else f"{item.late_ms_median:,.1f} ms late, {said}",
            }
        )
    rest = len(order) - len(bars)
    return {"bars": bars, "wide": _WIDE, "by": by, "rest": f"and {plural(rest, 'rank')} more" if rest > 0 else ""}


def _waited(job: Job, spans: Spans) -> tuple[dict[int, float], float, str]:
    """Seconds that each rank spent in collectives waiting for the last to come, out of the recorded time.

    The last to come waits for nobody: what others spend in the same collective beyond its time is waiting.
    """
    ops = job.ops
    kind = ops.column("kind")
    good = (ops.column("state") == State.COMPLETED) & (kind == Kind.COLLECTIVE) & (ops.column("seq") >= 0) & spans.known
    duration = ops.columns["duration_ms"].astype(np.float64) / 1e3
    timed = np.isfinite(duration)
    by = "time in collectives as the GPU measured it"
    if (good & timed).any():
        good &= timed
    else:
        by = "launches on aligned clocks"
        duration = -spans.begin_ns.astype(np.float64) / 1e9
    rows = np.flatnonzero(good)
    if not len(rows):
        return {}, 0.0, by
    position = paired(ops.column("group")[rows].astype(np.int64), ops.column("seq")[rows])
    least = np.full(int(position.max()) + 1, np.inf)
    np.minimum.at(least, position, duration[rows])
    extra = duration[rows] - least[position]
    ranks, index = np.unique(ops.column("rank")[rows], return_inverse=True)
    total = np.bincount(index.reshape(-1), extra)
    window = _window(spans, rows)
    return {int(rank): float(value) for rank, value in zip(ranks.tolist(), total.tolist(), strict=True)}, window, by


def _window(spans: Spans, rows: Ints) -> float:
    ends: Floats = spans.end_ns[rows] / 1e9
    return float(ends.max() - (spans.begin_ns[rows] / 1e9).min())
