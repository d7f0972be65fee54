"""The stacks themselves, whole, for `-v`: those of the ranks accused first, alike ones together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hangscope.diagnosis.evidence.training_thread import thread_name
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.model import Frame, Job, ThreadStack
from hangscope.report.safe_text import safe
from hangscope.report.text_layout import Line, Piece, paragraph, wrap
from hangscope.text import plural, rank_list

_MOST_STACKS = 60
"""Different ones: of a job in which every rank is elsewhere nobody reads more. `report -o FILE.html` has all."""
_MOST_FRAMES = 100
_COLUMN = 7

Kind = tuple[str, tuple[Frame, ...]]
"""(the thread's name, its frames)."""


def whole_stacks(job: Job, verdict: Diagnosis, width: int) -> list[Line]:
    """Every thread of the ranks accused, and the main threads of the others, as they were seen last."""
    accused = {culprit.rank for culprit in verdict.culprits}
    alike: dict[Kind, list[int]] = {}
    for stack in _newest(job):
        assert stack.rank is not None
        if stack.main or stack.rank in accused:
            alike.setdefault((_title(stack), (*stack.native, *stack.frames)), []).append(stack.rank)
    ordered = sorted(alike.items(), key=lambda one: (accused.isdisjoint(one[1]), one[1], "main" not in one[0][0]))
    if not ordered:
        return []
    lines: list[Line] = [(Piece("Stacks", "label"), Piece("  innermost call first", "faint"))]
    for (thread, frames), ranks in ordered[:_MOST_STACKS]:
        lines += paragraph(f"{rank_list(sorted(set(ranks)), limit=24)}, {thread}", width, indent=2)
        lines += _frames(frames, width)
    if len(ordered) > _MOST_STACKS:
        more = plural(len(ordered) - _MOST_STACKS, "more stack")
        lines.append((Piece(f"  … {more}; the web page of `hangscope report` has them all", "faint"),))
    return lines


def _newest(job: Job) -> Iterator[ThreadStack]:
    """The last sample of each thread that belongs to a rank."""
    newest: dict[tuple[int, int | None, str], ThreadStack] = {}
    for stack in job.facts.stacks:
        if stack.rank is not None:
            key = (stack.rank, stack.pid, stack.thread)
            if key not in newest or newest[key].sample <= stack.sample:
                newest[key] = stack
    yield from newest.values()


def _title(stack: ThreadStack) -> str:
    name = "main thread" if stack.main else thread_name(stack)
    return f"{name} of a process that it started" if stack.child else name


def _frames(frames: Sequence[Frame], width: int) -> Iterator[Line]:
    for frame in frames[:_MOST_FRAMES]:
        for part in wrap(safe(f"{frame.filename}:{frame.line}  {frame.name}"), width - _COLUMN):
            yield Piece(" " * _COLUMN), Piece(part, "faint")
    if len(frames) > _MOST_FRAMES:
        yield Piece(" " * _COLUMN), Piece(f"… {plural(len(frames) - _MOST_FRAMES, 'more frame')}", "faint")
