"""Ranks whose calls lastingly do not meet the calls of their group that they belong to, although nothing hangs.

Whoever leaves a call out, and goes on, meets the others one number too early from then on: collectives go by their
order, and NCCL and Gloo reduce whatever has the same size. The recorders show it: at the same number of the same group
the ranks have different lines, sizes or operations, and one rank's sequence is the others', some numbers off. Ranks
that always call from other lines (a stage of a pipeline, rank 0) are the others' at no distance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np

from hangscope.diagnosis.align.agreement import ROOTED, members_not_recorded
from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.column_tools import Bools, Ints, grouped, ids
from hangscope.diagnosis.align.lanes import Lane
from hangscope.diagnosis.align.sequence_shift import LEAST, SequenceShift, find_shift, two_sides, usual
from hangscope.model import Group

_MOST_NUMBERS = 8192
_MOST_CELLS = 4 << 20
"""Ranks times numbers of one group that are compared, the newest."""
_MOST_RANKS = 64
"""Ranks of one group that differ and are looked at: where more do, their lines differ by design."""
_MOST_GROUPS = 1024
"""Groups that differ anywhere and are looked at."""
_SIBLINGS = 8
_NO_LINE = (*ROOTED, "barrier")
"""Calls whose line says nothing: a root has its own branch, which ranks take in turns; a barrier carries no data."""


@dataclass(frozen=True, slots=True)
class LastingShift:
    """Ranks that are some numbers off from `seq` on. `tied`: as many ranks are on the other side, and nobody can say
    which one is off. `odd_row` and `usual_row` are what the two sides called at `seq`. `by_size`: sizes or operations
    show it, not lines alone."""

    group: int
    seq: int
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    tied: bool
    odd_row: int
    usual_row: int
    shift: SequenceShift
    by_size: bool
    at_ns: int
    calls: tuple[int, ...] = ()
    """Rows of what was left out (on one of the others) or added, where the recording shows how it began."""


@dataclass(frozen=True, slots=True)
class LastingMismatch:
    """Ranks that pass another size or type, or run another operation, than most of their group, again and again until
    the end, at whatever distance: `times` in all."""

    group: int
    seq: int
    ranks: tuple[int, ...]
    tied: bool
    odd_row: int
    usual_row: int
    times: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class _Table:
    """One group: a row a rank, a column a number from `first` on. `rows` are rows of the operations, `calls` ids with
    the line and `plain` ids without; -1 for what is not there."""

    lane: Lane
    first: int
    ranks: Ints
    rows: Ints
    calls: Ints
    plain: Ints


class LastingDifferences:
    """What lastingly differs between the members of groups. What ranks in `silent` recorded is not compared."""

    def __init__(self, alignment: Alignment, silent: Collection[int] = ()) -> None:
        self._alignment = alignment
        self._silent = np.asarray(sorted(silent), dtype=np.int64)
        self._calls = _calls(alignment)
        self._made: dict[int, _Table | None] = {}
        lanes = (lane for lane in _comparable(alignment) if _differ(lane, self._calls))
        self._lanes = list(islice(lanes, _MOST_GROUPS))
        kinds = ((_kind(lane.group), lane) for lane in alignment.lanes.values() if lane.group.desc)
        self._kinds = grouped(kinds)

    @cached_property
    def shifts(self) -> list[LastingShift]:
        """One for each group whose members are off, the earliest first; those of which nobody knows who, last."""
        found = (shift for table in self._tables() if (shift := _shift_in(self._alignment, table, self)) is not None)
        return sorted(found, key=lambda shift: (shift.tied, shift.at_ns, shift.group))

    @cached_property
    def mismatches(self) -> list[LastingMismatch]:
        """One for each group in which ranks differ in size, type or operation, in the same order."""
        found = (one for table in self._tables() if (one := _mismatch_in(self._alignment, table)) is not None)
        return sorted(found, key=lambda one: (one.tied, one.at_ns, one.group))

    def siblings(self, table: _Table) -> Iterator[_Table]:
        """Some groups of the same description and size: they run the same program."""
        lanes = self._kinds.get(_kind(table.lane.group), ())[: _SIBLINGS + 1]
        found = (self._table(lane) for lane in lanes if lane is not table.lane)
        return (other for other in found if other is not None)

    def _tables(self) -> Iterator[_Table]:
        tables = (self._table(lane) for lane in self._lanes)
        return (table for table in tables if table is not None)

    def _table(self, lane: Lane) -> _Table | None:
        group = lane.group.index
        if group not in self._made:
            self._made[group] = _table(self._alignment, lane, self._silent, self._calls)
        return self._made[group]


# ---- the calls of a group side by side -------------------------------------------------------------------------------


def _has_line(name: str) -> bool:
    return name not in _NO_LINE


def _calls(alignment: Alignment) -> Ints:
    """Per row of the operations an id of its line and of what its entry must agree on; -1 where the rank recorded no
    lines at all. A call from a thread of autograd's has none, which is a line like any other."""
    ops = alignment.job.ops
    stack = np.where(alignment.index.named(_has_line), ops.column("stack"), 0)
    found = ids(alignment.signature, stack)
    for rank in alignment.job.dumps:
        part = ops.span(rank)
        if not np.any(ops.column("stack")[part]):
            found[part] = -1
    return found


