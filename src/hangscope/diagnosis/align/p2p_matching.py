"""Match point-to-point calls: the n-th send from A to B on a group belongs to B's n-th receive from A on it.

Sequence numbers do not help, since ranks of one group legitimately make different numbers of point-to-point calls.
Counting needs a common start. Where a ring wrapped, that is the last collective that both ranks finished and still
have; without one, only the unfinished calls are compared, and the answer says so.
"""

from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.align.column_tools import Ints
from hangscope.diagnosis.align.side_by_side import Alignment
from hangscope.diagnosis.waits.progress import Place, Progress, Scope, Unit
from hangscope.model import UNKNOWN, Kind, State


@dataclass(frozen=True, slots=True)
class Counterpart:
    """What the other side of one send or receive is doing about it.

    `common_start`: whether both sides could be counted from the same point.
    """

    peer: int
    place: Place
    row: int | None = None
    common_start: bool = True


def counterparts(unit: Unit, progress: Progress) -> list[tuple[int, Counterpart]]:
    """For every send and receive inside `unit` (by row): its counterpart. A receive from any source has none."""
    rows = list(unit.rows)
    kinds, *ends = (progress.job.ops.column(c)[rows].tolist() for c in ("kind", "destination", "source"))
    sides = {Kind.SEND.value: ends[0], Kind.RECV.value: ends[1]}
    peers = {row: sides[kind][i] for i, (row, kind) in enumerate(zip(rows, kinds, strict=True)) if kind in sides}
    return [(row, counterpart_of(row, unit.rank, peer, progress)) for row, peer in peers.items() if peer != UNKNOWN]


def counterpart_of(row: int, rank: int, peer: int, progress: Progress) -> Counterpart:
    """The other side of one send or receive, finished or not."""
    other = progress.of.get(peer)
    if other is None or other.source != "dump" or other.scope is Scope.CUT:
        return Counterpart(peer, Place.NOT_KNOWN, common_start=False)
    ops, alignment = progress.job.ops, progress.alignment
    state, group = ops.column("state"), int(ops.column("group")[row])
    ends = (rank, peer) if ops.column("kind")[row] == Kind.SEND else (peer, rank)
    mine, theirs = (alignment.transfers.of(owner, *ends, group) for owner in (rank, peer))
    start = _common_start(alignment, rank, peer, before=row)
    counted = start is not None
    if start is not None:
        mine, theirs = mine[mine > start[0]], theirs[theirs > start[1]]
    else:
        mine, theirs = (rows[state[rows] != State.COMPLETED] for rows in (mine, theirs))
    ordinal = int(np.searchsorted(mine, row))
    if ordinal >= len(theirs):
        missing = Place.NOT_LAUNCHED if other.scope is Scope.WHOLE else Place.NOT_KNOWN
        return Counterpart(peer, missing, common_start=counted)
    match = int(theirs[ordinal])
    if alignment.unlaunched[match]:
        return Counterpart(peer, Place.NOT_LAUNCHED, common_start=counted)
    if state[match] == State.COMPLETED:
        return Counterpart(peer, Place.COMPLETED, match, counted)
    inside = any(match in u.rows for u in other.inside)
    return Counterpart(peer, Place.INSIDE if inside else Place.QUEUED, match, counted)


def transfers(alignment: Alignment, owner: int, row: int) -> Ints:
    """`owner`'s rows of the transfers that `row` is one of: same sender, same receiver, same group."""
    operation = alignment.job.ops[row]
    if operation.source is None or operation.destination is None:
        return np.empty(0, dtype=np.int64)
    return alignment.transfers.of(owner, operation.source, operation.destination, operation.group.index)


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
