"""none and unknown: nothing is wrong, or something is and the evidence does not say what."""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.words import plural, ranks_text


def nothing(case: Case) -> Draft | None:
    """No operation is stuck and no member disagrees."""
    job = case.job
    if not len(job.ops) and not job.facts.processes and not job.facts.log_ranks:
        return None
    text = (
        f"no rank waits for another in {plural(len(job.ops), 'recorded operation')} of {plural(len(job.dumps), 'rank')}"
    )
    complete = all(r in job.dumps for r in job.ranks) and bool(
        np.any(np.isfinite(job.ops.columns["duration_ms"].astype(float)))
    )
    return Draft(
        kind="none",
        hang=False,
        headline="no hang found",
        summary=f"No hang: {text}.",
        confidence="high" if complete and len(job.ops) else "medium" if len(job.ops) else "low",
        rule="none: every recorded operation completed, or was in flight for a moment, and all members agree",
        why=[Finding(text), *([Finding(case.stuck.why)] if case.waits.all else [])],
        next_steps=[],
    )


def undetermined(case: Case) -> Draft | None:
    """Something hangs, and no rule can say why."""
    reports = [r for r in case.job.facts.watchdog if r.kind in ("timeout", "async_error")]
    inside = sorted({rank for wait in case.waits.all for rank in wait.waiters})
    wait = max(case.waits.all, key=lambda w: len(w.inside), default=None)
    what = case.title(wait) if wait else (reports[0].operation if reports and reports[0].operation else "a collective")
    steps = ["collect the dumps and logs of all ranks; `hangscope run` does it without a change to the training code"]
    if case.job.facts.recorder_off:
        steps.insert(
            0,
            "switch the flight recorder on: TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_FR_BUFFER_SIZE=2000 "
            "(entries, not bytes), TORCH_NCCL_DUMP_ON_TIMEOUT=1; `hangscope env` prints the full set",
        )
    return Draft(
        kind="unknown",
        headline=f"the job hangs in {what}; the cause is not determined",
        summary=f"The job hangs in {what}; the evidence does not name the cause.",
        confidence="low",
        rule="unknown: a hang that no rule explains",
        wait=wait,
        why=[
            Finding(
                f"rank {r.rank}: {r.operation or 'a collective'} #{r.seq} "
                f"{'timed out' if r.kind == 'timeout' else 'failed'}",
                (r.source,),
            )
            for r in reports[:3]
        ]
        or _told(case)
        or [Finding(f"{ranks_text(inside)} wait in {what}")],
        next_steps=steps,
    )


def _told(case: Case) -> list[Finding]:
    """Ranks that answered another one's signal: they say that something timed out, and where."""
    return [
        Finding(f"rank {r.rank} was told by rank {r.signalled_by} that a collective timed out", (r.source,))
        for r in case.job.facts.watchdog
        if r.signalled_by is not None
    ][:3]
