"""Two stacks side by side: where the culprit is, where a typical victim is, and the frame where they part."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.evidence.code_lines import user_frame
from hangscope.diagnosis.evidence.training_thread import Stacks, thread_name
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.model import Frame, Job, Operation, State
from hangscope.report.page.moments import Moments
from hangscope.report.page.page_text import SHORT, code_line, shown
from hangscope.report.verdict_text import direct, source_text
from hangscope.text import is_own_code

_FRAMES = 40
_STACKS_COMPARED = 512
_CALLS_COMPARED = 64
"""Of so many ranks that wait, the place where most of them are is the typical one."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Frames, innermost first; what they are; where they were read."""

    frames: tuple[Frame, ...]
    said: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Side:
    """One rank, with its stack where one is known."""

    rank: int | None
    stack: Stack | None


def stacks(diagnosis: Diagnosis, alignment: Alignment, moments: Moments) -> dict[str, Any] | None:
    """The two columns, outermost frame first; None where no stack of anybody is known, or nothing is wrong."""
    if not diagnosis.hang and not diagnosis.culprits:
        return None
    culprit, other = _two_calls(diagnosis, alignment, moments) or _where_they_are(diagnosis, alignment.job)
    if culprit.stack is None and (other.stack is None or not diagnosis.hang):
        return None
    shared = 0
    said = ""
    if culprit.stack is not None and other.stack is not None:
        same = culprit.stack.frames == other.stack.frames
        if same and not diagnosis.hang:
            return None
        shared = _shared(culprit.stack.frames, other.stack.frames)
        said = _comparison(shared, same=same)
    sides = _drawn_sides(diagnosis, culprit, other, shared, both=bool(said))
    return {"said": said, "sides": sides}


def _drawn_sides(diagnosis: Diagnosis, culprit: Side, other: Side, shared: int, *, both: bool) -> list[dict[str, Any]]:
    if culprit.rank is None and diagnosis.culprits:
        culprit = Side(diagnosis.culprits[0].rank, Stack((), "no stack was taken"))
    sides = (
        _drawn("culprit", culprit, shared, both=both),
        _drawn("a rank that waits" if diagnosis.culprits else "a rank", other, shared, both=both),
    )
    return [side for side in sides if side is not None]


def _comparison(shared: int, *, same: bool) -> str:
    if same:
        return "Both are at the same place in the code."
    if shared:
        if shared == 1:
            return "The outermost frame is the same on both; below it they diverge."
        return f"The {shared} outermost frames are the same on both; below them they diverge."
    return "No frame in common."


def _two_calls(diagnosis: Diagnosis, alignment: Alignment, moments: Moments) -> tuple[Side, Side] | None:
    """For a mismatch: the call that differs, and what another member called at the same position."""
    if moments.odd is None:
        return None
    ops = alignment.job.ops
    odd = ops[moments.odd]
    accused = {culprit.rank for culprit in diagnosis.culprits}
    others = [ops[row] for row in alignment.index.rows_at([odd.group.index], odd.seq).tolist()]
    peers = [other for other in others if other.rank not in accused and other.frames]
    if not peers or not odd.frames:
        return None
    usual = Counter(peer.frames for peer in peers).most_common(1)[0][0]
    peer = next(peer for peer in peers if peer.frames == usual)
    return _call_side(odd), _call_side(peer)


def _call_side(operation: Operation) -> Side:
    return Side(operation.rank, Stack(operation.frames, shown(f"where it called {operation.title}")))


def _where_they_are(diagnosis: Diagnosis, job: Job) -> tuple[Side, Side]:
    """Where the culprit and a typical victim are: stacks, an exception, else the frames of their calls."""
    known = _mains(job, diagnosis)
    for error in job.facts.errors:
        if error.rank is not None and error.frames and not error.consequence and error.rank not in known:
            source = shown(source_text(error.source, diagnosis.inputs))
            known[error.rank] = Stack(tuple(reversed(error.frames)), shown(f"where it raised {error.type}"), source)
    ranks = [culprit.rank for culprit in diagnosis.culprits]
    culprit = next((rank for rank in ranks if rank in known), None)
    if culprit is None:
        culprit = next((rank for rank in ranks if _last_call(job, rank)), None)
    victim = _typical(diagnosis, known, job)
    return Side(culprit, _of(job, known, culprit)), Side(victim, _of(job, known, victim))


