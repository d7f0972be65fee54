"""Which groups stand side by side in the matrix, and where their frontier is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hangscope.model import Group, Job, State
from hangscope.report.spans import Ints, paired


@dataclass(slots=True)
class Block:
    """Groups without common members, side by side."""

    groups: list[Group]
    group_of: Ints
    """Per rank (by its place among the job's ranks) the group it belongs to, or -1."""
    waiting: int = 0


def arrange(job: Job, ranks: Ints, collective: Ints, hung: int | None) -> list[Block]:
    """Blocks in the order of interest: the one of the hung operation, then those with most that has not ended."""
    used = np.unique(job.ops.column("group")[collective])
    unfinished = job.ops.column("state")[collective] < State.COMPLETED
    waiting = np.bincount(job.ops.column("group")[collective][unfinished], minlength=len(job.groups))
    blocks: dict[str, list[Block]] = {}
    wanted = sorted({*used.tolist(), *([] if hung is None else [hung])})
    for index in wanted:
        group = job.groups[index]
        members = group.members
        if members is None:
            rows = collective[job.ops.column("group")[collective] == index]
            members = tuple(np.unique(job.ops.column("rank")[rows]).tolist())
        places = np.flatnonzero(np.isin(ranks, members))
        label = group.label if group.desc and group.desc != "undefined" else f"groups of {len(members)}"
        for block in blocks.setdefault(label, []):
            if not (block.group_of[places] >= 0).any():
                break
        else:
            block = Block([], np.full(len(ranks), -1, dtype=np.int64))
            blocks[label].append(block)
        block.groups.append(group)
        block.group_of[places] = index
        block.waiting += int(waiting[index])
    found = [block for alike in blocks.values() for block in alike]
    return sorted(found, key=lambda block: (all(g.index != hung for g in block.groups), -block.waiting))


def frontiers(job: Job, block: Block, rows: Ints) -> dict[int, int]:
    """For each group the first position that a member has not finished, though another has launched it."""
    ops = job.ops
    group, seq, state = ops.column("group")[rows].astype(np.int64), ops.column("seq")[rows], ops.column("state")[rows]
    found: dict[int, int] = {}
    pair = paired(group, ops.column("rank")[rows].astype(np.int64))
    if not len(rows):
        return found
    # Per rank and group: the first unfinished, else the one after its last.
    first = np.full(int(pair.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, pair, np.where(state < State.COMPLETED, seq, np.iinfo(np.int64).max))
    last = np.full(int(pair.max()) + 1, -1, dtype=np.int64)
    np.maximum.at(last, pair, seq + 1)
    first = np.minimum(first, last)
    owner = np.zeros(int(pair.max()) + 1, dtype=np.int64)
    owner[pair] = group
    for index in {g.index for g in block.groups}:
        mine = first[owner == index]
        if len(mine):
            found[index] = int(mine.min())
    return found
