"""Match point-to-point calls: the n-th send from A to B on a group belongs to B's n-th receive from A on it.

Sequence numbers do not help, since ranks of one group legitimately make different numbers of point-to-point calls.
Counting needs a common start. Where a ring wrapped, that is the last collective that both ranks finished and still
have; without one, only the unfinished calls are compared, and the answer is marked as uncertain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.align import Alignment, Ints
from hangscope.diagnosis.standing import Place, Standings, Unit
from hangscope.model import UNKNOWN, Kind, State


@dataclass(frozen=True, slots=True)
class Counterpart:
    """What the other side of one send or receive is doing about it."""

    peer: int
    place: Place
    row: int | None = None
    certain: bool = True


def counterparts(unit: Unit, standings: Standings) -> list[tuple[int, Counterpart]]:
    """For every send and receive inside `unit` (by row): its counterpart. A receive from any source has none."""
    ops = standings.job.ops
    found: list[tuple[int, Counterpart]] = []
    for row in unit.rows:
        kind = int(ops.column("kind")[row])
        if kind not in (Kind.SEND, Kind.RECV):
            continue
        sending = kind == Kind.SEND
        peer = int(ops.column("destination" if sending else "source")[row])
        if peer == UNKNOWN:
            continue
        found.append((row, _counterpart(row, unit.rank, peer, sending, standings)))
    return found


def counterpart_of(row: int, rank: int, peer: int, standings: Standings) -> Counterpart:
    """The other side of one send or receive, finished or not."""
    sending = int(standings.job.ops.column("kind")[row]) == Kind.SEND
    return _counterpart(row, rank, peer, sending, standings)


def _counterpart(row: int, rank: int, peer: int, sending: bool, standings: Standings) -> Counterpart:
    standing = standings.of.get(peer)
    if standing is None or standing.source not in ("dump",) or not standing.whole:
        return Counterpart(peer, Place.UNKNOWN, certain=False)
    alignment = standings.alignment
    mine = _calls(alignment, rank, rank, peer, sending, int(standings.job.ops.column("group")[row]))
    theirs = _calls(alignment, peer, rank, peer, sending, int(standings.job.ops.column("group")[row]))
    start_mine, start_theirs, certain = _common_start(alignment, rank, peer, before=row)
    if certain:
        ordinal = int(np.searchsorted(mine[mine > start_mine], row))
        after = theirs[theirs > start_theirs]
        match = int(after[ordinal]) if ordinal < len(after) else None
    else:
        state = standings.job.ops.column("state")
        open_mine = mine[state[mine] != State.COMPLETED]
        open_theirs = theirs[state[theirs] != State.COMPLETED]
        ordinal = int(np.searchsorted(open_mine, row))
        match = int(open_theirs[ordinal]) if ordinal < len(open_theirs) else None
    if match is None:
        return Counterpart(peer, Place.UNKNOWN if standing.outdated else Place.NOT_LAUNCHED, certain=certain)
    if alignment.unlaunched[match]:
        return Counterpart(peer, Place.NOT_LAUNCHED, certain=certain)
    if standings.job.ops.column("state")[match] == State.COMPLETED:
        return Counterpart(peer, Place.COMPLETED, match, certain)
    inside = any(match in u.rows for u in standing.inside)
    return Counterpart(peer, Place.INSIDE if inside else Place.QUEUED, match, certain)


def _calls(alignment: Alignment, owner: int, rank: int, peer: int, sending: bool, group: int) -> Ints:
    """`owner`'s rows that carry data between `rank` and `peer` in that direction: its sends or its receives."""
    ops = alignment.job.ops
    source, destination = (rank, peer) if sending else (peer, rank)
    part = ops.span(owner)
    wanted = Kind.SEND if owner == source else Kind.RECV
    hits = (
        (ops.column("kind")[part] == wanted)
        & (ops.column("source")[part] == source)
        & (ops.column("destination")[part] == destination)
        & (ops.column("group")[part] == group)
    )
    rows: Ints = np.flatnonzero(hits) + int(part.start)
    return rows


def transfers(alignment: Alignment, owner: int, row: int) -> Ints:
    """`owner`'s rows of the transfers that `row` is one of: same sender, same receiver, same group."""
    operation = alignment.job.ops[row]
    if operation.source is None or operation.destination is None:
        return np.empty(0, dtype=np.int64)
    return _calls(alignment, owner, operation.source, operation.destination, True, operation.group.index)


def _common_start(alignment: Alignment, a: int, b: int, *, before: int) -> tuple[int, int, bool]:
    """A row on each rank (on `a` one before `before`) from which both count alike, and whether that is certain."""
    job = alignment.job
    if not job.wrapped(a) and not job.wrapped(b):
        return UNKNOWN, UNKNOWN, True
    ops = job.ops
    best: tuple[int, int] | None = None
    for lane in alignment.lanes.values():
        members = lane.group.members or ()
        if a not in members or b not in members:
            continue
        ranks, state, seq = ops.column("rank")[lane.rows], ops.column("state")[lane.rows], ops.column("seq")[lane.rows]
        done = state == State.COMPLETED
        common = np.intersect1d(seq[done & (ranks == a)], seq[done & (ranks == b)])
        if not len(common):
            continue
        rows_a = lane.rows[(ranks == a) & np.isin(seq, common)]
        earlier = np.flatnonzero(rows_a < before)
        if not len(earlier):
            continue
        row_a = int(rows_a[earlier[-1]])
        row_b = int(lane.rows[(ranks == b) & (seq == ops.column("seq")[row_a])][0])
        if best is None or row_a > best[0]:
            best = (row_a, row_b)
    return (*best, True) if best else (UNKNOWN, UNKNOWN, False)
