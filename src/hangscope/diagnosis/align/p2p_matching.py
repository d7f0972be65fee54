"""Match sends with receives: the n-th send from A to B on a group belongs to B's n-th receive from A on it.

Sequence numbers do not help, since ranks of one group legitimately make different numbers of point-to-point calls.
Counting needs a common start. Where a ring wrapped, that is the last collective that both ranks finished and still
have; without one, only the unfinished calls are compared, and the answer says so.
"""

from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.column_tools import Ints
from hangscope.model import UNKNOWN, Kind, State


@dataclass(frozen=True, slots=True)
class OtherSide:
    """The peer's row of one send or receive; None where it has no such call.

    `common_start`: whether both sides could be counted from the same point.
    """

    row: int | None
    common_start: bool


def other_side(alignment: Alignment, row: int, rank: int, peer: int) -> OtherSide:
    """What a rank's peer recorded of one send or receive."""
    ops = alignment.job.ops
    ends = (rank, peer) if ops.column("kind")[row] == Kind.SEND else (peer, rank)
    group = int(ops.column("group")[row])
    mine = alignment.transfers.of(rank, *ends, group)
    theirs = alignment.transfers.of(peer, *ends, group)
    start = _common_start(alignment, rank, peer, before=row)
    if start is not None:
        mine = mine[mine > start[0]]
        theirs = theirs[theirs > start[1]]
    else:
        state = ops.column("state")
        mine = mine[state[mine] != State.COMPLETED]
        theirs = theirs[state[theirs] != State.COMPLETED]
    ordinal = int(np.searchsorted(mine, row))
    return OtherSide(int(theirs[ordinal]) if ordinal < len(theirs) else None, start is not None)


def _common_start(alignment: Alignment, a: int, b: int, *, before: int) -> tuple[int, int] | None:
    """A row on each rank (on `a` one before `before`) from which both count alike; None where there is none."""
    job = alignment.job
    if not job.wrapped(a) and not job.wrapped(b):
        return UNKNOWN, UNKNOWN
    found: list[tuple[int, int]] = []
    theirs = {lane.group.index for lane in alignment.lanes_of.get(b, ())}
    for lane in (lane for lane in alignment.lanes_of.get(a, ()) if lane.group.index in theirs):
        if (last := alignment.last_by_both(a, b, lane.group.index, before)) is not None:
            found.append(last)
    return max(found, key=lambda pair: pair[0], default=None)


def transfers(alignment: Alignment, owner: int, row: int) -> Ints:
    """`owner`'s rows of the transfers that `row` is one of: same sender, same receiver, same group."""
    operation = alignment.job.ops[row]
    if operation.source is None or operation.destination is None:
        return np.empty(0, dtype=np.int64)
    return alignment.transfers.of(owner, operation.source, operation.destination, operation.group.index)


def matched_transfers(alignment: Alignment) -> tuple[Ints, Ints]:
    """All sends that have a receive, and these receives. A ring that lost its beginning has lost count: it has none."""
    job = alignment.job
    sent: list[Ints] = [np.empty(0, dtype=np.int64)]
    received: list[Ints] = [np.empty(0, dtype=np.int64)]
    for source, destination, sends, receives in alignment.transfers.both_sides():
        if not job.wrapped(source) and not job.wrapped(destination):
            both = min(len(sends), len(receives))
            sent.append(sends[:both])
            received.append(receives[:both])
    return np.concatenate(sent), np.concatenate(received)
