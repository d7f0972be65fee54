"""The indexes over all operations say what a plain walk would say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hangscope.diagnosis.align.alignment import Transfers
from hangscope.diagnosis.align.op_index import Index
from hangscope.model import COLUMNS, UNKNOWN, Kind, Operations, Tables

FEW = st.integers(0, 2)
CALLS = st.lists(st.tuples(FEW, FEW, st.sampled_from(Kind), FEW, FEW, st.integers(-1, 9)), max_size=40)
"""Rank, group, kind, source, destination and number of recorded calls."""


def recorded(calls: list[tuple[int, ...]]) -> Operations:
    columns = {name: np.full(len(calls), UNKNOWN, dtype=kind) for name, kind in COLUMNS.items()}
    for place, name in enumerate(("rank", "group", "kind", "source", "destination", "seq")):
        columns[name][:] = [call[place] for call in calls]
    return Operations(columns, Tables(), ())


@given(CALLS)
def test_a_pair_of_rank_and_group_has_what_a_walk_finds(calls: list[tuple[int, ...]]) -> None:
    """Its rows as recorded, and the largest and smallest number among those that are asked for."""
    calls = sorted(calls, key=lambda call: call[0])
    pairs, seq = Index(recorded(calls)).pairs, np.asarray([call[5] for call in calls], dtype=np.int64)
    numbered = zip(pairs.rank, pairs.group, pairs.largest(seq, seq >= 0), pairs.smallest(seq, seq >= 0), strict=True)
    assert list(zip(pairs.rank, pairs.group, strict=True)) == sorted({call[:2] for call in calls})
    for rank, group, largest, smallest in numbered:
        rows = [row for row, call in enumerate(calls) if call[:2] == (rank, group)]
        known = [calls[row][5] for row in rows if calls[row][5] >= 0]
        assert pairs.rows(rank, group).tolist() == rows
        assert (largest, smallest) == (max(known, default=UNKNOWN), min(known, default=(1 << 63) - 1))
    assert not len(pairs.rows(3, 0))


@given(CALLS)
def test_transfers_are_what_a_walk_finds(calls: list[tuple[int, ...]]) -> None:
    """Of two ranks and a group, the sender's sends and the receiver's receives, as recorded."""
    calls = sorted(calls, key=lambda call: call[0])
    found = Transfers(recorded(calls))
    for owner, source, destination, group in np.ndindex(3, 3, 3, 3):
        kind = Kind.SEND if owner == source else Kind.RECV
        wanted = (owner, group, kind, source, destination)
        assert found.of(owner, source, destination, group).tolist() == [
            row for row, call in enumerate(calls) if call[:5] == wanted
        ]
