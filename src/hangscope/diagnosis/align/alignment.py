"""The recordings of all ranks side by side: the same operation on every member of its group.

Collectives are matched by group and collective sequence number, never by record id, pg id or file order. Several
entries of one rank with the same number are one coalesced call. Sends and receives are matched in `p2p_matching.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from hangscope.diagnosis.align.agreement import is_symmetric, signatures
from hangscope.diagnosis.align.batches import open_batches, point_to_point, torn_batches
from hangscope.diagnosis.align.column_tools import Bools, Ints, grouped, ids, rows_of, runs, sort_by
from hangscope.diagnosis.align.lanes import Lane, lanes_of
from hangscope.diagnosis.align.op_index import Index
from hangscope.model import UNKNOWN, Job, Kind, Operations, State

_SEND = int(Kind.SEND)
_RECV = int(Kind.RECV)
_KEYS = ("rank", "kind", "source", "destination", "group")


class Transfers:
    """Made once: thousands of ranks of a pipeline wait in sends and receives, and each asks for two lists of them."""

    def __init__(self, ops: Operations) -> None:
        kind = ops.column("kind")
        rows = np.flatnonzero((kind == _SEND) | (kind == _RECV))
        self._rows: Ints = rows[sort_by(*(ops.column(name)[rows] for name in _KEYS))]
        columns = [ops.column(name)[self._rows] for name in _KEYS]
        starts = runs(*columns)
        keys = zip(*(column[starts[:-1]].tolist() for column in columns), strict=True)
        self._places: dict[tuple[int, ...], tuple[int, int]] = dict(zip(keys, pairwise(starts.tolist()), strict=True))

    def of(self, owner: int, source: int, destination: int, group: int) -> Ints:
        """`owner`'s rows that carry data from one rank to another: its sends or its receives, as recorded."""
        return self._side(owner, _SEND if owner == source else _RECV, source, destination, group)

    def _side(self, owner: int, kind: int, source: int, destination: int, group: int) -> Ints:
        start, stop = self._places.get((owner, kind, source, destination, group), (0, 0))
        return self._rows[start:stop]

    def both_sides(self) -> Iterator[tuple[int, int, Ints, Ints]]:
        """(sender, receiver, its sends, the other's receives), for every two ranks and group whose ends are known."""
        for owner, kind, source, destination, group in self._places:
            if kind == _SEND and UNKNOWN not in (source, destination):
                sends = self._side(owner, _SEND, source, destination, group)
                yield source, destination, sends, self._side(destination, _RECV, source, destination, group)


_NEAR = 4
"""So many collectives from the end are tried one by one before all are compared."""


