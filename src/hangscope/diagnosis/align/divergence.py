"""Where members of one group disagree about what they run at one position of the sequence.

The majority is the reference, never the first file. A rank whose sequence fits again after a shift has skipped or added
calls, and the call that it skipped is named from the others' recordings.
"""

from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from hangscope.diagnosis.align.agreement import elements, is_exchange, members_not_recorded
from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.column_tools import Bools, Ints
from hangscope.diagnosis.align.lanes import Lane
from hangscope.model import GLOO_SIZE, Group, Operation, Operations

_AGREED_BEFORE = 16
_MANY_CALLS = 8
"""So many calls before show whether a call is ever made twice in a row."""
# The longest run of skipped or added calls that is looked for.
_SHIFT_MAX = 8


class Shape(Enum):
    OTHER_OPERATION = "another operation"
    OTHER_SIZE = "another size"
    OTHER_TYPE = "another data type"
    OTHER_SPLITS = "other split sizes"
    SKIPPED = "a call left out"
    ADDED = "a call too many"


@dataclass(frozen=True, slots=True)
class Divergence:
    """One disagreement: who differs from the rest, first at which position, and how.

    `odd` are the ranks that differ from the majority; where the sides are equal (`tied`), both; where nobody can say,
    none. `odd_row` and `reference_row` are rows of an odd rank and of the majority at the position. `calls`: rows of
    the calls that were left out (on a reference rank) or of the extra ones. `parted_at`: (odd rank's row, reference
    row) where the two code paths part: what each did instead of the other. `support`: how many later positions confirm
    a shift. `by_habit`: a call was left out, because the odd rank went on with what usually comes after it; `support`
    is then how many earlier rounds say so. `repeats`: a call seems left out, but the odd rank's call before was the
    same: it may have made that twice. `by_branch`: the sides are equal, and the odd one called what none had called
    before.
    """

    group: int
    seq: int
    shape: Shape
    odd: tuple[int, ...]
    tied: bool
    odd_row: int
    reference_row: int
    calls: tuple[int, ...] = ()
    parted_at: tuple[int, int] | None = None
    at_ns: int | None = None
    support: int = 0
    by_habit: bool = False
    repeats: bool = False
    by_branch: bool = False


def divergences(alignment: Alignment) -> list[Divergence]:
    """The first disagreement of every group, the earliest in time first."""
    found: list[Divergence] = []
    exchanges = alignment.index.named(is_exchange)
    for lane in alignment.lanes.values():
        first = _first(alignment, lane, exchanges)
        if first is None:
            continue
        # Different groups may hide behind one number; only if they agreed for long do they run in step.
        in_step = not first.tied and len(first.odd) < 2 and (lane.index_of(first.seq) or 0) >= _AGREED_BEFORE
        if in_step or not members_not_recorded(lane.group):
            found.append(first)
    return sorted(found, key=lambda d: (d.at_ns if d.at_ns is not None else 1 << 62, d.group, d.seq))


def _first(alignment: Alignment, lane: Lane, exchanges: Bools) -> Divergence | None:
    differs = _differing(lane, lane.signatures)
    before = int(differs[0]) if len(differs) else len(lane.seqs)
    candidates = (
        _at(alignment, lane, before) if len(differs) else None,
        _first_bad_splits(alignment, lane, exchanges[lane.rows]),
        _first_shift_by_stack(alignment, lane, before),
    )
    return min((d for d in candidates if d is not None), key=lambda d: d.seq, default=None)


def _differing(lane: Lane, ids: Ints) -> Ints:
    """The positions at which not all members have the same id."""
    starts = lane.starts[:-1]
    return np.flatnonzero(np.minimum.reduceat(ids, starts) != np.maximum.reduceat(ids, starts))


def _at(alignment: Alignment, lane: Lane, index: int) -> Divergence:
    """Judge one position at which signatures differ."""
    rows = lane.rows_at(index)
    signatures = lane.signatures_at(index)
    reference, tied = _majority(alignment, lane, index)
    agrees = signatures == reference
    found = _shifted(alignment, lane, index, _divergence(alignment, lane, index, rows[~agrees], rows[agrees], tied))
    apart = _unusual_side(alignment, lane, index) if found.tied and found.shape is Shape.OTHER_OPERATION else None
    if apart is not None:
        found = replace(_divergence(alignment, lane, index, *apart, tied=False), by_branch=True)
    return replace(found, repeats=_repeats(alignment, lane, index, found))


