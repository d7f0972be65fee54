"""What evidence can be fetched from: something that lists files and then gives some of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hangscope.safeio.tar_stream import Readable


@dataclass(frozen=True, slots=True)
class Entry:
    """One file at its source. None where the source cannot say; `path` is as the source knows it."""

    path: str
    size: int | None = None
    mtime: int | None = None
    checksum: str | None = None
    found: str = "given"
    """"given" where somebody named its place, "default" where PyTorch leaves dumps, "incident" where runs are kept."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a source has. `notes` are things it saw and could not give: (what, why)."""

    entries: tuple[Entry, ...]
    notes: tuple[tuple[str, str], ...] = ()
    closed: bool = False
    """Whether the source could not be entered: then its silence says nothing of what it has."""


Sink = Callable[[Entry, Readable, int | None], None]
"""Takes one file: its entry, its bytes, and the time of its last change where that came along."""


class Unreachable(Exception):
    """The source did not answer, or not to the end. Says why, for people."""


class Deadline:
    """A moment by which something must be done."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def check(self) -> None:
        if self.left <= 0:
            raise Unreachable(f"not done within {self.seconds:g} s")


class Source(Protocol):
    """One node, directory or store."""

    @property
    def name(self) -> str:
        """The node's name, or the folder's."""

    @property
    def is_node(self) -> bool:
        """Whether everything in it belongs to the node of that name."""

    def listing(self, deadline: Deadline) -> Listing:
        """Every file that may be evidence. Raises Unreachable."""

    def fetch(self, wanted: Sequence[Entry], sink: Sink, deadline: Deadline) -> None:
        """Give the wanted files to `sink`, in any order; those that came before an error stay. Raises Unreachable."""

    def stop(self) -> None:
        """Give up whatever is under way, at once."""
