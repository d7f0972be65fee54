"""Which groups are drawn beside each other in the matrix, and where their frontier is."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.column_tools import Ints
from hangscope.model import UNKNOWN, Group, State

_FAR = np.iinfo(np.int64).max


@dataclass(slots=True)
class Block:
    """Groups without common members, side by side."""

    group_of: Ints
    """Per rank (by its place among the job's ranks) the group it belongs to, or -1."""
    groups: list[Group] = field(default_factory=list)
    unfinished: int = 0
    """How many of its operations have not ended."""

    def has_room_for(self, places: Ints) -> bool:
        return not (self.group_of[places] >= 0).any()

    def holds(self, group: int | None) -> bool:
        return any(own.index == group for own in self.groups)


def arrange(alignment: Alignment, ranks: Ints, hung: int | None) -> list[Block]:
    """Blocks in the order of interest: the one of the hung operation, then those with most that has not ended."""
    job = alignment.job
    unfinished = np.bincount(job.ops.column("group")[unfinished_rows(alignment)], minlength=len(job.groups))
    blocks: dict[str, list[Block]] = {}
    for index in sorted({*alignment.lanes, *([] if hung is None else [hung])}):
        group = job.groups[index]
        members = _members(alignment, group)
        places = np.flatnonzero(np.isin(ranks, members))
        label = group.label if group.desc and group.desc != "undefined" else f"groups of {len(members)}"
        alike = blocks.setdefault(label, [])
        block = next((block for block in alike if block.has_room_for(places)), None)
        if block is None:
            block = Block(np.full(len(ranks), -1, dtype=np.int64))
            alike.append(block)
        block.groups.append(group)
        block.group_of[places] = index
        block.unfinished += int(unfinished[index])
    found = [block for alike in blocks.values() for block in alike]
    return sorted(found, key=lambda block: (not block.holds(hung), -block.unfinished))


def unfinished_rows(alignment: Alignment) -> Ints:
    """The rows of collectives that are not known to have ended."""
    rows = np.flatnonzero(alignment.job.ops.column("state") < State.COMPLETED)
    return rows[alignment.aligned[rows]]


def _members(alignment: Alignment, group: Group) -> tuple[int, ...]:
    if group.members is not None:
        return group.members
    lane = alignment.lanes.get(group.index)
    found = () if lane is None else np.unique(alignment.job.ops.column("rank")[lane.rows]).tolist()
    return tuple(found)


def last_positions(alignment: Alignment, ranks: Ints, block: Block) -> Ints:
    """Per rank the last position that it recorded in its group of the block; UNKNOWN where there is none."""
    found = np.full(len(ranks), UNKNOWN, dtype=np.int64)
    for group in block.groups:
        lane = alignment.lanes.get(group.index)
        if lane is not None:
            place = place_of(ranks, alignment.job.ops.column("rank")[lane.rows])
            found[place] = np.repeat(lane.seqs, np.diff(lane.starts))  # positions ascend: the last one stays
    return found


def frontiers(alignment: Alignment, block: Block, last: Ints) -> dict[int, int]:
    """For each group the first position that a member has not finished, though another has launched it."""
    ops = alignment.job.ops
    first = np.full(len(alignment.job.groups), _FAR)
    seen = (last != UNKNOWN) & (block.group_of >= 0)
    np.minimum.at(first, block.group_of[seen], last[seen] + 1)
    unfinished = unfinished_rows(alignment)
    np.minimum.at(first, ops.column("group")[unfinished], ops.column("seq")[unfinished])
    return {group.index: int(first[group.index]) for group in block.groups if first[group.index] < _FAR}


def place_of(ranks: Ints, rank: Ints) -> Ints:
    """The places of some ranks among all, which are sorted. Mostly they count from 0 without holes."""
    if len(ranks) and int(ranks[0]) == 0 and int(ranks[-1]) == len(ranks) - 1:
        return rank
    return np.searchsorted(ranks, rank)
