"""The line of code at which each culprit is, as data: file, line, function, the line's text and the frames around it.

What the culprit did decides which evidence counts: the traceback of one that raised or crashed, the call of one that
called something else, else the stack of its training thread, else the call that it is in.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from hangscope.diagnosis.accusation import Accusation, Accused
from hangscope.diagnosis.align.divergence import Divergence
from hangscope.diagnosis.align.lasting_shifts import LastingMismatch, LastingShift
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.code_lines import through, user_frame
from hangscope.diagnosis.evidence.liveness import How
from hangscope.diagnosis.evidence.training_thread import inside_child
from hangscope.diagnosis.verdict import CauseKind, Place, SeenIn
from hangscope.model import FATAL_ERROR, CodeLines, Frame, Job, Operation

_AROUND = 3


class SavedCode:
    """What was saved of the ranks' source files. No file is opened by a name that evidence gives."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def line(self, rank: int, frame: Frame) -> str | None:
        """The text of a frame's line, without its indent; None where it was not saved."""
        texts = (text for number, text in self.around(rank, frame) if number == frame.line)
        return next((text.strip() for text in texts if text.strip()), None)

    def around(self, rank: int, frame: Frame) -> tuple[tuple[int, str], ...]:
        """The lines near a frame's, with their numbers; empty where the frame's own was not saved."""
        for saved in self._by_file.get(frame.filename, ()):
            if rank in saved.ranks and frame.line in saved.lines:
                near = range(frame.line - _AROUND, frame.line + _AROUND + 1)
                return tuple((number, saved.lines[number]) for number in near if number in saved.lines)
        return ()

    @cached_property
    def _by_file(self) -> dict[str, list[CodeLines]]:
        found: dict[str, list[CodeLines]] = {}
        for saved in self._job.facts.code:
            found.setdefault(saved.file, []).append(saved)
        return found


_MOST_FRAMES = 64
_MOST_WITH_FRAMES = 128
"""Culprits that get their whole stack: a thousand of them would be a verdict of many megabytes."""


def culprit_places(case: Case, chosen: Accusation[Any]) -> dict[int, Place]:
    """Rank → where it is, for those of the accused that something shows."""
    saved = SavedCode(case.job)
    found: dict[int, Place] = {}
    for accused in sorted(chosen.accused, key=lambda each: each.rank):
        place = next(_places(case, chosen, accused), None)
        if place is None or accused.rank in found:
            continue
        around = saved.around(accused.rank, place.frame)
        code = place.code or saved.line(accused.rank, place.frame)
        frames = place.frames[:_MOST_FRAMES] if len(found) < _MOST_WITH_FRAMES else ()
        found[accused.rank] = replace(place, code=code, around=around, frames=frames)
    return found


def _places(case: Case, chosen: Accusation[Any], accused: Accused) -> Iterator[Place]:
    """The best first."""
    rank = accused.rank
    yield from _raised(case, rank)
    if accused.kind is CauseKind.DEAD:
        yield from _crashed(case, rank)
        return  # a stack from before its end does not show where it ended
    if accused.kind in (CauseKind.MISMATCH, CauseKind.SHIFT):
        yield from _called(case, _differing_calls(case, chosen, rank))
    yield from _on_stack(case, rank)
    yield from _crashed(case, rank)
    yield from _called(case, _calls_it_is_in(case, rank))
    yield from _lost_a_peer(case, rank)


def _lost_a_peer(case: Case, rank: int) -> Iterator[Place]:
    """Where its call raised over what another rank did: the call that it was in."""
    for error in case.job.facts.errors:
        frames = error.frames[::-1]
        frame = user_frame(frames) if error.rank == rank and error.consequence else None
        if frame is not None:
            code = dict(zip(frames, error.code[::-1], strict=False)).get(frame)
            yield _place(frame, SeenIn.TRACEBACK, frames, code=code or None)


def _raised(case: Case, rank: int) -> Iterator[Place]:
    life = case.liveness.of(rank)
    if life.how is not How.RAISED or life.error is None:
        return
    frames = life.error.frames[::-1]
    frame = user_frame(frames)
    if frame is not None:
        code = dict(zip(frames, life.error.code[::-1], strict=False)).get(frame)
        seen_in = SeenIn.CRASH if life.error.type == FATAL_ERROR else SeenIn.TRACEBACK
        yield _place(frame, seen_in, frames, code=code or None)


def _crashed(case: Case, rank: int) -> Iterator[Place]:
    """Where faulthandler saw it when a fatal signal came."""
    for error in case.job.facts.errors:
        frames = error.frames[::-1]
        frame = user_frame(frames) if error.rank == rank and error.type == FATAL_ERROR else None
        if frame is not None:
            yield _place(frame, SeenIn.CRASH, frames)


def _on_stack(case: Case, rank: int) -> Iterator[Place]:
    where = case.stacks.where(rank)
    if where is None:
        return
    if where.stack.child:
        yield _place(where.frame, SeenIn.CHILD, inside_child(where.stack), pid=where.stack.pid)
    else:
        found = _place(where.frame, SeenIn.STACK, where.stack.frames, moves=where.moves)
        yield replace(found, through=where.through)


def _called(case: Case, calls: Iterator[Operation]) -> Iterator[Place]:
    for call in calls:
        frames = case.frames_of(call)
        frame = user_frame(frames)
        if frame is not None:
            yield _place(frame, SeenIn.CALL, frames)


def _differing_calls(case: Case, chosen: Accusation[Any], rank: int) -> Iterator[Operation]:
    if isinstance(chosen.facts, Divergence | LastingShift | LastingMismatch):
        call = case.job.ops[chosen.facts.odd_row]
        if call.rank == rank:
            yield call


def _calls_it_is_in(case: Case, rank: int) -> Iterator[Operation]:
    for wait in case.waits.of.get(rank, ()):
        for unit in wait.inside:
            if unit.rank == rank and (call := case.progress.operation(unit)) is not None:
                yield call


def _place(
    frame: Frame,
    seen_in: SeenIn,
    frames: tuple[Frame, ...],
    *,
    code: str | None = None,
    pid: int | None = None,
    moves: bool = False,
) -> Place:
    inside = through(frames)
    return Place(frame.filename, frame.line, frame.name, seen_in, code, frames, pid=pid, moves=moves, through=inside)
