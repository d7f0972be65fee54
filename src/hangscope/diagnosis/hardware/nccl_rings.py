"""Which rank sends to which, by NCCL's log: rings, trees, and the connections themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hangscope.model import Communicator, Group, Job


class Way(NamedTuple):
    """One connection; `channel` is None where it does not matter or is not known."""

    sender: int
    receiver: int
    channel: int | None = None


def ways_in(job: Job, group: Group, stuck: set[int], finished: set[int], *, trees: bool) -> tuple[list[Way], list[Way]]:
    """The connections on which a rank that finished sends to one that is stuck, one a channel: (rings, trees).

    Data flows along the ring, so the first stuck rank behind a finished one is where bytes stop arriving. Where `trees`
    may have been used too, the way down from the parent is another. Without rings in the log (they need GRAPH among its
    subsystems), every connection that was made into the stuck rank may be it.
    """
    members = group.members or ()
    parts = [part for part in job.facts.communicators if _belongs(part, members)]
    rings = _along_rings(parts, members)
    down = _down_trees(parts, members) if trees else {}
    made = () if rings else _made(parts, stuck, finished)
    return [*_single(rings, stuck, finished), *made], _single(down, stuck, finished)


_Ways = dict[int, set[Way]]
"""By channel."""


def _along_rings(parts: list[Communicator], members: tuple[int, ...]) -> _Ways:
    """To each rank from the one before it, and from it to the next one."""
    found: _Ways = {}
    for rank, part in {part.rank: part for part in parts if part.rings and part.rank is not None}.items():
        for channel, (before, after) in part.rings.items():
            ways = found.setdefault(channel, set())
            ways |= {Way(rank, member, channel) for member in _member(members, after)}
            ways |= {Way(member, rank, channel) for member in _member(members, before)}
    return found


def _down_trees(parts: list[Communicator], members: tuple[int, ...]) -> _Ways:
    """To each rank from its parent, and from it to its children."""
    found: _Ways = {}
    for rank, part in {part.rank: part for part in parts if part.trees and part.rank is not None}.items():
        for channel, (parent, children) in part.trees.items():
            ways = found.setdefault(channel, set())
            ways |= {Way(member, rank, channel) for member in _member(members, parent)}
            ways |= {Way(rank, members[child], channel) for child in children if child < len(members)}
    return found


def _member(members: tuple[int, ...], place: int) -> tuple[int, ...]:
    """The rank at a place of the communicator; none where there is no such place."""
    return members[place : place + 1] if place >= 0 else ()


def _single(ways: dict[int, set[Way]], stuck: set[int], finished: set[int]) -> list[Way]:
    """Of each channel the one way from a finished rank to a stuck one; none where there are several."""
    fitting = [
        [way for way in at if way.sender in finished and way.receiver in stuck] for _, at in sorted(ways.items())
    ]
    return [fits[0] for fits in fitting if len(fits) == 1]


def _made(parts: Iterable[Communicator], stuck: set[int], finished: set[int]) -> list[Way]:
    found = {
        Way(e.sender, e.receiver, e.channel)
        for part in parts
        for e in part.edges
        if e.sender is not None and e.receiver is not None and e.sender in finished and e.receiver in stuck
    }
    return sorted(found, key=str)


def _belongs(part: Communicator, members: tuple[int, ...]) -> bool:
    place = part.rank_in_comm
    return part.size == len(members) and part.rank is not None and members[place : place + 1] == (part.rank,)
