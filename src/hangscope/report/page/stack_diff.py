"""Two stacks side by side: where the culprit is, where a typical victim is, and the frame where they part."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from hangscope.diagnosis.evidence.training_thread import Stacks, thread_name
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.model import Frame, Job, State
from hangscope.report.page.moments import Moments
from hangscope.report.page.page_text import SHORT, code_line, shown, source_text
from hangscope.report.rank_strip import direct
from hangscope.text import is_own_code

_FRAMES = 40

Stack = tuple[tuple[Frame, ...], str, str]
"""Frames, innermost first; what they are; where they were read."""
Pair = tuple[tuple[int | None, Stack | None], tuple[int | None, Stack | None]]
"""The culprit and the other, each with its stack."""


def stacks(diagnosis: Diagnosis, job: Job, moments: Moments) -> dict[str, Any] | None:
    """The two columns, outermost frame first; None where no stack of anybody is known, or nothing is wrong."""
    if not diagnosis.hang and not diagnosis.culprits:
        return None
    pair = _odd_pair(diagnosis, job, moments) or _where_they_are(diagnosis, job)
    (culprit, left), (victim, right) = pair
    if left is None and (right is None or not diagnosis.hang):
        return None
    both = left is not None and right is not None
    shared = _shared(left[0], right[0]) if left is not None and right is not None else 0
    same = both and left is not None and right is not None and left[0] == right[0]
    if same and not diagnosis.hang:
        return None
    said = ""
    if same:
        said = "Both are at the same place in the code."
    elif both:
        said = (
            "Grey frames are the same on both; the marked one is where they part." if shared else "No frame in common."
        )
    if culprit is None and diagnosis.culprits:
        culprit, left = diagnosis.culprits[0].rank, ((), "no stack was taken", "")
    sides = [
        _side("culprit", culprit, left, shared, both=both),
        _side("a rank that waits" if diagnosis.culprits else "a rank", victim, right, shared, both=both),
    ]
    return {"said": said, "sides": [side for side in sides if side is not None]}


def _odd_pair(diagnosis: Diagnosis, job: Job, moments: Moments) -> Pair | None:
    """For a mismatch: the call that differs, and what another member called at the same position."""
    if moments.odd is None:
        return None
    ops = job.ops
    row = moments.odd
    same = (ops.column("group") == ops.column("group")[row]) & (ops.column("seq") == ops.column("seq")[row])
    culprits = [culprit.rank for culprit in diagnosis.culprits]
    peers = [int(other) for other in np.flatnonzero(same) if int(ops.column("rank")[other]) not in culprits]
    peers = [other for other in peers if ops.column("stack")[other]]
    if not peers or not ops.column("stack")[row]:
        return None
    usual = Counter(int(ops.column("stack")[other]) for other in peers).most_common(1)[0][0]
    peer = next(other for other in peers if int(ops.column("stack")[other]) == usual)

    def side(at: int) -> tuple[int, Stack]:
        operation = ops[at]
        return operation.rank, (operation.frames, shown(f"where it called {operation.title}"), "")

    return side(row), side(peer)


def _where_they_are(diagnosis: Diagnosis, job: Job) -> Pair:
    """Where the culprit and a typical victim stand: stacks, an exception, else the frames of their calls."""
    mains = _mains(job, diagnosis)
    for error in job.facts.errors:
        if error.rank is not None and error.frames and not error.consequence and error.rank not in mains:
            said = shown(f"where it raised {error.type}")
            mains[error.rank] = (tuple(reversed(error.frames)), said, source_text(error.source, diagnosis.inputs))
    ranks = [culprit.rank for culprit in diagnosis.culprits]
    culprit = next((rank for rank in ranks if rank in mains), None)
    if culprit is None:
        culprit = next((rank for rank in ranks if _last_call(job, rank)), None)
    victim = _typical(diagnosis, mains, job)
    return (culprit, _of(job, mains, culprit)), (victim, _of(job, mains, victim))


def _mains(job: Job, diagnosis: Diagnosis) -> dict[int, Stack]:
    """The newest stack of the thread that trains, of every rank."""
    stacks = Stacks(job)
    mine = stacks.of_all(sorted({s.rank for s in job.facts.stacks if s.rank is not None}))
    return {
        rank: (stack.frames, thread_name(stack), source_text(stack.source, diagnosis.inputs))
        for rank, stack in mine.items()
        if stack.frames
    }


def _last_call(job: Job, rank: int) -> Stack | None:
    """Where no stack was taken: the frames of the rank's oldest call that has not ended, else of its last."""
    part = job.ops.span(rank)
    state, stack = job.ops.column("state")[part], job.ops.column("stack")[part]
    ended = np.flatnonzero(stack > 0)
    if not len(ended):
        return None
    waiting = ended[(state[ended] == State.SCHEDULED) | (state[ended] == State.STARTED)]
    row = part.start + int(waiting[0] if len(waiting) else ended[-1])
    operation = job.ops[row]
    said = f"where it called {operation.title}" + ("" if len(waiting) else ", its last operation")
    return operation.frames, shown(said), ""


def _of(job: Job, mains: dict[int, Stack], rank: int | None) -> Stack | None:
    if rank is None:
        return None
    return mains.get(rank) or _last_call(job, rank)


def _typical(diagnosis: Diagnosis, mains: dict[int, Stack], job: Job) -> int | None:
    """A victim that stands where most do."""
    culprits = {culprit.rank for culprit in diagnosis.culprits}
    waiting = [victim.rank for victim in direct(diagnosis) if victim.rank not in culprits]
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
    for left, right in zip(reversed(a), reversed(b), strict=False):
        if left != right:
            break
        count += 1
    return count


def _side(who: str, rank: int | None, stack: Stack | None, shared: int, *, both: bool) -> dict[str, Any] | None:
    if rank is None or stack is None:
        return None
    frames = list(reversed(stack[0]))
    inner = max((i for i, frame in enumerate(frames) if is_own_code(frame.filename)), default=None)
    shown_frames = [
        {
            "name": shown(frame.name, SHORT),
            "line": code_line(frame),
            "shared": number < shared,
            "parts": both and number == shared,
            "own": is_own_code(frame.filename),
            "inner": number == inner,
        }
        for number, frame in enumerate(frames)
    ]
    # The outermost frames say least: of an endless stack they are left out.
    return {"who": who, "rank": rank, "said": stack[1], "source": stack[2], "frames": shown_frames[-_FRAMES:]}
