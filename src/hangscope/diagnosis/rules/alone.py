"""absent and gpu without knowing the groups: the one rank that waits in nothing, or whose GPU has nothing to wait in.

Whoever is kept waiting is inside something. That needs no members: where all others are inside an operation, a rank
that has finished all that it launched is what they wait for; where all other GPUs have started what they wait in, a GPU
that has not started its oldest operation is stuck before it.
"""

from __future__ import annotations

from collections.abc import Collection

from hangscope.diagnosis.align import is_guessed
from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.rules.died import died
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.words import plural, ranks_text, sentence
from hangscope.model import State

_FEW = 8
"""One rank, or at most one in so many: more would rather mean that their dumps were taken at another time."""


def alone_among_guessed(case: Case) -> Draft | None:
    """Who was seen to end, or is alone: the first question where nothing says who is in which group (torch 2.2)."""
    if not any(is_guessed(case.groups[w.group]) for w in case.waits.all):
        return None
    return died(case) or _alone(case)


def alone(case: Case) -> Draft | None:
    """Who is alone, where an operation's place in its group, or its peer, is not known."""
    unplaced = any(not w.counterparts if w.point_to_point else w.seq is None for w in case.waits.all)
    return _alone(case) if unplaced else None


def _alone(case: Case) -> Draft | None:
    """The few ranks that wait in nothing, or whose GPU waits in nothing, while everybody else does."""
    seen = {rank: s for rank, s in case.standings.of.items() if s.source in ("dump", "poll") and s.whole}
    if len(seen) < len(case.job.ranks) or any(s.outdated for s in seen.values()):
        return None  # whose recording is missing may as well be the one
    idle = [rank for rank, standing in seen.items() if not standing.inside]
    not_started = [rank for rank, s in seen.items() if s.inside and s.inside[0].state is State.SCHEDULED]
    if idle:
        return _draft(case, idle, "absent") if _few(idle, seen) else None
    if len(not_started) > 1 and case.stuck.timeless:
        return None  # nothing says that it hangs at all, and in a job that runs some GPU is always on its way
    if not_started and all(s.timing for s in seen.values()) and _few(not_started, seen):
        return _draft(case, not_started, "gpu")
    return None


def _few(ranks: list[int], everyone: Collection[int]) -> bool:
    return len(ranks) * _FEW <= len(everyone) or (len(ranks) == 1 and len(everyone) > 2)


def _draft(case: Case, ranks: list[int], kind: str) -> Draft:
    wait = max(case.waits.all, key=lambda w: len(w.inside))
    one = len(ranks) == 1
    others = len(case.job.ranks) - len(ranks)
    if kind == "absent":
        what = f"{'is' if one else 'are'} inside nothing, while all others wait in something"
        why = "has finished everything it launched, while all others wait in something"
        shown = f"{'has' if one else 'have'} finished every operation launched there"
    else:
        what = f"launched what {'its GPU does' if one else 'their GPUs do'} not get to, while all others started theirs"
        why = "launched an operation that its GPU does not start, while all others started theirs"
        shown = "launched an operation that the GPU has not started"
    last = case.last_operation(ranks[0])
    title = f"{last.title}" if last is not None else "an operation"
    frames = case.user_frames(last.frames) if last is not None else ()
    line = f" after {frames[0].split('  ')[0]}" if frames else ""
    return Draft(
        kind=kind,
        headline=f"{ranks_text(ranks)} {what}",
        summary=f"{sentence(case.whom(ranks))} {what}: "
        f"{plural(others, 'rank')} {'waits' if others == 1 else 'wait'}, as in {case.title(wait)}.",
        confidence="medium" if one else "low",
        rule=f"{kind}: everybody who is kept waiting is inside something; who belongs to which group is not recorded",
        culprits=dict.fromkeys(ranks, why),
        wait=wait,
        why=[
            Finding(f"{ranks_text(ranks)} {shown}; the last is {title}", case.source(ranks[0], last), frames),
            Finding(
                f"the other {plural(others, 'rank')} {'is' if others == 1 else 'are'} inside unfinished operations"
            ),
        ],
        next_steps=[
            f"code: see what {ranks_text(ranks)} {'does' if one else 'do'}{line} (data loading, checkpoint, a branch)"
            if kind == "absent"
            else f"node: check the GPU of {ranks_text(ranks)}: nvidia-smi -q, dmesg | grep -i xid",
        ],
        victims_of=set(ranks),
    )