def _mains(job: Job, diagnosis: Diagnosis) -> dict[int, Stack]:
    """The newest stack of the thread that trains, of every rank."""
    mine = Stacks(job).of_all(sorted({s.rank for s in job.facts.stacks if s.rank is not None}))
    return {
        rank: Stack(stack.frames, thread_name(stack), shown(source_text(stack.source, diagnosis.inputs)))
        for rank, stack in mine.items()
        if stack.frames
    }


def _last_call(job: Job, rank: int) -> Stack | None:
    """Where no stack was taken: the frames of the rank's oldest call that has not ended, else of its last."""
    part = job.ops.span(rank)
    state = job.ops.column("state")[part]
    with_frames = np.flatnonzero(job.ops.column("stack")[part] > 0)
    if not len(with_frames):
        return None
    waiting = with_frames[(state[with_frames] == State.SCHEDULED) | (state[with_frames] == State.STARTED)]
    operation = job.ops[part.start + int(waiting[0] if len(waiting) else with_frames[-1])]
    said = f"where it called {operation.title}" + ("" if len(waiting) else ", its last operation")
    return Stack(operation.frames, shown(said))


def _of(job: Job, known: dict[int, Stack], rank: int | None) -> Stack | None:
    if rank is None:
        return None
    return known.get(rank) or _last_call(job, rank)


def _typical(diagnosis: Diagnosis, known: dict[int, Stack], job: Job) -> int | None:
    """A victim that is where most are."""
    waiting = _waiting(diagnosis, job)
    seen = [rank for rank in waiting[:_STACKS_COMPARED] if rank in known]
    if not seen:
        seen = [rank for rank in waiting[:_CALLS_COMPARED] if _last_call(job, rank)]
    stacks = {rank: stack for rank in seen if (stack := _of(job, known, rank)) is not None}
    if not stacks:
        return None
    usual = Counter(stack.frames for stack in stacks.values()).most_common(1)[0][0]
    return next(rank for rank, stack in stacks.items() if stack.frames == usual)


def _waiting(diagnosis: Diagnosis, job: Job) -> list[int]:
    """Those that wait for a culprit in the hung operation; else anywhere; else anybody that waits, or that is there."""
    culprits = {culprit.rank for culprit in diagnosis.culprits}
    inside = set() if diagnosis.operation is None else set(diagnosis.operation.state_by_rank)
    next_to_it = [victim.rank for victim in direct(diagnosis) if victim.rank not in culprits]
    choices = (
        [rank for rank in next_to_it if rank in inside],
        next_to_it,
        [victim.rank for victim in diagnosis.victims if victim.rank not in culprits],
        [rank for rank in job.ranks if rank not in culprits],
    )
    return next((choice for choice in choices if choice), [])


def _shared(a: tuple[Frame, ...], b: tuple[Frame, ...]) -> int:
    """How many outermost frames are the same on both sides."""
    count = 0
    for left, right in zip(reversed(a), reversed(b), strict=False):
        if left != right:
            break
        count += 1
    return count


def _drawn(who: str, side: Side, shared: int, *, both: bool) -> dict[str, Any] | None:
    if side.rank is None or side.stack is None:
        return None
    frames = list(reversed(side.stack.frames))
    users = user_frame(side.stack.frames)
    inner = max((i for i, frame in enumerate(frames) if frame == users), default=None)
    lines = [
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
    about = {"who": who, "rank": side.rank, "said": side.stack.said, "source": side.stack.source}
    return {**about, "frames": lines[-_FRAMES:]}
