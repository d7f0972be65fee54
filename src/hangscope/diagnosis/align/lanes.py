"""Lanes: the collectives of one group, side by side on all of its members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hangscope.diagnosis.align.column_tools import Ints, runs
from hangscope.model import Group, Kind, Operations


@dataclass(frozen=True, slots=True)
class Lane:
    """One group's collectives: for each sequence number (ascending) which rank has it, in which row.

    `rows` are representative ones, ordered by sequence number, then rank; `starts` says where those of each of the
    distinct `seqs` begin, and has one more entry. `signatures` are ids of what must agree, one for each of `rows`.
    """

    group: Group
    rows: Ints
    seqs: Ints
    starts: Ints
    signatures: Ints

    def rows_at(self, index: int) -> Ints:
        return self.rows[self.starts[index] : self.starts[index + 1]]

    def signatures_at(self, index: int) -> Ints:
        return self.signatures[self.starts[index] : self.starts[index + 1]]

    def index_of(self, seq: int) -> int | None:
        found = int(np.searchsorted(self.seqs, seq))
        return found if found < len(self.seqs) and int(self.seqs[found]) == seq else None


def lanes_of(ops: Operations, groups: Sequence[Group], rows: Ints, signature: Ints) -> dict[int, Lane]:
    """The lanes of rows that come by group, number and rank, as `Index.by_group` has them.

    Entries of one rank with one sequence number (a coalesced call) are folded into one representative row.
    """
    if not len(rows):
        return {}
    group, seq, rank = (ops.column(c)[rows] for c in ("group", "seq", "rank"))
    calls = runs(group, seq, rank)
    first = calls[:-1]
    last = calls[1:] - 1
    folded = signature[rows]
    if len(first) < len(rows):
        position = np.arange(len(rows)) - np.repeat(first, np.diff(calls))
        weight = np.where(ops.column("kind")[rows] == Kind.BATCH, 0, folded * (2 * position + 1))
        # The closing entry comes last; where there is none (a rank inside the batch) the last inner one stands for it.
        folded = np.where(first == last, folded[last], np.add.reduceat(weight, first))
        rows = rows[last]
        group = group[last]
        seq = seq[last]
    starts = runs(group, seq)
    of_groups = runs(group)
    seqs = seq[starts[:-1]]
    places = np.searchsorted(starts, of_groups)
    lanes: dict[int, Lane] = {}
    for (a, b), (low, high) in zip(pairwise(of_groups.tolist()), pairwise(places.tolist()), strict=True):
        own = groups[int(group[a])]
        lanes[own.index] = Lane(own, rows[a:b], seqs[low:high], starts[low : high + 1] - a, folded[a:b])
    return lanes
