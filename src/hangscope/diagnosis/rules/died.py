"""dead, without anybody caught waiting: a rank ended, and the rest of the job fell with it."""

from __future__ import annotations

from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.words import ranks_text


def died(case: Case) -> Draft | None:
    """Ranks whose end was seen, where no recording shows an operation that waits for them."""
    dead = {
        rank: fate
        for rank in case.job.ranks
        if (fate := case.fates.of(rank)).kind == "dead" and fate.strength == "strong" and not fate.clean
    }
    if not dead:
        return None
    names = ranks_text(dead)
    first = min(dead)
    steps = [
        f"code: {fate.error.type} at {fate.error.frames[-1].filename}:{fate.error.frames[-1].line} on rank {rank}"
        for rank, fate in dead.items()
        if fate.error is not None and fate.error.frames
    ]
    return Draft(
        kind="dead",
        headline=f"{names} {dead[first].why}" if len(dead) == 1 else f"{names} ended",
        summary=f"{case.who(first)[0].upper()}{case.who(first)[1:]} {dead[first].why}, and the job could not go on.",
        confidence="medium",
        rule="dead: its end was seen; no recording shows who waited for it",
        culprits={rank: fate.why for rank, fate in dead.items()},
        why=[finding for fate in dead.values() for finding in fate.findings] or [Finding(f"{names} ended")],
        next_steps=steps or [f"node: find out what ended {names}: dmesg, the scheduler's log"],
    )
