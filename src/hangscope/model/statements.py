"""What one source says about one process: the common form of rosters, nodes' files, launchers' lines and NCCL's logs.

A launcher often knows a process only by pid or local rank. Such statements are kept as they are; `join/who_is_who.py`,
which knows all files, turns them into ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from hangscope.model import UNKNOWN, Process, Source
from hangscope.model.values import line_of


class Trust(IntEnum):
    """How much a source is trusted, best first: where two disagree, the first wins and the other becomes a gap."""

    ROSTER = 0
    NODE = 1
    LAUNCHER = 2
    NETWORK = 3
    """NCCL's log and its black box."""
    RAS = 4
    PRINTED = 5
    """A verdict of ours that a log repeats."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What one source says about one process. At least one of rank, pid, local rank and task is known."""

    trust: Trust
    process: Process
    """Its rank is UNKNOWN where the source knows the process by something else."""
    task: int | None = None
    """A launcher's task number: the rank where one task is one rank."""

    @property
    def rank(self) -> int | None:
        return None if self.process.rank == UNKNOWN else self.process.rank


def by_trust(said: Statement) -> tuple[int, bool, str, int]:
    """Sorts the best first. Of equals, who saw the process alive comes first: how it ended after that says nothing
    about it."""
    source = said.process.source or Source("")
    return (said.trust, said.process.alive_at_end is not True, source.file, line_of(source))