def _comparable(alignment: Alignment) -> Iterator[Lane]:
    ops = alignment.job.ops
    # A batch of sends may take a number of the collectives' (torch 2.4-2.6), on those ranks alone that are in it.
    with_peers = set(np.unique(ops.column("group")[alignment.point_to_point]).tolist())
    for lane in alignment.lanes.values():
        if lane.group.index not in with_peers and not members_not_recorded(lane.group):
            yield lane


def _differ(lane: Lane, calls: Ints) -> bool:
    """Whether the members differ anywhere; mostly they do not, and nothing more needs to be looked at."""
    starts = lane.starts[:-1]
    return any(
        np.any(np.minimum.reduceat(values, starts) != np.maximum.reduceat(values, starts))
        for values in (lane.signatures, calls[lane.rows])
    )


def _table(alignment: Alignment, lane: Lane, silent: Ints, calls: Ints) -> _Table | None:
    ops = alignment.job.ops
    seqs = ops.column("seq")[lane.rows]
    owners = ops.column("rank")[lane.rows]
    ranks = np.setdiff1d(np.unique(owners), silent)
    if len(ranks) < 2:
        return None
    newest = np.full(len(ranks), -1, dtype=np.int64)
    of_ranks = np.isin(owners, ranks)
    np.maximum.at(newest, np.searchsorted(ranks, owners[of_ranks]), seqs[of_ranks])
    last = int(np.sort(newest)[-2])
    first = max(int(seqs.min()), last - min(_MOST_NUMBERS, _MOST_CELLS // len(ranks)) + 1)
    here = of_ranks & (seqs >= first) & (seqs <= last)
    rows = np.full((len(ranks), last - first + 1), -1, dtype=np.int64)
    with_lines = rows.copy()
    plain = rows.copy()
    place = np.searchsorted(ranks, owners[here]), seqs[here] - first
    rows[place] = lane.rows[here]
    plain[place] = lane.signatures[here]
    with_lines[place] = calls[lane.rows[here]]
    # Numbers that begin anew in one process are another life of the group.
    anew = any(np.any(np.diff(mine[mine >= 0]) < 0) for mine in rows)
    return None if anew else _Table(lane, first, ranks, rows, with_lines, plain)


# ---- who is off ------------------------------------------------------------------------------------------------------


def _shift_in(alignment: Alignment, table: _Table, groups: LastingDifferences) -> LastingShift | None:
    """By lines first: they tell more. Sizes and operations are compared where lines are missing, or differ anyway."""
    for calls, by_size in ((table.calls, False), (table.plain, True)):
        found = _by_majority(alignment, table, groups, by_size) or _by_sides(alignment, table, calls, by_size)
        if found is not None:
            shows_size = by_size or _sizes_show(table, found)
            return replace(found, by_size=shows_size)
    return None


def _by_majority(alignment: Alignment, table: _Table, groups: LastingDifferences, by_size: bool) -> LastingShift | None:
    calls = table.plain if by_size else table.calls
    reference, tied = usual(calls)
    if tied.any():
        reference = np.where(tied, _of_siblings(table, groups, by_size), reference)
    found = {
        int(table.ranks[at]): shift
        for at in _differing(calls, reference)
        if (shift := find_shift(calls[at], reference)) is not None
    }
    if not found or len(found) * 2 > len(table.ranks):
        return None
    first = min(found, key=lambda rank: (found[rank].start, rank))
    ranks = tuple(sorted(found))
    others = tuple(rank for rank in table.ranks.tolist() if rank not in found)
    return _shift(alignment, table, calls, reference, (ranks, others), found[first], tied=False)


def _differing(calls: Ints, reference: Ints) -> list[int]:
    """The rows that differ from the reference often enough."""
    differs = ((calls >= 0) & (reference >= 0) & (calls != reference)).sum(axis=1)
    rows: list[int] = np.flatnonzero(differs >= LEAST).tolist()
    return rows if len(rows) <= _MOST_RANKS else []


def _of_siblings(table: _Table, groups: LastingDifferences, by_size: bool) -> Ints:
    """What sibling groups have at the same numbers."""
    found = np.full(table.plain.shape[1], -1, dtype=np.int64)
    for other in groups.siblings(table):
        agreed, _ = usual(other.plain if by_size else other.calls)
        low = max(table.first, other.first)
        high = min(table.first + len(found), other.first + len(agreed))
        if high > low:
            part = slice(low - table.first, high - table.first)
            theirs = agreed[low - other.first : high - other.first]
            found[part] = np.where(found[part] < 0, theirs, found[part])
    return found


def _kind(group: Group) -> tuple[str, int]:
    return group.desc, len(group.members or ())


def _by_sides(alignment: Alignment, table: _Table, calls: Ints, by_size: bool) -> LastingShift | None:
    """Two halves that are off against each other. By lines alone only where they were seen to part: two ranks that
    take turns come from two lines for ever."""
    _, tied = usual(calls)
    if int(tied.sum()) < LEAST:
        return None
    for one, other in two_sides(calls[:, tied]):
        reference = calls[one].max(axis=0)
        own = calls[other].max(axis=0)
        shift = find_shift(own, reference)
        if shift is not None and (shift.begins or by_size):
            ranks = tuple(table.ranks[other].tolist())
            others = tuple(table.ranks[one].tolist())
            return _shift(alignment, table, calls, reference, (ranks, others), shift, tied=True)
    return None


def _shift(
    alignment: Alignment,
    table: _Table,
    calls: Ints,
    reference: Ints,
    sides: tuple[tuple[int, ...], tuple[int, ...]],
    shift: SequenceShift,
    *,
    tied: bool,
) -> LastingShift | None:
    """With the calls of both sides at the first number where both are recorded and differ."""
    ranks, others = sides
    odd = np.searchsorted(table.ranks, ranks)
    rest = np.searchsorted(table.ranks, others)
    for column in range(shift.start, calls.shape[1]):
        mine = odd[(calls[odd, column] >= 0) & (calls[odd, column] != reference[column])]
        theirs = rest[(calls[rest, column] >= 0) & (calls[rest, column] == reference[column])]
        if len(mine) and len(theirs):
            odd_row = int(table.rows[mine[0], column])
            usual_row = int(table.rows[theirs[0], column])
            return LastingShift(
                group=table.lane.group.index,
                seq=table.first + column,
                ranks=ranks,
                others=others,
                tied=tied,
                odd_row=odd_row,
                usual_row=usual_row,
                shift=shift,
                by_size=False,
                at_ns=int(alignment.job.ops.column("created_ns")[odd_row]),
                calls=_left_out(table.rows[theirs[0] if shift.by > 0 else mine[0]], column, shift),
            )
    return None


def _left_out(rows: Ints, column: int, shift: SequenceShift) -> tuple[int, ...]:
    """The calls of one rank from the position on that the other side does not have."""
    found = rows[column : column + abs(shift.by)]
    return tuple(found.tolist()) if shift.begins and np.all(found >= 0) else ()


def _sizes_show(table: _Table, found: LastingShift) -> bool:
    """Whether what the ranks pass differs too, so that the results are wrong and not only of mixed steps."""
    at = np.searchsorted(table.ranks, found.ranks[0])
    reference, _ = usual(table.plain)
    own = table.plain[at]
    return int(((own >= 0) & (reference >= 0) & (own != reference))[found.seq - table.first :].sum()) >= LEAST


# ---- who passes something else, in place -----------------------------------------------------------------------------


def _mismatch_in(alignment: Alignment, table: _Table) -> LastingMismatch | None:
    reference, tied = usual(table.plain)
    differs = (table.plain >= 0) & (reference >= 0) & (table.plain != reference)
    odd = [at for at in _differing(table.plain, reference) if _to_the_end(differs[at], table.plain[at], reference)]
    if odd and len(odd) * 2 < len(table.ranks):
        column = int(np.flatnonzero(differs[odd].any(axis=0))[0])
        mine = next(at for at in odd if differs[at, column])
        theirs = int(np.flatnonzero(table.plain[:, column] == reference[column])[0])
        ranks = tuple(table.ranks[odd].tolist())
        return _mismatch(alignment, table, column, (mine, theirs), ranks, int(differs[odd].sum(axis=1).max()), False)
    return _mismatch_of_sides(alignment, table, tied)


def _mismatch_of_sides(alignment: Alignment, table: _Table, tied: Bools) -> LastingMismatch | None:
    if int(tied.sum()) < LEAST:
        return None
    for one, other in two_sides(table.plain[:, tied]):
        mine = table.plain[other].max(axis=0)
        theirs = table.plain[one].max(axis=0)
        differs = (mine >= 0) & (theirs >= 0) & (mine != theirs)
        if not _to_the_end(differs, mine, theirs):
            continue
        column = next(c for c in np.flatnonzero(differs).tolist() if table.rows[[one[0], other[0]], c].min() >= 0)
        ranks = tuple(table.ranks.tolist())
        return _mismatch(alignment, table, column, (int(other[0]), int(one[0])), ranks, int(differs.sum()), True)
    return None


def _to_the_end(differs: Bools, own: Ints, reference: Ints) -> bool:
    """Whether it differs often enough, and still did in the last round: the calls between two that differ are no more
    than they used to be."""
    compared = np.flatnonzero((own >= 0) & (reference >= 0))
    places = np.flatnonzero(differs[compared])
    if len(places) < LEAST:
        return False
    since = len(compared) - 1 - int(places[-1])
    return since <= 2 * int(np.diff(places).max(initial=1))


def _mismatch(
    alignment: Alignment,
    table: _Table,
    column: int,
    pair: tuple[int, int],
    ranks: tuple[int, ...],
    times: int,
    tied: bool,
) -> LastingMismatch:
    odd_row = int(table.rows[pair[0], column])
    usual_row = int(table.rows[pair[1], column])
    at_ns = int(alignment.job.ops.column("created_ns")[odd_row])
    return LastingMismatch(table.lane.group.index, table.first + column, ranks, tied, odd_row, usual_row, times, at_ns)
