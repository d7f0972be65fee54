"""The text of source lines, as it was saved with the stacks. No file is opened by a name that evidence gives."""

from __future__ import annotations

from functools import cached_property

from hangscope.model import CodeLines, Frame, Job

_AROUND = 3


class SavedCode:
    """What was saved of the ranks' source files."""

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
