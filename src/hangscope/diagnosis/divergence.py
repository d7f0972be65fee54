"""Where members of one group disagree about what they run at one position of the sequence.

The majority is the reference, never the first file. A rank whose sequence fits again after a shift has skipped or added
calls, and the call that it skipped is named from the others' recordings.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from hangscope.diagnosis.align import Alignment, Ints, Lane, is_guessed
from hangscope.model import Operation

_AGREED_BEFORE = 16
_SHIFT_MAX = 8
"""The longest run of skipped or added calls that is looked for."""


class Shape(Enum):
    OTHER_OPERATION = "another operation"
    OTHER_SIZE = "another size"
    OTHER_TYPE = "another data type"
    OTHER_SPLITS = "other split sizes"
    SKIPPED = "a call left out"
    ADDED = "a call too many"


@dataclass(frozen=True, slots=True)
class Divergence:
    """One disagreement: who differs from whom, first at which position, and how."""

    group: int
    seq: int
    shape: Shape
    odd: tuple[int, ...]
    """The ranks that differ from the majority; where the sides are equal, both sides; where nobody can say, none."""
    tied: bool
    odd_row: int
    """A row of an odd rank at the position."""
    reference_row: int
    """A row of the majority at the position."""
    calls: tuple[int, ...] = ()
    """SKIPPED: rows of the calls that were left out (on a reference rank). ADDED: rows of the extra calls."""
    parted_at: tuple[int, int] | None = None
    """(odd rank's row, reference row) where the two code paths part: what each did instead of the other."""
    at_ns: int | None = None
    support: int = 0
    """How many later positions confirm a shift; `by_custom`: how many earlier rounds."""
    by_custom: bool = False
    """SKIPPED, because the odd rank went on with what usually comes after those calls."""


@dataclass(frozen=True, slots=True)
class _Shift:
    """The calls by which one sequence has to be moved to fit another again."""

    shape: Shape
    calls: tuple[int, ...]
    support: int
    by_custom: bool = False


def divergences(alignment: Alignment) -> list[Divergence]:
    """The first disagreement of every group, the earliest in time first."""
    found: list[Divergence] = []
    for lane in alignment.lanes.values():
        first = _first(alignment, lane)
        agreed = 0 if first is None else lane.index_of(first.seq) or 0
        if (
            first is not None
            and is_guessed(lane.group)
            and (first.tied or len(first.odd) > 1 or agreed < _AGREED_BEFORE)
        ):
            continue  # different groups may hide behind one number; only if they agreed for long do they run in step
        if first is not None:
            found.append(first)
    return sorted(found, key=lambda d: (d.at_ns if d.at_ns is not None else 1 << 62, d.group, d.seq))


def _first(alignment: Alignment, lane: Lane) -> Divergence | None:
    starts = lane.starts[:-1]
    if not len(starts):
        return None
    differs = np.flatnonzero(
        np.minimum.reduceat(lane.signatures, starts) != np.maximum.reduceat(lane.signatures, starts)
    )
    candidates: list[Divergence] = []
    if len(differs):
        candidates.append(_at(alignment, lane, int(differs[0])))
    splits = _first_bad_splits(alignment, lane)
    if splits is not None:
        candidates.append(splits)
    shifted = _first_shift_by_stack(alignment, lane, int(differs[0]) if len(differs) else len(lane.seqs))
    if shifted is not None:
        candidates.append(shifted)
    return min(candidates, key=lambda d: d.seq, default=None)


def _at(alignment: Alignment, lane: Lane, index: int) -> Divergence:
    """Judge one position at which signatures differ."""
    rows, signatures = lane.rows_at(index), lane.signatures_at(index)
    reference, tied = _majority(alignment, lane, index)
    odd_rows = rows[signatures != reference]
    shift = _shift(alignment, lane, index, odd_rows)
    return _divergence(alignment, lane, index, odd_rows, rows[signatures == reference], tied, shift)


def _majority(alignment: Alignment, lane: Lane, index: int) -> tuple[int, bool]:
    """The reference signature at one position, and whether the vote was a tie.

    A tie is broken by sibling groups (same description, same size) that are at the same position: they run the same
    line of code.
    """
    votes = Counter(lane.signatures_at(index).tolist())
    ranked = votes.most_common()
    top = [signature for signature, count in ranked if count == ranked[0][1]]
    if len(top) == 1:
        return int(top[0]), False
    seq = int(lane.seqs[index])
    beside: Counter[int] = Counter()
    for other in alignment.lanes.values():
        if other.group.index == lane.group.index or not _siblings(other, lane):
            continue
        place = other.index_of(seq)
        if place is not None:
            beside.update(s for s in other.signatures_at(place).tolist() if s in top)
    if beside:
        best = beside.most_common()
        if len(best) == 1 or best[0][1] > best[1][1]:
            return int(best[0][0]), False
    return int(min(top)), True


def _siblings(a: Lane, b: Lane) -> bool:
    size_a, size_b = len(a.group.members or ()), len(b.group.members or ())
    return bool(a.group.desc) and a.group.desc == b.group.desc and size_a == size_b


def _divergence(
    alignment: Alignment,
    lane: Lane,
    index: int,
    odd_rows: Ints,
    reference_rows: Ints,
    tied: bool,
    shift: _Shift | None,
) -> Divergence:
    ops = alignment.job.ops
    ranks = ops.column("rank")
    odd_row, reference_row = int(odd_rows[0]), int(reference_rows[0])
    odd = sorted({int(r) for r in ranks[odd_rows]} | ({int(r) for r in ranks[reference_rows]} if tied else set()))
    created = ops.column("created_ns")[np.concatenate([odd_rows, reference_rows])]
    known = created[created >= 0]
    shift = shift or _Shift(_shape(ops[odd_row], ops[reference_row]), (), 0)
    return Divergence(
        group=lane.group.index,
        seq=int(lane.seqs[index]),
        shape=shift.shape,
        odd=tuple(odd),
        tied=tied,
        odd_row=odd_row,
        reference_row=reference_row,
        calls=shift.calls,
        parted_at=(odd_row, reference_row),
        at_ns=int(known.min()) if len(known) else None,
        support=shift.support,
        by_custom=shift.by_custom,
    )


def _shape(odd: Operation, reference: Operation) -> Shape:
    if odd.name != reference.name:
        return Shape.OTHER_OPERATION
    if (odd.input_dtypes, odd.output_dtypes) != (reference.input_dtypes, reference.output_dtypes):
        return Shape.OTHER_TYPE
    return Shape.OTHER_SIZE


# ---- skipped and added calls -----------------------------------------------------------------------------------------


def _shift(alignment: Alignment, lane: Lane, index: int, odd_rows: Ints) -> _Shift | None:
    """Whether the odd ranks' sequence fits the reference again when moved by a few calls, and better than unmoved."""
    ranks = alignment.job.ops.column("rank")
    odd_ranks = {int(r) for r in ranks[odd_rows]}
    everyone = {int(r) for r in ranks[lane.rows_at(index)]}
    others = sorted(everyone - odd_ranks)
    if not others:
        return None
    theirs = _sequence(alignment, lane, others[0], index)
    mine = _sequence(alignment, lane, min(odd_ranks), index)
    with_stacks = _has_stacks(alignment, theirs) and _has_stacks(alignment, mine)
    key = alignment.call if with_stacks else _signature_by_row(alignment, lane)
    a, b = key[mine].tolist(), key[theirs].tolist()
    unmoved = sum(x == y for x, y in zip(a[1:], b[1:], strict=False))
    for count in range(1, _SHIFT_MAX + 1):
        left_out = _fits(a, b[count:])
        if left_out > unmoved:
            return _Shift(Shape.SKIPPED, tuple(int(r) for r in theirs[:count]), left_out)
        too_many = _fits(a[count:], b)
        if too_many > unmoved:
            custom = _skipped_by_custom(alignment, lane, mine, theirs, index)
            if custom is not None and len(b) <= len(custom.calls):
                # The reference has not come to what the odd rank went on with, so "left out" fits as well, and a
                # rank that makes its usual calls too early is a smaller surprise than one that makes them twice.
                return custom
            return _Shift(Shape.ADDED, tuple(int(r) for r in mine[:count]), too_many)
    # Where the two agree again right after the position, one call differs and none was left out.
    agree_again = bool(b[1:2]) and a[1:2] == b[1:2]
    if not a or not b or not with_stacks or agree_again:
        return None
    return _skipped_by_custom(alignment, lane, mine, theirs, index)


def _skipped_by_custom(alignment: Alignment, lane: Lane, mine: Ints, theirs: Ints, index: int) -> _Shift | None:
    """Whether earlier rounds of the reference show the odd rank's call a few calls after the one it left out."""
    ranks = alignment.job.ops.column("rank")
    odd_call, missed = int(alignment.call[mine[0]]), int(alignment.call[theirs[0]])
    rows = lane.rows[: lane.starts[index]]
    past = rows[ranks[rows] == ranks[theirs[0]]]
    calls = alignment.call[past].tolist()
    distances = Counter(
        count
        for at, call in enumerate(calls)
        if call == missed
        for count in range(1, _SHIFT_MAX + 1)
        if calls[at + count : at + count + 1] == [odd_call]
    )
    if not distances:
        return None
    count = min(distances)
    if distances[count] < 2:
        return None
    at = max(i for i, call in enumerate(calls[:-count]) if call == missed and calls[i + count] == odd_call)
    now = theirs[:count]
    if alignment.call[now].tolist() != calls[at : at + len(now)]:
        now = theirs[:1]
    left_out = (*now.tolist(), *past[at + len(now) : at + count].tolist())
    return _Shift(Shape.SKIPPED, left_out, distances[count], by_custom=True)


def _fits(a: list[int], b: list[int]) -> int:
    """How many positions two sequences share if they agree wherever they overlap (twice, or once at an end)."""
    overlap = min(len(a), len(b))
    if overlap < 1 or a[:overlap] != b[:overlap]:
        return 0
    if overlap == 1 and len(a) > 1 and len(b) > 1:
        return 0
    return overlap


def _sequence(alignment: Alignment, lane: Lane, rank: int, index: int) -> Ints:
    """One rank's rows of a lane from one position on."""
    rows = lane.rows[lane.starts[index] :]
    mine: Ints = rows[alignment.job.ops.column("rank")[rows] == rank]
    return mine


def _has_stacks(alignment: Alignment, rows: Ints) -> bool:
    return bool(len(rows)) and bool(np.all(alignment.job.ops.column("stack")[rows] != 0))


def _signature_by_row(alignment: Alignment, lane: Lane) -> Ints:
    by_row = np.zeros(len(alignment.call), dtype=np.int64)
    by_row[lane.rows] = lane.signatures
    return by_row


def _first_shift_by_stack(alignment: Alignment, lane: Lane, before: int) -> Divergence | None:
    """A shift that sizes do not show: same operation and size, but another line of code, and then always one off."""
    ops = alignment.job.ops
    if before == 0 or not np.all(ops.column("stack")[lane.rows]):
        return None  # a dump without stacks (JSON never has them) says nothing about lines
    calls = alignment.call[lane.rows]
    starts = lane.starts[:-1]
    differs = np.flatnonzero(np.minimum.reduceat(calls, starts) != np.maximum.reduceat(calls, starts))
    ranks = ops.column("rank")
    for index in differs[:16].tolist():
        if index >= before:
            return None
        rows = lane.rows_at(index)
        votes = Counter(alignment.call[rows].tolist()).most_common()
        if len(votes) > 1 and votes[0][1] == votes[1][1]:
            return None
        odd_rows = rows[alignment.call[rows] != votes[0][0]]
        reference_rows = rows[alignment.call[rows] == votes[0][0]]
        shift = _shift(alignment, lane, index, odd_rows)
        if shift is None or (shift.support < 3 and not _is_novel(alignment, lane, shift)):
            return None
        odd = {int(r) for r in ranks[odd_rows]}
        usual = came_from_elsewhere_before(
            alignment, lane, index, int(ranks[odd_rows[0]]), int(ranks[reference_rows[0]])
        )
        if usual:
            # These ranks have always come from different lines (rank 0 logs, a pipeline's first stage): not a shift.
            continue
        if len(odd) <= len(reference_rows):
            return _divergence(alignment, lane, index, odd_rows, reference_rows, False, shift)
    return None


def _is_novel(alignment: Alignment, lane: Lane, shift: _Shift) -> bool:
    """Whether the added call was never made by anyone else: then one later call that fits is enough."""
    ranks = alignment.job.ops.column("rank")
    if shift.shape is not Shape.ADDED or not shift.calls:
        return False
    first = shift.calls[0]
    others = lane.rows[ranks[lane.rows] != ranks[first]]
    return not np.any(alignment.call[others] == alignment.call[first])


def came_from_elsewhere_before(alignment: Alignment, lane: Lane, index: int, odd: int, reference: int) -> bool:
    """Whether the two ranks came from different lines earlier too, without harm."""
    rows = lane.rows[: lane.starts[index]]
    ranks = alignment.job.ops.column("rank")[rows]
    seqs = alignment.job.ops.column("seq")[rows]
    mine = dict(zip(seqs[ranks == odd].tolist(), alignment.call[rows[ranks == odd]].tolist(), strict=True))
    theirs = dict(
        zip(seqs[ranks == reference].tolist(), alignment.call[rows[ranks == reference]].tolist(), strict=True)
    )
    return any(mine[s] != theirs[s] for s in mine.keys() & theirs.keys())


# ---- all_to_all: sizes may differ, but what is sent must be what is received -----------------------------------------


def _first_bad_splits(alignment: Alignment, lane: Lane) -> Divergence | None:
    """An all_to_all in which the elements that all members send are not the elements that all members expect."""
    ops = alignment.job.ops
    names = ops.tables.names
    wanted = [i for i, name in enumerate(names) if name.startswith(("all_to_all", "alltoall"))]
    if not wanted:
        return None
    here = np.isin(ops.column("name")[lane.rows], wanted)
    if not here.any():
        return None
    members = len(lane.group.members or ())
    sent = _element_counts(alignment, lane.rows, "in_shapes")
    expected = _element_counts(alignment, lane.rows, "out_shapes")
    for index in range(len(lane.seqs)):
        part = slice(int(lane.starts[index]), int(lane.starts[index + 1]))
        if not here[part].all() or part.stop - part.start != members:
            continue
        if int(sent[part].sum()) == int(expected[part].sum()):
            continue
        rows = lane.rows[part]
        odd_rows = _odd_splits(sent[part], expected[part], rows)
        unknown, tied = not len(odd_rows), members == 2  # of two, both are the sides of it
        reference_rows = rows if unknown else np.setdiff1d(rows, odd_rows)
        base = _divergence(alignment, lane, index, rows if unknown else odd_rows, reference_rows, tied, None)
        odd = () if unknown and not tied else base.odd
        return replace(base, shape=Shape.OTHER_SPLITS, odd=odd, parted_at=None)
    return None


def _odd_splits(sent: Ints, expected: Ints, rows: Ints) -> Ints:
    """The members that differ from a clear majority. None where splits are ragged: then every size differs by design,
    and the recording holds the sums alone."""
    pairs = list(zip(sent.tolist(), expected.tolist(), strict=True))
    usual, count = Counter(pairs).most_common(1)[0]
    return rows[[p != usual for p in pairs]] if count * 2 > len(pairs) else rows[:0]


def _element_counts(alignment: Alignment, rows: Ints, column: str) -> Ints:
    tables = alignment.job.ops.tables
    ids = alignment.job.ops.column(column)[rows]
    distinct, inverse = np.unique(ids, return_inverse=True)
    counts = np.asarray(
        [sum(int(np.prod(s, dtype=np.int64)) for s in tables.shapes(int(i))) for i in distinct], dtype=np.int64
    )
    spread: Ints = counts[inverse.reshape(-1)]
    return spread
