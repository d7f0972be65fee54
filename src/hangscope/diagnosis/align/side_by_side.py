"""The recordings of all ranks, laid side by side: what rules look up of one operation, one rank or one group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hangscope.diagnosis.align.column_tools import Bools, Ints, grouped
from hangscope.diagnosis.align.lanes import Lane
from hangscope.diagnosis.align.op_index import Index
from hangscope.diagnosis.align.p2p_calls import Transfers
from hangscope.model import UNKNOWN, Job, State

_NEAR = 4


@dataclass(frozen=True)
class Alignment:
    """All lanes of a job, the index of its operations, and per row of these:

    `point_to_point`: a send, a receive, or the closing entry of a batch that holds some. `unlaunched`: part of a batch
    that was begun and never closed, so that nothing of it was launched. `signature`: an id of what every member must
    agree on. `call`: an id of name, sizes, types and stack, for recognising the same line of code elsewhere.
    `symmetric`: nobody finishes the operation before everybody has joined it.
    """

    job: Job
    index: Index
    lanes: dict[int, Lane]
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
        rows, span = lane.rows_at(index), self.job.ops.span(rank)
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

    def last_by_both(self, a: int, b: int, group: int, before: int) -> tuple[int, int] | None:
        """The last collective of a group that two ranks completed, `a` with a row before that one: the row of each."""
        of_a, of_b = self._completed_by(a, group), self._completed_by(b, group)
        seq, most = self.job.ops.column("seq"), len(of_b)
        seq_b = seq[of_b]
        for row in of_a[: -_NEAR - 1 : -1].tolist():  # mostly it is the last of all, or near it
            place = int(np.searchsorted(seq_b, seq[row])) if row < before else most
            if place < most and seq_b[place] == seq[row]:
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

    @cached_property
    def lanes_of(self) -> dict[int, list[Lane]]:
        """Rank → the lanes of its groups, in their order."""
        return grouped((rank, lane) for lane in self.lanes.values() for rank in lane.group.members or ())