def other_calls(alignment: Alignment, lane: Lane, index: int) -> Bools:
    """For each row at one position whether its call is not the group's there; where two sides are equal, all."""
    signatures = lane.signatures_at(index)
    if np.all(signatures == signatures[0]):
        return np.zeros(len(signatures), dtype=bool)
    reference, tied = _majority(alignment, lane, index)
    found: Bools = (signatures != reference) | tied
    return found


def _majority(alignment: Alignment, lane: Lane, index: int) -> tuple[int, bool]:
    """The reference signature at one position, and whether the vote was a tie.

    A tie is broken by sibling groups that are at the same position, since they run the same line of code; and by ranks
    that Gloo ended over the size.
    """
    votes = Counter(lane.signatures_at(index).tolist())
    most = max(votes.values())
    top = [signature for signature, count in votes.items() if count == most]
    if len(top) == 1:
        return top[0], False
    beside = Counter[int]()
    for sibling in (other for other in alignment.lanes.values() if _are_siblings(lane.group, other.group)):
        place = sibling.index_of(int(lane.seqs[index]))
        if place is not None:
            beside.update(s for s in sibling.signatures_at(place).tolist() if s in top)
    beside.update(_ended_over_a_size(alignment, lane, index))
    best = beside.most_common(2)
    if best and (len(best) == 1 or best[0][1] > best[1][1]):
        return best[0][0], False
    return min(top), True


_OFTEN = 3


def _unusual_side(alignment: Alignment, lane: Lane, index: int) -> tuple[Ints, Ints] | None:
    """Of two equal sides the rows of the one that called what no member had called there before, and the other's, which
    called what every member had called, again and again. None where that does not tell them apart."""
    rows = lane.rows_at(index)
    ranks = alignment.job.ops.column("rank")
    names = alignment.job.ops.column("name")
    sides = np.unique(names[rows]).tolist()
    before = lane.rows[: lane.starts[index]]
    made = {side: [int(np.sum(names[before[ranks[before] == rank]] == side)) for rank in ranks[rows]] for side in sides}
    unusual = [side for side in sides if not any(made[side])]
    usual = [side for side in sides if min(made[side]) >= _OFTEN]
    if len(unusual) != 1 or len(usual) != 1 or len(sides) != 2:
        return None
    return rows[names[rows] == unusual[0]], rows[names[rows] == usual[0]]


def _are_siblings(one: Group, other: Group) -> bool:
    """Two groups of the same description and size, as the tensor groups of a mesh are."""
    alike = bool(one.desc) and one.desc == other.desc and one is not other
    return alike and len(one.members or ()) == len(other.members or ())


def _ended_over_a_size(alignment: Alignment, lane: Lane, index: int) -> list[int]:
    """How ranks that Gloo ended vote between two calls of different sizes, which others recorded at the position.

    It ends a rank that got more bytes than its own call asked for: that one passed less than somebody did, so of two
    sizes the smaller one.
    """
    job = alignment.job
    rows = lane.rows_at(index)
    recorded = set(job.ops.column("rank")[rows].tolist())
    members = lane.group.members or ()
    ended = {e.rank for e in job.facts.errors if e.type == GLOO_SIZE and e.rank in members} - recorded
    calls = lane.signatures_at(index).tolist()
    sizes = sorted(set(zip(job.ops.column("size_bytes")[rows].tolist(), calls, strict=True)))
    apart = len(sizes) == len(set(calls)) == 2 and 0 < sizes[0][0] < sizes[1][0]
    return [sizes[0][1]] * len(ended) if apart else []


def _divergence(
    alignment: Alignment, lane: Lane, index: int, odd_rows: Ints, reference_rows: Ints, tied: bool
) -> Divergence:
    ops = alignment.job.ops
    both = np.concatenate([odd_rows, reference_rows])
    odd = int(odd_rows[0])
    reference = int(reference_rows[0])
    created = ops.column("created_ns")[both]
    return Divergence(
        group=lane.group.index,
        seq=int(lane.seqs[index]),
        shape=_shape(ops[odd], ops[reference]),
        odd=tuple(np.unique(ops.column("rank")[both if tied else odd_rows]).tolist()),
        tied=tied,
        odd_row=odd,
        reference_row=reference,
        parted_at=(odd, reference),
        at_ns=min(created[created >= 0].tolist(), default=None),
    )


def _shape(odd: Operation, reference: Operation) -> Shape:
    if odd.name != reference.name:
        return Shape.OTHER_OPERATION
    if (odd.input_dtypes, odd.output_dtypes) != (reference.input_dtypes, reference.output_dtypes):
        return Shape.OTHER_TYPE
    return Shape.OTHER_SIZE


