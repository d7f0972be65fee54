"""Indexes over all operations of a job, each made once: by rank, by group and number, by rank and group.

Every question of a rule goes through one of these, so that none of them walks over all operations for every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from hangscope.diagnosis.align.column_tools import Bools, Ints, grouped, runs, sort_by
from hangscope.model import UNKNOWN, Operations, State


class Index:
    """All operations of a job, ordered and numbered. What was not asked for is never made."""

    def __init__(self, ops: Operations) -> None:
        self.ops = ops
        self._named: dict[Callable[[str], bool], Bools] = {}
        self._furthest: dict[State | None, Ints] = {}

    @cached_property
    def starts(self) -> Ints:
        """Where each rank's rows begin; the last entry is their number."""
        return runs(self.ops.column("rank"))

    @cached_property
    def ranks(self) -> list[int]:
        """The ranks that have rows."""
        found: list[int] = self.ops.column("rank")[self.starts[:-1]].tolist()
        return found

    def largest(self, values: Ints) -> Ints:
        """Of a value a row, the largest of each rank in `ranks`."""
        found: Ints = np.maximum.reduceat(values, self.starts[:-1]) if len(values) else values
        return found

    def smallest(self, values: Ints) -> Ints:
        found: Ints = np.minimum.reduceat(values, self.starts[:-1]) if len(values) else values
        return found

    def by_rank(self, values: Ints) -> dict[int, int]:
        """A value for each rank in `ranks`, as a table."""
        return dict(zip(self.ranks, values.tolist(), strict=True))

    @cached_property
    def by_group(self) -> Ints:
        """Rows whose number is known, by group, then by number, then by rank and as recorded."""
        group = self.ops.column("group")
        seq = self.ops.column("seq")
        known = seq >= 0
        if known.all():
            return sort_by(group, seq)
        rows = np.flatnonzero(known)
        return rows[sort_by(group[rows], seq[rows])]

    @cached_property
    def _places(self) -> dict[int, slice]:
        """Group → where its rows are in `by_group`."""
        group = self.ops.column("group")[self.by_group]
        starts = runs(group).tolist()
        return {int(group[a]): slice(a, b) for a, b in pairwise(starts)}

    def rows_at(self, groups: Sequence[int], seq: int) -> Ints:
        """The rows of one number in some groups, in recorded order; -1 is for rows whose number is not known."""
        if seq < 0:
            return np.flatnonzero((self.ops.column("seq") == seq) & np.isin(self.ops.column("group"), groups))
        found = []
        for group in groups:
            rows = self.by_group[self._places.get(group, slice(0, 0))]
            low, high = np.searchsorted(self.ops.column("seq")[rows], [seq, seq + 1])
            found.append(rows[low:high])
        return np.sort(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)

    def furthest(self, state: State | None = None) -> Ints:
        """Per group the largest number that anybody launched, or brought into a state; UNKNOWN where there is none."""
        if state not in self._furthest:
            group = self.ops.column("group")
            seq = self.ops.column("seq")
            rows = slice(None) if state is None else self.ops.column("state") == state
            found = self._furthest[state] = np.full(int(group.max(initial=-1)) + 1, UNKNOWN, dtype=np.int64)
            np.maximum.at(found, group[rows], seq[rows])
        return self._furthest[state]

    @cached_property
    def pairs(self) -> Pairs:
        return Pairs(self.ops)

    def named(self, test: Callable[[str], bool]) -> Bools:
        """Per row whether the operation's name passes a test."""
        if test not in self._named:
            passes = np.asarray([test(name) for name in self.ops.tables.names], dtype=bool)
            self._named[test] = passes[self.ops.column("name")]
        return self._named[test]


class Pairs:
    """Every rank with every group that it recorded something of.

    Pairs are numbered by rank, then group; `rank` and `group` say which they are.
    """

    def __init__(self, ops: Operations) -> None:
        rank = ops.column("rank")
        group = ops.column("group")
        self._order = sort_by(rank, group)
        rank = rank[self._order]
        group = group[self._order]
        self._starts = runs(rank, group)
        self.rank: list[int] = rank[self._starts[:-1]].tolist()
        self.group: list[int] = group[self._starts[:-1]].tolist()

    def rows(self, rank: int, group: int) -> Ints:
        """What a rank recorded of a group, in recorded order."""
        number = self._numbers.get((rank, group))
        return self._order[:0] if number is None else self._order[self._starts[number] : self._starts[number + 1]]

    @cached_property
    def _numbers(self) -> dict[tuple[int, int], int]:
        return {pair: number for number, pair in enumerate(zip(self.rank, self.group, strict=True))}

    @cached_property
    def of_rank(self) -> dict[int, list[tuple[int, int]]]:
        """Rank → its groups, each with the number of the pair."""
        return grouped((r, (g, n)) for n, (r, g) in enumerate(zip(self.rank, self.group, strict=True)))

    @cached_property
    def of_group(self) -> dict[int, list[tuple[int, int]]]:
        """Group → its ranks, each with the number of the pair."""
        return grouped((g, (r, n)) for n, (r, g) in enumerate(zip(self.rank, self.group, strict=True)))

    def largest(self, values: Ints, rows: Bools) -> list[int]:
        """Of a value a row, the largest of each pair among some rows; UNKNOWN where there is none."""
        return self._reduced(np.maximum, np.where(rows, values, UNKNOWN))

    def smallest(self, values: Ints, rows: Bools) -> list[int]:
        return self._reduced(np.minimum, np.where(rows, values, np.iinfo(np.int64).max))

    def _reduced(self, by: np.ufunc, values: Ints) -> list[int]:
        found: list[int] = by.reduceat(values[self._order], self._starts[:-1]).tolist() if self.rank else []
        return found
