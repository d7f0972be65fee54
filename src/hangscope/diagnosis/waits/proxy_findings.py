"""What black boxes can show of a hang: the link, GPU or rank that all transfers wait for, or that nobody can say."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hangscope.diagnosis.evidence.answer import Says


@dataclass(frozen=True, slots=True)
class NcclOperation:
    """An operation by what all its members call alike. `seq` counts per function; None for point-to-point."""

    comm: str
    func: str
    seq: int | None


@dataclass(frozen=True, slots=True)
class BoxWait:
    """What a rank's oldest transfer that waits belongs to, and the ranks that its transfers wait for."""

    peers: tuple[int, ...]
    operation: NcclOperation


class Undelivered(Enum):
    """How a transfer does not arrive."""

    SENT = "the sender waits for the network"
    LEFT = "the sender counts the data as delivered"
    CREDIT = "the receiver's word that it is ready did not come back"


@dataclass(frozen=True, slots=True)
class StuckLink:
    """Nothing moves from `sender` to `receiver`, and both would have it move.

    `both_ran`: did both processes run when the boxes were taken?
    """

    sender: int
    receiver: int
    channels: tuple[int, ...]
    step: int
    steps: int
    operation: NcclOperation
    how: Undelivered
    since_ns: int
    both_ran: Says


@dataclass(frozen=True, slots=True)
class StuckGpu:
    """`rank` has launched, has data and room, and its GPU does not get on."""

    rank: int
    operation: NcclOperation
    waiting: tuple[int, ...]
    since_ns: int


@dataclass(frozen=True, slots=True)
class AbsentRank:
    """`rank` has not launched what the others wait in, and waits in nothing that the black box can see."""

    rank: int
    operation: NcclOperation
    last_seq: int | None
    waiting: tuple[int, ...]
    replayed: bool = False
    """It is an operation of a CUDA graph, which has no number of its own."""


@dataclass(frozen=True, slots=True)
class SilentRank:
    """The process of `rank` was not scheduled any more while others ran on: it is dead or stopped."""

    rank: int
    last_seen_ns: int
    waiting: tuple[int, ...]


Candidate = StuckLink | StuckGpu | AbsentRank | SilentRank


@dataclass(frozen=True, slots=True)
class NotKnown:
    why: str
    candidates: tuple[Candidate, ...] = ()


Root = Candidate | NotKnown


def in_short(found: Root) -> str:
    """For tables and tests: ``link 2>3``, ``gpu 1``, ``absent 0``, ``silent 3``, ``unknown: …``."""
    if isinstance(found, StuckLink):
        return f"link {found.sender}>{found.receiver}"
    if isinstance(found, NotKnown):
        also = ", ".join(in_short(one) for one in found.candidates)
        return f"unknown: {found.why}{f' ({also})' if also else ''}"
    word = {StuckGpu: "gpu", AbsentRank: "absent", SilentRank: "silent"}[type(found)]
    return f"{word} {found.rank}"
