"""Communicators that some ranks began to make and nobody completed: they wait for the members that have not come.

PyTorch makes a communicator at the first call that needs it and records the call only afterwards, so this is in no
dump. NCCL's log has a line at the start, with the rank's place and the size, and one at the end.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

from hangscope.model import Communicator, Job, Source

_PAIR = 2
"""A communicator of two may be a single send's or receive's; `rules/peers.py` looks at those."""


@dataclass(frozen=True, slots=True)
class Joining:
    """One communicator in the making."""

    comm_id: str
    size: int
    begun: tuple[int, ...]
    """The ranks that began to make it."""
    missing: dict[int, bool]
    """The ranks that may be missing, each with whether that is certain."""
    source: Source | None

    @property
    def members(self) -> tuple[int, ...] | None:
        """Who belongs to it, where that is known."""
        sure = [rank for rank, certain in self.missing.items() if certain]
        return tuple(sorted({*self.begun, *sure})) if len(self.begun) + len(sure) == self.size else None


def joinings(job: Job, idle: Collection[int]) -> list[Joining]:
    """All of a job. Only `idle` ranks, which are inside nothing that was recorded, can be missing."""
    by_id: dict[str, list[Communicator]] = {}
    for part in job.facts.communicators:
        by_id.setdefault(part.comm_id, []).append(part)
    found = []
    for comm_id, parts in by_id.items():
        begun = {part.rank_in_comm: part.rank for part in parts if part.rank is not None and part.started}
        if parts[0].size <= _PAIR or any(part.completed for part in parts) or len(begun) == parts[0].size:
            continue
        missing = _missing(job, parts[0].size, begun, idle)
        if missing:
            ranks = tuple(sorted(begun.values()))
            found.append(Joining(comm_id, parts[0].size, ranks, missing, parts[0].source))
    return sorted(found, key=lambda joining: joining.begun)


def _missing(job: Job, size: int, begun: dict[int, int], idle: Collection[int]) -> dict[int, bool]:
    """Who may be missing: PyTorch numbers the members of a group by their global ranks, in that order.

    A group of all ranks has no doubt. Otherwise those who fit between their neighbours; certain if just as many fit as
    are missing there.
    """
    if size == len(job.ranks):
        return {job.ranks[place]: True for place in range(size) if place not in begun}
    places = sorted(begun)
    bounds = [(-1, -1), *((place, begun[place]) for place in places), (size, max(job.ranks, default=0) + 1)]
    found: dict[int, bool] = {}
    for (low_place, low), (high_place, high) in pairwise(bounds):
        gap = high_place - low_place - 1
        fitting = [rank for rank in job.ranks if low < rank < high and rank in idle and rank not in begun.values()]
        if gap:
            found.update(dict.fromkeys(fitting, len(fitting) == gap))
    return found