# ---- skipped and added calls -----------------------------------------------------------------------------------------


def _shifted(alignment: Alignment, lane: Lane, index: int, d: Divergence) -> Divergence:
    """The same as a call left out or added, if the odd ranks' sequence fits the reference again when moved by a few
    calls, and better than unmoved."""
    ranks, stack = (alignment.job.ops.column(c) for c in ("rank", "stack"))
    rows = lane.rows[lane.starts[index] :]
    theirs_at, mine_at = (np.flatnonzero(ranks[rows] == ranks[row]) for row in (d.reference_row, d.odd_row))
    theirs = rows[theirs_at]
    mine = rows[mine_at]
    with_stacks = bool(np.all(stack[theirs] != 0) and np.all(stack[mine] != 0))
    key = alignment.call[rows] if with_stacks else lane.signatures[lane.starts[index] :]
    a = key[mine_at].tolist()
    b = key[theirs_at].tolist()
    unmoved = sum(x == y for x, y in zip(a[1:], b[1:], strict=False))
    for count in range(1, _SHIFT_MAX + 1):
        left_out = _fits(a, b[count:])
        too_many = _fits(a[count:], b)
        if left_out > unmoved:
            return replace(d, shape=Shape.SKIPPED, calls=tuple(theirs[:count].tolist()), support=left_out)
        if too_many > unmoved:
            habit = _skipped_by_habit(alignment, lane, index, d, theirs)
            # Where the reference has not come to what the odd rank went on with, "left out" fits as well, and a rank
            # that makes its usual calls too early is a smaller surprise than one that makes them twice.
            added = replace(d, shape=Shape.ADDED, calls=tuple(mine[:count].tolist()), support=too_many)
            return habit if habit is not d and len(b) <= len(habit.calls) else added
    # Where the two agree again right after the position, one call differs and none was left out.
    agree_again = len(b) > 1 and a[1:2] == b[1:2]
    return _skipped_by_habit(alignment, lane, index, d, theirs) if with_stacks and not agree_again else d


def _repeats(alignment: Alignment, lane: Lane, index: int, d: Divergence) -> bool:
    """Whether one call seems left out, and the odd rank's call before was the one that it made instead: twice, as it
    never did in many calls before."""
    if d.shape is not Shape.SKIPPED or len(d.calls) != 1 or (d.support > 1 and not d.by_habit):
        return False
    ranks = alignment.job.ops.column("rank")
    before = lane.rows[: lane.starts[index]]
    own = before[ranks[before] == ranks[d.odd_row]]
    calls = alignment.call[own]
    here = int(alignment.call[d.odd_row])
    if len(calls) < _MANY_CALLS or int(calls[-1]) != here:
        return False
    return not bool(np.any((calls[1:] == here) & (calls[:-1] == here)))


def _skipped_by_habit(alignment: Alignment, lane: Lane, index: int, d: Divergence, theirs: Ints) -> Divergence:
    """The same as calls left out, if earlier rounds of the reference show the odd rank's call a few calls after."""
    ranks = alignment.job.ops.column("rank")
    odd_call = int(alignment.call[d.odd_row])
    missed = int(alignment.call[d.reference_row])
    rows = lane.rows[: lane.starts[index]]
    past = rows[ranks[rows] == ranks[d.reference_row]]
    calls = alignment.call[past].tolist()
    distances = Counter(
        count
        for at, call in enumerate(calls)
        if call == missed
        for count in range(1, _SHIFT_MAX + 1)
        if calls[at + count : at + count + 1] == [odd_call]
    )
    count = min(distances, default=0)
    if distances[count] < 2:
        return d
    at = max(i for i, call in enumerate(calls[:-count]) if call == missed and calls[i + count] == odd_call)
    now = theirs[:count]
    if alignment.call[now].tolist() != calls[at : at + len(now)]:
        now = theirs[:1]
    left_out = (*now.tolist(), *past[at + len(now) : at + count].tolist())
    return replace(d, shape=Shape.SKIPPED, calls=left_out, support=distances[count], by_habit=True)


def _fits(a: list[int], b: list[int]) -> int:
    """How many positions two sequences share if they agree wherever they overlap (twice, or once at an end)."""
    overlap = min(len(a), len(b))
    at_an_end = len(a) == 1 or len(b) == 1
    return overlap if a[:overlap] == b[:overlap] and (overlap > 1 or at_an_end) else 0


