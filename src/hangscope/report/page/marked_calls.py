"""Which calls the matrix marks as another one than the group's: what the alignment tells, and what the verdict accuses.

The engine's majority decides, over what each operation needs to agree on. A verdict of a mismatch may rest on more: the
split sizes of all members together, another line of code, one call too many. So the call that it accuses is marked as
well, and what the accused called after it from other lines than the rest.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.column_tools import Bools
from hangscope.diagnosis.align.divergence import other_calls
from hangscope.diagnosis.align.lanes import Lane
from hangscope.diagnosis.align.p2p_matching import other_side
from hangscope.diagnosis.verdict import CauseKind, Diagnosis
from hangscope.model import Kind
from hangscope.report.page.moments import Moments


class MarkedCalls:
    """Asked for one position of one group, or for one send or receive."""

    def __init__(self, diagnosis: Diagnosis, alignment: Alignment, moments: Moments) -> None:
        self._alignment = alignment
        other_calls = diagnosis.kind in (CauseKind.MISMATCH, CauseKind.SHIFT)
        self._accused = {c.rank for c in diagnosis.culprits} if other_calls else set[int]()
        self._group = moments.group if moments.position is not None else None
        self._position = moments.position

    def accuses(self, rank: int) -> bool:
        """Whether the verdict says that this rank made another call."""
        return rank in self._accused

    def at(self, lane: Lane, index: int) -> Bools:
        """For each row at a position of a lane."""
        found = other_calls(self._alignment, lane, index)
        if self._accused and lane.group.index == self._group:
            found = found | self._accused_at(lane, index)
        return found

    def _accused_at(self, lane: Lane, index: int) -> Bools:
        rows = lane.rows_at(index)
        ranks = self._alignment.job.ops.column("rank")[rows]
        mine: Bools = np.isin(ranks, list(self._accused))
        seq = int(lane.seqs[index])
        if self._position is None or seq < self._position or not mine.any():
            return np.zeros(len(rows), dtype=bool)
        if seq == self._position:
            return mine
        calls = self._alignment.call[rows]
        usual = Counter(calls[~mine].tolist()).most_common(1)
        return mine & (calls != usual[0][0]) if usual else mine

    def unanswered(self, row: int) -> bool:
        """Whether an accused rank made a send or receive that its peer never made the other side of."""
        call = self._alignment.job.ops[row]
        peer = call.destination if call.kind is Kind.SEND else call.source
        if call.rank not in self._accused or peer is None:
            return False
        other = other_side(self._alignment, row, call.rank, peer)
        return other.row is None and other.common_start
