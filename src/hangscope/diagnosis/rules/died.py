"""dead or frozen, without a recording that shows who waits for it: its end or its freeze was seen."""

from __future__ import annotations

from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.words import ranks_text, sentence


def died(case: Case) -> Draft | None:
    """Ranks whose end or freeze was seen, where no recording shows an operation that waits for them."""
    seen = {
        rank: fate
        for rank in case.job.ranks
        if (fate := case.fates.of(rank)).kind in ("dead", "frozen")
        and fate.strength == "strong"
        # One that exited with status 0 did no harm, unless the others hang and it left nothing behind.
        and (not fate.clean or (case.stuck.hangs and rank not in case.job.dumps))
    }
    dead = {rank: fate for rank, fate in seen.items() if fate.kind == "dead"} or seen
    if not dead:
        return None
    names = ranks_text(dead)
    first = min(dead)
    kind = dead[first].kind
    steps = [
        f"code: {fate.error.type} at {fate.error.frames[-1].filename}:{fate.error.frames[-1].line} on rank {rank}"
        for rank, fate in dead.items()
        if fate.error is not None and fate.error.frames
    ]
    look = "find out what ended" if kind == "dead" else "look at the processes of"
    what = dead[first].why if len(dead) == 1 else "ended" if kind == "dead" else "answer nothing"
    return Draft(
        kind=kind,
        headline=f"{names} {what}",
        summary=f"{sentence(case.whom(dead))} {what}, and the job could not go on.",
        confidence="medium",
        rule=f"{kind}: it was seen; no recording shows who waited for it",
        culprits={rank: fate.why for rank, fate in dead.items()},
        why=[finding for fate in dead.values() for finding in fate.findings] or [Finding(f"{names} {what}")],
        next_steps=steps or [f"node: {look} {names}: dmesg, /proc, the scheduler's log"],
    )