def _first_shift_by_stack(alignment: Alignment, lane: Lane, before: int) -> Divergence | None:
    """A shift that sizes do not show: same operation and size, but another line of code, and then always one off."""
    ops = alignment.job.ops
    if before == 0 or not np.all(ops.column("stack")[lane.rows]):
        return None  # a dump without stacks (JSON never has them) says nothing about lines
    ranks = ops.column("rank")
    for index in _differing(lane, alignment.call[lane.rows])[:16].tolist():
        rows = lane.rows_at(index)
        calls = alignment.call[rows]
        votes = Counter(calls.tolist()).most_common()
        if index >= before or votes[0][1] == votes[1][1]:
            return None
        odd_rows = rows[calls != votes[0][0]]
        reference_rows = rows[calls == votes[0][0]]
        base = _divergence(alignment, lane, index, odd_rows, reference_rows, tied=False)
        found = _shifted(alignment, lane, index, base)
        if found is base or (found.support < 3 and not _is_novel(alignment, lane, found)):
            return None
        # Those who have always come from different lines (rank 0 logs, a pipeline's first stage) are no shift.
        pair = int(ranks[base.odd_row]), int(ranks[base.reference_row])
        usual = came_from_elsewhere_before(alignment, lane, index, *pair)
        if not usual and len(odd_rows) <= len(reference_rows):
            return found
    return None


def _is_novel(alignment: Alignment, lane: Lane, d: Divergence) -> bool:
    """Whether the added call was never made by anyone else: then one later call that fits is enough."""
    if d.shape is not Shape.ADDED:
        return False
    ranks = alignment.job.ops.column("rank")
    first = d.calls[0]
    others = lane.rows[ranks[lane.rows] != ranks[first]]
    return not np.any(alignment.call[others] == alignment.call[first])


def came_from_elsewhere_before(alignment: Alignment, lane: Lane, index: int, odd: int, reference: int) -> bool:
    """Whether the two ranks came from different lines earlier too, without harm."""
    rows = lane.rows[: lane.starts[index]]
    ranks, seqs = (alignment.job.ops.column(c)[rows] for c in ("rank", "seq"))
    mine, theirs = (
        dict(zip(seqs[ranks == rank].tolist(), alignment.call[rows[ranks == rank]].tolist(), strict=True))
        for rank in (odd, reference)
    )
    return any(mine[s] != theirs[s] for s in mine.keys() & theirs.keys())


# ---- all_to_all: sizes may differ, but what is sent must be what is received -----------------------------------------


def _first_bad_splits(alignment: Alignment, lane: Lane, here: Bools) -> Divergence | None:
    """An all_to_all in which the elements that all members send are not the elements that all members expect."""
    ops = alignment.job.ops
    starts = lane.starts[:-1]
    if not here.any():
        return None
    members = len(lane.group.members or ())
    sent, expected = (_element_counts(ops, lane.rows, column) for column in ("in_shapes", "out_shapes"))
    whole = np.logical_and.reduceat(here, starts) & (np.diff(lane.starts) == members)
    wrong = np.flatnonzero(whole & (np.add.reduceat(sent - expected, starts) != 0))
    if not len(wrong):
        return None
    index = int(wrong[0])
    part = slice(int(lane.starts[index]), int(lane.starts[index + 1]))
    rows = lane.rows[part]
    odd_rows = _odd_splits(sent[part], expected[part], rows)
    # of two, both are the sides of it
    unknown = not len(odd_rows)
    tied = members == 2
    reference_rows = rows if unknown else np.setdiff1d(rows, odd_rows)
    base = _divergence(alignment, lane, index, rows if unknown else odd_rows, reference_rows, tied)
    odd = () if unknown and not tied else base.odd
    return replace(base, shape=Shape.OTHER_SPLITS, odd=odd, parted_at=None)


def _odd_splits(sent: Ints, expected: Ints, rows: Ints) -> Ints:
    """The members that differ from a clear majority. None where splits are uneven: then every size differs by design,
    and the recording holds the sums alone."""
    pairs = list(zip(sent.tolist(), expected.tolist(), strict=True))
    usual, count = Counter(pairs).most_common(1)[0]
    return rows[[p != usual for p in pairs]] if count * 2 > len(pairs) else rows[:0]


def _element_counts(ops: Operations, rows: Ints, column: str) -> Ints:
    distinct, inverse = np.unique(ops.column(column)[rows], return_inverse=True)
    counts = np.asarray([sum(elements(ops.tables.shapes(i))) for i in distinct.tolist()], dtype=np.int64)
    spread: Ints = counts[inverse.reshape(-1)]
    return spread
