"""Who has not launched what the other members of a communicator have, by comparing their boxes.

NCCL numbers the calls of each function on a communicator, alike on all members. Operations inside one node move nothing
over the network, so that no box shows them under way; but an all_reduce that a member has not launched cannot be over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hangscope.recorder.live.boxes.live_box import LastCall, LiveComm

ALL_WAIT = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "AllToAll")
"""Functions in which every member waits for every other. The root of a broadcast may go on alone."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process's view of a communicator. `key` tells it from all others of the job."""

    key: str
    comm: LiveComm


@dataclass(frozen=True, slots=True)
class WaitsForMembers:
    """A call that a member has launched and others, known by their boxes, have not."""

    member: Member
    func: str
    seq: int
    missing: tuple[str, ...]
    """Who has not launched it."""
    since_ns: int
    """Since when neither it nor they have launched anything there."""


def waiting_members(members: Iterable[Member]) -> list[WaitsForMembers]:
    """Of all communicators, each member that has launched more than another one."""
    by_comm: dict[int, list[Member]] = {}
    for member in members:
        by_comm.setdefault(member.comm.hash, []).append(member)
    return [wait for hash_, mine in by_comm.items() if hash_ and len(mine) > 1 for wait in _of_one(mine)]


def _of_one(members: Sequence[Member]) -> list[WaitsForMembers]:
    found = []
    if len({member.comm.rank for member in members}) < len(members):
        return []  # two processes say that they are the same member: a number that was used twice
    for func in ALL_WAIT:
        reached = {member.key: member.comm.last.get(func, LastCall(-1, 0)) for member in members}
        least = min(call.seq for call in reached.values())
        missing = [member for member in members if reached[member.key].seq == least]
        last_ns = max(member.comm.launched_ns for member in missing)
        for member in members:
            mine = reached[member.key]
            if mine.seq > least:
                since_ns = max(last_ns, mine.at_ns if mine.seq == least + 1 else member.comm.created_ns)
                keys = tuple(sorted(each.key for each in missing))
                found.append(WaitsForMembers(member, func, least + 1, keys, since_ns))
    return found
