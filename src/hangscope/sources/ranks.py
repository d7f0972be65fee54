"""A rank, as far as a slice has to know it that saves something of each."""

from __future__ import annotations

from typing import Protocol

from hangscope.processes.target_rights import Rights


class SeenProcess(Protocol):
    """Its process."""

    @property
    def pid(self) -> int: ...


class RankSeen(Protocol):
    """A rank that a capture samples."""

    @property
    def number(self) -> int: ...

    @property
    def process(self) -> SeenProcess: ...

    @property
    def rights(self) -> Rights:
        """With these, what it names is opened."""


class Handle(Protocol):
    """Its process, whatever takes its number later."""

    def ended(self) -> bool: ...


class EndingRank(RankSeen, Protocol):
    """A rank that may end while something is asked of it."""

    @property
    def handle(self) -> Handle: ...

    @property
    def ended(self) -> bool:
        """Whether it was seen to end."""
