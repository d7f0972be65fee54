"""What the dumps say of how far each rank got, for all of them at once."""

from collections.abc import Iterator

import numpy as np

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.column_tools import Bools, grouped
from hangscope.diagnosis.waits.rank_progress import Unit
from hangscope.model import UNKNOWN, Kind, State

_FAR = 1 << 62


class Recorded:
    """By rank: `launches` says whether it launched anything, `units` what it has not finished.

    By the number of a rank's pair with a group: the largest collective `launched` and `completed`, and the `first` one
    that is still there.
    """

    def __init__(self, alignment: Alignment) -> None:
        ops = alignment.job.ops
        index = alignment.index
        launched = ~alignment.unlaunched
        created = ops.column("created_ns")
        seq = ops.column("seq")
        done = ops.column("state") == State.COMPLETED
        self.launches = index.by_rank(index.largest(launched.view(np.int8)))
        self._oldest_ns = index.by_rank(index.smallest(np.where(launched & (created != UNKNOWN), created, _FAR)))
        collectives = launched & ~alignment.point_to_point & (seq >= 0)
        self.launched = index.pairs.largest(seq, collectives)
        self.first = index.pairs.smallest(seq, collectives)
        self.completed = index.pairs.largest(seq, collectives & done)
        self.units = grouped((unit.rank, unit) for unit in _unfinished_units(alignment, launched & ~done))

    def oldest_ns(self, rank: int) -> int | None:
        """When the oldest entry of a rank was made; None where nothing says so."""
        found = self._oldest_ns[rank]
        return found if found < _FAR else None


def _unfinished_units(alignment: Alignment, unfinished: Bools) -> Iterator[Unit]:
    """Unfinished operations in recorded order, the entries of one batch (or one coalesced call) together."""
    ops = alignment.job.ops
    rows = np.flatnonzero(unfinished)
    recorded = rows.tolist()
    names = ("rank", "kind", "batch", "group", "seq", "name", "state")
    rank, kind, batch, group, seq, name, state = (ops.column(c)[rows].tolist() for c in names)
    peers = alignment.point_to_point[rows].tolist()
    closes = int(Kind.BATCH)
    states = tuple(State)
    calls: dict[tuple[int, ...], list[int]] = {}
    for i, in_batch in enumerate(batch):
        if in_batch != UNKNOWN:
            call = (rank[i], 0, group[i], in_batch)
        elif peers[i]:
            call = (rank[i], -1, i, 0)
        else:
            call = (rank[i], 1, group[i], seq[i])
        calls.setdefault(call, []).append(i)
    for members in calls.values():
        last = members[-1]
        inner = [i for i in members if kind[i] != closes] or members
        named = inner[0] if kind[last] == closes and len(inner) == 1 else last
        yield Unit(
            rank=rank[last],
            group=group[last],
            seq=seq[last] if seq[last] >= 0 else None,
            name=ops.tables.name(name[named]),
            state=states[state[last]],
            rows=tuple([recorded[i] for i in members]),
            point_to_point=peers[last],
        )
