"""How far the reading is, for whoever waits: in bytes of the files as they lie on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hangscope.reader.find_files import Found

Progress = Callable[[int, int, str], None]
"""`progress(done, total, file)`, in bytes: done so far, of all there are, and the file that was read."""


class Meter:
    def __init__(self, progress: Progress | None, items: Iterable[Found]) -> None:
        self._progress = progress
        self._total = sum(item.size for item in items)
        self._done = 0

    def leave_out(self, item: Found) -> None:
        """A file that is not read after all."""
        self._total -= item.size

    def finish(self, item: Found) -> None:
        self._done += item.size
        self.show(item, 0)

    def show(self, item: Found, position: int) -> None:
        """A file is read up to a place in it."""
        if self._progress is not None and self._total:
            self._progress(min(self._done + position, self._total), self._total, item.file)
