"""Communicator init that some ranks began and nobody completed: it waits for the members that have not come.

PyTorch makes a communicator at the first call that needs it and records the call only afterwards, so this is in no
dump. NCCL's log has a line at the start, with the rank's place and the size, and one at the end.
"""

from bisect import bisect, bisect_left
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

from hangscope.diagnosis.align.column_tools import grouped
from hangscope.diagnosis.evidence.answer import Says
from hangscope.model import Job, Source

# A communicator of two may be a single send's or receive's; `causes/mismatch/wrong_peer.py` looks at those.
_PAIR = 2


@dataclass(frozen=True, slots=True)
class CommInit:
    """One communicator whose init was begun and not completed.

    `missing` are the ranks that may be missing, each with whether it belongs there: yes or not known.
    """

    comm_id: str
    size: int
    begun: tuple[int, ...]
    missing: dict[int, Says]
    source: Source | None

    @property
    def members(self) -> tuple[int, ...] | None:
        """Who belongs to it, where that is known."""
        named = [rank for rank, belongs in self.missing.items() if belongs is Says.YES]
        return tuple(sorted({*self.begun, *named})) if len(self.begun) + len(named) == self.size else None


def comm_inits(job: Job, idle: Collection[int]) -> list[CommInit]:
    """All of a job. Only `idle` ranks, which are inside nothing that was recorded, can be missing."""
    found = []
    for comm_id, parts in grouped((part.comm_id, part) for part in job.facts.communicators).items():
        begun = {part.rank_in_comm: part.rank for part in parts if part.rank is not None and part.started}
        if parts[0].size <= _PAIR or any(part.completed for part in parts) or len(begun) == parts[0].size:
            continue
        missing = _missing(job, parts[0].size, begun, idle)
        if missing:
            ranks = tuple(sorted(begun.values()))
            found.append(CommInit(comm_id, parts[0].size, ranks, missing, parts[0].source))
    return sorted(found, key=lambda init: init.begun)


def _missing(job: Job, size: int, begun: dict[int, int], idle: Collection[int]) -> dict[int, Says]:
    """Who may be missing: PyTorch numbers the members of a group by their global ranks, in that order.

    A group of all ranks leaves no doubt. Otherwise those who fit between their neighbours: yes if just as many fit as
    are missing there.
    """
    if size == len(job.ranks):
        return {job.ranks[place]: Says.YES for place in range(size) if place not in begun}
    places = sorted(begun)
    known = set(begun.values())
    bounds = [(-1, -1), *((place, begun[place]) for place in places), (size, max(job.ranks, default=0) + 1)]
    found: dict[int, Says] = {}
    for (low_place, low), (high_place, high) in pairwise(bounds):
        gap = high_place - low_place - 1
        between = job.ranks[bisect(job.ranks, low) : bisect_left(job.ranks, high)] if gap else ()
        fitting = [rank for rank in between if rank in idle and rank not in known]
        if gap:
            found.update(dict.fromkeys(fitting, Says.YES if len(fitting) == gap else Says.NOT_KNOWN))
    return found
