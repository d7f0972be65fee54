"""Who has not launched what other members of a communicator have, by the numbers in their black boxes.

For operations inside one node, of which no transfer can be seen: an all_reduce that a member has not launched cannot be
over. A rank that has launched less than others somewhere, and nowhere more than anybody, is what they wait for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hangscope.diagnosis.align.column_tools import grouped
from hangscope.diagnosis.waits.proxy_findings import NcclOperation
from hangscope.model import BlackBox, BlackBoxComm

ALL_WAIT = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "AllToAll")
"""Functions in which every member waits for every other. The root of a broadcast may go on alone."""
STILL_NS = 2_000_000_000
"""What was launched less than this before the box was read may be on its way."""


@dataclass(frozen=True, slots=True)
class BehindInLaunches:
    """`ranks` have not launched `operation`, which `waiting` have; `last` is the number of their last one, -1 none."""

    ranks: tuple[int, ...]
    operation: NcclOperation
    last: int
    waiting: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Behind:
    func: str
    least: int
    ranks: frozenset[int]
    ahead: frozenset[int]


def behind_in_launches(boxes: Sequence[BlackBox]) -> BehindInLaunches | None:
    """The ranks that all others of a communicator wait for in the end; None where nobody is, or it is not one side."""
    by_rank = {box.rank: box for box in boxes if box.rank is not None}
    members = grouped((comm.hash, (rank, comm)) for rank, box in by_rank.items() for comm in box.comms if comm.live)
    found = {hash_: gap for hash_, mine in members.items() if (gap := _gap(dict(mine), by_rank)) is not None}
    waits = {rank for gap in found.values() for rank in gap.ahead}
    roots = {hash_: gap for hash_, gap in found.items() if not gap.ranks & waits}
    if not roots:
        return None
    # The communicator that most wait in; which of several does not change who is waited for.
    hash_, gap = max(roots.items(), key=lambda item: (len(item[1].ahead), item[0]))
    if any(other.ranks != gap.ranks for other in roots.values()):
        return None
    operation = NcclOperation(hash_, gap.func, gap.least + 1)
    return BehindInLaunches(tuple(sorted(gap.ranks)), operation, gap.least, tuple(sorted(gap.ahead)))


def _gap(members: Mapping[int, BlackBoxComm], boxes: Mapping[int, BlackBox]) -> _Behind | None:
    """Who is behind on one communicator: fewer than those who are not, and nobody has launched anything lately."""
    if len(members) < 2 or len({comm.rank for comm in members.values()}) < len(members):
        return None
    if not all(_is_still(boxes[rank], comm) for rank, comm in members.items()):
        return None
    for func in ALL_WAIT:
        reached = {rank: comm.last[func][0] if func in comm.last else -1 for rank, comm in members.items()}
        least = min(reached.values())
        behind = frozenset(rank for rank, seq in reached.items() if seq == least)
        ahead = frozenset(rank for rank, seq in reached.items() if seq > least)
        if ahead and len(behind) < len(ahead):
            return _Behind(func, least, behind, ahead)
    return None


def _is_still(box: BlackBox, comm: BlackBoxComm) -> bool:
    if box.dropped or box.read_ns is None:
        return False
    newest = max((at_ns for _, at_ns in comm.last.values()), default=comm.created_ns)
    return box.read_ns - newest >= STILL_NS
