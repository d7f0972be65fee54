"""Two stacks side by side: where the culprit is, where a typical victim is, and the frame where they part."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hangscope.diagnosis.verdict import Diagnosis
from hangscope.model import Frame, Job, State
from hangscope.report.page.texts import SHORT, code_line, shown, source_text
from hangscope.words import is_own_code

_FRAMES = 40

Stack = tuple[tuple[Frame, ...], str, str]
"""Frames, innermost first; what they are; where they were read."""


def stacks(diagnosis: Diagnosis, job: Job) -> dict[str, Any] | None:
    """The two columns, outermost frame first; None where no stack of anybody is known."""
    mains = _mains(job, diagnosis)
    culprit = next((c.rank for c in diagnosis.culprits if c.rank in mains), None)
    if culprit is None:
        culprit = next((c.rank for c in diagnosis.culprits if _last_call(job, c.rank)), None)
    left = _of(job, mains, culprit)
    victim = _typical(diagnosis, mains, job, left[0] if left else ())
    right = _of(job, mains, victim)
    if left is None and right is None:
        return None
    a, b = (left[0] if left else ()), (right[0] if right else ())
    shared = _shared(a, b)
    return {
        "shared": shared,
        "sides": [
            _side("culprit", culprit, left, shared),
            _side("a rank that waits" if diagnosis.culprits else "a rank", victim, right, shared),
        ],
    }


def _mains(job: Job, diagnosis: Diagnosis) -> dict[int, Stack]:
    """The newest stack of every rank's main thread."""
    found: dict[int, tuple[int, Stack]] = {}
    for stack in job.facts.stacks:
        if stack.rank is None or not stack.main or not stack.frames:
            continue
        said = "main thread"
        if stack.rank not in found or stack.sample >= found[stack.rank][0]:
            source = source_text(stack.source, diagnosis.inputs)
            found[stack.rank] = (stack.sample, (stack.frames, said, source))
    return {rank: value for rank, (_, value) in found.items()}


def _last_call(job: Job, rank: int) -> Stack | None:
    """Where no stack was taken: the frames of the rank's oldest call that has not ended, else of its last."""
    part = job.ops.span(rank)
    rows = range(part.start, part.stop)
    state, stack = job.ops.column("state"), job.ops.column("stack")
    waiting = [row for row in rows[-2000:] if state[row] in (State.SCHEDULED, State.STARTED) and stack[row]]
    ended = [row for row in rows[-2000:] if stack[row]]
    if not ended:
        return None
    row = waiting[0] if waiting else ended[-1]
    operation = job.ops[row]
    said = f"where it called {operation.title}" + ("" if waiting else ", its last operation")
    return operation.frames, shown(said), ""


def _of(job: Job, mains: dict[int, Stack], rank: int | None) -> Stack | None:
    if rank is None:
        return None
    return mains.get(rank) or _last_call(job, rank)


def _typical(diagnosis: Diagnosis, mains: dict[int, Stack], job: Job, other: tuple[Frame, ...]) -> int | None:
    """A victim that stands where most do."""
    culprits = {culprit.rank for culprit in diagnosis.culprits}
    waiting = [v.rank for v in diagnosis.victims if v.rank not in culprits and (not culprits or culprits & set(v.waits_for))]
    inside = set() if diagnosis.operation is None else set(diagnosis.operation.state_by_rank)
    waiting = [rank for rank in waiting if rank in inside] or waiting
    waiting = waiting or [v.rank for v in diagnosis.victims if v.rank not in culprits]
    waiting = waiting or [rank for rank in job.ranks if rank not in culprits]
    seen = [rank for rank in waiting[:512] if rank in mains] or [r for r in waiting[:64] if _last_call(job, r)]
    if not seen:
        return None
    frames = {rank: (_of(job, mains, rank) or ((), "", ""))[0] for rank in seen}
    usual = Counter(frames.values()).most_common(1)[0][0]
    return next(rank for rank in seen if frames[rank] == usual)


def _shared(a: tuple[Frame, ...], b: tuple[Frame, ...]) -> int:
    """How many outermost frames are the same on both sides."""
    count = 0
    for left, right in zip(reversed(a), reversed(b)):
        if left != right:
            break
        count += 1
    return count


def _side(who: str, rank: int | None, stack: Stack | None, shared: int) -> dict[str, Any]:
    if rank is None or stack is None:
        return {"who": who, "rank": rank, "said": "no stack", "source": "", "frames": [], "cut": 0}
    frames = list(reversed(stack[0]))
    parting = frames[shared] if shared < len(frames) else None
    shown_frames = []
    inner = max((i for i, frame in enumerate(frames) if is_own_code(frame.filename)), default=None)
    for number, frame in enumerate(frames[: shared + _FRAMES]):
        shown_frames.append(
            {
                "name": shown(frame.name, SHORT),
                "line": code_line(frame),
                "shared": number < shared,
                "parts": frame is parting,
                "own": is_own_code(frame.filename),
                "inner": number == inner,
            }
        )
    left = len(frames) - len(shown_frames)
    return {"who": who, "rank": rank, "said": stack[1], "source": stack[2], "frames": shown_frames[-_FRAMES:], "cut": left}