@dataclass(frozen=True)
class Alignment:
    """All lanes of a job, the index of its operations, and per row of these:

    `point_to_point`: a send, a receive, or the closing entry of a batch that holds some. `unlaunched`: part of a batch
    that was begun and never closed, so that nothing of it was launched. `signature`: an id of what every member must
    agree on. `call`: an id of name, sizes, types and stack, for recognising the same line of code elsewhere.
    `symmetric`: nobody finishes the operation before everybody has joined it.

    `collectives` are the rows that have a position in their group, by group, number and rank; of a coalesced call all
    of its entries.
    """

    job: Job
    index: Index
    lanes: dict[int, Lane]
    collectives: Ints
    point_to_point: Bools
    unlaunched: Bools
    signature: Ints
    call: Ints
    symmetric: Bools

    def row_of(self, rank: int, group: int, seq: int) -> int | None:
        """The representative row of one rank at one position, or None."""
        lane = self.lanes.get(group)
        index = None if lane is None else lane.index_of(seq)
        if lane is None or index is None:
            return None
        rows = lane.rows_at(index)
        span = self.job.ops.span(rank)
        place = int(np.searchsorted(rows, span.start))  # rows are in the order of ranks
        return int(rows[place]) if place < len(rows) and rows[place] < span.stop else None

    @cached_property
    def dumped_ns(self) -> dict[int, int]:
        """When each rank's dump was taken, on its own clock; UNKNOWN where it does not say.

        The recorder stamps what it had not yet noticed at the time of the dump (torch 2.3-2.15): the newest stamp of an
        entry that is not retired is when the dump was taken. Calls inside a batch are never retired, but stamped early.
        """
        ops = self.job.ops
        single = (ops.column("batch") == UNKNOWN) & ~self.point_to_point
        stamped = (ops.column("retired") == 0) & (single | (ops.column("state") == State.STARTED))
        newest = np.maximum(ops.column("started_ns"), ops.column("completed_ns"))
        return self.index.by_rank(self.index.largest(np.where(stamped, newest, UNKNOWN)))

    @cached_property
    def launched_ns(self) -> dict[int, int]:
        """When each rank last launched something, on its own clock."""
        return self.index.by_rank(self.index.largest(self.job.ops.column("created_ns")))

    @cached_property
    def aligned(self) -> Bools:
        """Per row whether it is in a lane."""
        found = np.zeros(len(self.job.ops), dtype=bool)
        for lane in self.lanes.values():
            found[lane.rows] = True
        return found

    @cached_property
    def transfers(self) -> Transfers:
        return Transfers(self.job.ops)

    @cached_property
    def lanes_of(self) -> dict[int, list[Lane]]:
        """Rank → the lanes of its groups, in their order."""
        return grouped((rank, lane) for lane in self.lanes.values() for rank in lane.group.members or ())

    # ---- what two ranks both completed -------------------------------------------------------------------------------

    def last_by_both(self, a: int, b: int, group: int, before: int) -> tuple[int, int] | None:
        """The last collective of a group that two ranks completed, `a` with a row before that one: the row of each."""
        of_a = self._completed_by(a, group)
        of_b = self._completed_by(b, group)
        seq = self.job.ops.column("seq")
        seq_b = seq[of_b]
        for row in of_a[: -_NEAR - 1 : -1].tolist():  # mostly it is the last of all, or near it
            place = int(np.searchsorted(seq_b, seq[row])) if row < before else len(of_b)
            if place < len(of_b) and seq_b[place] == seq[row]:
                return row, int(of_b[place])
        of_a = of_a[of_a < before]
        places = np.searchsorted(seq_b, seq[of_a])
        there = np.flatnonzero(np.append(seq_b, UNKNOWN)[places] == seq[of_a])
        return (int(of_a[there[-1]]), int(of_b[places[there[-1]]])) if len(there) else None

    def _completed_by(self, rank: int, group: int) -> Ints:
        found = self._completed.get((rank, group))
        if found is None:
            ops = self.job.ops
            rows = self.index.pairs.rows(rank, group)
            rows = rows[self.aligned[rows] & (ops.column("state")[rows] == State.COMPLETED)]
            found = self._completed[rank, group] = rows[np.argsort(ops.column("seq")[rows], kind="stable")]
        return found

    @cached_property
    def _completed(self) -> dict[tuple[int, int], Ints]:
        return {}


def align(job: Job, index: Index) -> Alignment:
    """Sort the collectives of every group by sequence number and give each a signature of what must agree."""
    ops = job.ops
    signature = signatures(ops)
    call = ids(signature, ops.column("stack"))
    peers = point_to_point(ops, index)
    unlaunched = open_batches(ops, call, index)
    left_out = peers | unlaunched
    left_out[torn_batches(job, index)] = True
    # A sequence number below 0 could not be known (torch 2.2 and 2.3 count point-to-point on the same scale).
    rows = index.by_group[~left_out[index.by_group]] if left_out.any() else index.by_group
    return Alignment(
        job=job,
        index=index,
        lanes=lanes_of(ops, job.groups, rows, signature),
        collectives=rows,
        point_to_point=peers,
        unlaunched=unlaunched,
        signature=signature,
        call=call,
        symmetric=index.named(is_symmetric),
    )


# ---- the last one that went well -------------------------------------------------------------------------------------


def completed_on_all(alignment: Alignment, group: int) -> tuple[int, Ints] | None:
    """The last sequence number of a group that every member is known to have finished, with its rows."""
    lane = alignment.lanes.get(group)
    if lane is None:
        return None
    job = alignment.job
    ranks = job.ops.column("rank")
    recorded = set(lane.group.members or ranks[lane.rows].tolist()) & job.dumps.keys()
    for index in range(len(lane.seqs) - 1, -1, -1):
        rows = lane.rows_at(index)
        # Where members disagree, they finished different operations.
        disagree = len(np.unique(lane.signatures_at(index))) > 1
        if disagree or not np.all(job.ops.column("state")[rows] == State.COMPLETED):
            continue
        seq = int(lane.seqs[index])
        # A member whose ring no longer holds this one had long passed it.
        if all(_is_past(alignment, rank, group, seq) for rank in recorded - set(ranks[rows].tolist())):
            return seq, rows
    return None


def _is_past(alignment: Alignment, rank: int, group: int, seq: int) -> bool:
    rows = rows_of(alignment.job.ops, rank, group=group)
    seqs = alignment.job.ops.column("seq")[rows[~alignment.point_to_point[rows]]]
    return bool(len(seqs)) and alignment.job.wrapped(rank) and int(seqs.min()) > seq
