"""Which rank is slow by itself, from durations alone: no two clocks are compared.

A collective that nobody leaves before all have come ends on all members at once. Between two such ends the same time
passes for everybody, and each rank spends it either inside operations, which the recorder timed, or on work of its own.
So a rank that was inside for less time than others who made the same calls took that much longer for its own work.
Where the waiting was done (in another group, in a receive, in a broadcast) does not matter, nor by which rank it was
passed on: who merely waits for a slow rank was inside as long as everybody else.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.column_tools import Bools, Floats, Ints, ids, runs, sort_by
from hangscope.diagnosis.align.lanes import Lane
from hangscope.model import UNKNOWN, Kind, State

# A group that spans this part of a rank's recording is enough to judge it by.
_COVERED = 0.8
_REPEATED = 3
_NEARLY_ALL = 0.8
# Less of the time than this is not worth a word.
_LEAST_SHARE = 0.01


class Bound(Enum):
    """What is known of a cost where others waited a little in many collectives."""

    EXACT = ""
    AT_LEAST = "at least"
    AT_MOST = "up to"


@dataclass(frozen=True, slots=True)
class OwnTime:
    """How much longer than its peers one rank took for its own work, over all stretches that could be compared.

    `steady`: extra time less what it took shorter elsewhere, as a share of both together: 1 where it was never quicker.
    `spread_ms`: how much its peers differ among themselves. `own_ms`: what they took for the same work. `span_ms`: the
    time that all stretches cover. `late`: in how many of them it was late, and `late_ms` by how much (median).
    `always`: whether it was late every time that it made the calls of the stretch where it lost most.

    `cost_ms`: what its peers lost by it. That can be less than the extra time: in a pipeline part of it fits into
    waiting that is there anyway; and where they wait in one call after the other from the same line (the buckets of
    DistributedDataParallel), these run beside computation, so that a small lateness is seen in each of them. There only
    what they usually waited in one collective counts. `waited_row`: a call of the collective where they waited most.
    `in_row`: whether it was mostly late in one call right after the other from the same line: if these run beside
    computation, one lateness is seen in each of them, and nothing says so. `peers`: how many it was compared with.
    """

    rank: int
    extra_ms: float
    steady: float
    spread_ms: float
    own_ms: float
    span_ms: float
    stretches: int
    late: int
    late_ms: float
    always: bool
    cost_ms: float
    waited_row: int
    bound: Bound
    in_row: bool
    peers: int


@dataclass(frozen=True, slots=True)
class _Stretches:
    """The stretches between two collectives of one group, one entry a rank that can be compared there.

    `begin` and `end` are rows of the two. Time inside operations, in ms: `inside` of the rank's peers (median), by how
    much the rank's own is less (`extra`), and how far apart its peers are (`spread`, quartiles). `calls` is what was
    called in between, as a number: the same for ranks of one role.
    """

    rank: Ints
    begin: Ints
    end: Ints
    inside: Floats
    extra: Floats
    spread: Floats
    peers: Ints
    calls: npt.NDArray[np.uint64]


def own_times(alignment: Alignment) -> list[OwnTime]:
    """What can be said of every rank, the slowest first. Each is judged by the one group that shows most of it."""
    ops = alignment.job.ops
    if not len(ops):
        return []
    recorded = np.bincount(ops.column("rank"))
    covered = np.zeros(len(recorded))
    judge = np.full(len(recorded), UNKNOWN)
    found: list[_Stretches] = []
    measure = _Measure(alignment)
    # Large groups first: they have the most peers, and mostly nothing is left for the others to say.
    for lane in sorted(alignment.lanes.values(), key=lambda lane: -len(lane.group.members or ())):
        members = np.unique(ops.column("rank")[lane.rows_at(len(lane.seqs) - 1)])
        if np.all(covered[members] >= _COVERED * recorded[members]):
            continue
        part = measure.stretches(lane)
        if part is None:
            continue
        here = np.bincount(part.rank, part.end - part.begin, minlength=len(recorded))
        better = here > 1.1 * covered
        judge[better] = len(found)
        covered[better] = here[better]
        found.append(part)
    result = [own for number, part in enumerate(found) for own in _summed(alignment, part, judge == number)]
    return sorted(result, key=lambda item: (-item.extra_ms, item.rank))


class _Measure:
    """Running totals over all rows, so that any stretch of a rank's recording is a difference of two of them."""

    def __init__(self, alignment: Alignment) -> None:
        self._ops = ops = alignment.job.ops
        duration = ops.columns["duration_ms"].astype(np.float64)
        timed = np.isfinite(duration)
        # Of a batch only the closing entry is timed.
        inner = (ops.column("batch") != UNKNOWN) & (ops.column("kind") != Kind.BATCH)
        self._inside = np.cumsum(np.where(timed, duration, 0.0))
        self._untimed = np.cumsum(~timed & ~inner)
        # Ranks that made the same calls in a stretch have the same work there. Sizes may differ with the data.
        which = ids(ops.column("name"), ops.column("stack"))
        numbers = np.random.default_rng(1).integers(1, 1 << 63, int(which.max()) + 1, dtype=np.uint64)
        self._calls = np.cumsum(numbers[which])
        self._meets = (ops.column("state") == State.COMPLETED) & alignment.symmetric

    def stretches(self, lane: Lane) -> _Stretches | None:
        """Between every two consecutive collectives of a group: each member beside those that made the same calls."""
        rank = self._ops.column("rank")
        seq = self._ops.column("seq")
        rows = np.sort(lane.rows[self._meets[lane.rows]])
        begin = rows[:-1]
        end = rows[1:]
        whole = (rank[begin] == rank[end]) & (self._untimed[begin] == self._untimed[end])
        begin = begin[whole]
        end = end[whole]
        inside = self._inside[end] - self._inside[begin]
        calls = self._calls[end] - self._calls[begin]
        order = np.lexsort((inside, calls, seq[begin], seq[end]))
        begin = begin[order]
        end = end[order]
        inside = inside[order]
        calls = calls[order]
        starts = runs(seq[begin], seq[end], calls)
        first = np.repeat(starts[:-1], np.diff(starts))
        size = np.repeat(np.diff(starts), np.diff(starts))
        some = size > 1
        if not some.any():
            return None
        place = (np.arange(len(order)) - first)[some]
        first = first[some]
        others = size[some] - 1

        def nth(n: Ints) -> Floats:
            """Of the peers' times inside, sorted and without the rank's own, the n-th."""
            values: Floats = inside[first + n + (n >= place)]
            return values

        usual = (nth((others - 1) // 2) + nth(others // 2)) / 2
        who = rank[end[some]].astype(np.int64)
        begin = begin[some]
        end = end[some]
        own = inside[some]
        spread = nth((3 * others - 1) // 4) - nth(others // 4)
        return _Stretches(who, begin, end, usual, usual - own, spread, others, calls[some])


def _summed(alignment: Alignment, part: _Stretches, judged: Bools) -> list[OwnTime]:
    """The sums over all stretches of those ranks that this group judges, where they are slower at all."""
    ops = alignment.job.ops
    # The CPU runs ahead of the GPU, but by no more at the end of a stretch than at its start, give or take.
    passed = (ops.column("created_ns")[part.end] - ops.column("created_ns")[part.begin]) / 1e6
    extra, either, spread, inside, span = (
        np.bincount(part.rank, values, minlength=len(judged))
        for values in (part.extra, np.abs(part.extra), part.spread, part.inside, passed)
    )
    result: list[OwnTime] = []
    order = sort_by(part.rank)
    places = np.searchsorted(part.rank[order], np.arange(len(judged) + 1))
    for rank in np.flatnonzero(judged & (extra > spread) & (extra > _LEAST_SHARE * span) & (span > 0)).tolist():
        mine = order[places[rank] : places[rank + 1]]
        total = float(extra[rank])
        late = _is_late(part.extra[mine])
        calls = part.calls[mine]
        costliest = calls == calls[np.argmax(part.extra[mine])]
        piped = bool(np.any(alignment.point_to_point[ops.span(rank)]))
        waited = (_waited_in_pipeline if piped else _waited_most)(alignment, part, mine[costliest])
        late_ms = float(np.median(part.extra[mine][late]))
        least = min(total, waited.ms * int(late.sum()))
        bounded = piped or waited.repeated
        in_row = _late_in_row(part, mine, late)
        bound = Bound.AT_LEAST if bounded and not in_row else Bound.AT_MOST
        result.append(
            OwnTime(
                rank=rank,
                extra_ms=total,
                steady=total / float(either[rank]),
                spread_ms=float(spread[rank]),
                own_ms=max(float(span[rank] - inside[rank]), 0.0),
                span_ms=float(span[rank]),
                stretches=len(mine),
                late=int(late.sum()),
                late_ms=min(late_ms, waited.ms) if waited.repeated else late_ms,
                always=bool(np.all(late[costliest])),
                cost_ms=least if bounded else total,
                waited_row=waited.row,
                bound=Bound.EXACT if least >= total / 2 and not in_row else bound,
                in_row=in_row,
                peers=int(part.peers[mine].max()),
            )
        )
    return result


def _late_in_row(part: _Stretches, mine: Ints, late: Bools) -> bool:
    """Whether a rank was mostly late in one call right after the other from the same line."""
    begin = part.begin[mine]
    end = part.end[mine]
    calls = part.calls[mine]
    single = late & (end - begin == 1)
    follows = single[1:] & single[:-1] & (begin[1:] == end[:-1]) & (calls[1:] == calls[:-1])
    return 2 * int(np.sum(follows)) >= int(late.sum())


class _WaitedMost(NamedTuple):
    """The collective where others waited most for a rank: by how much, a row of it, and whether nearly all of their
    waiting is in repeated calls from its line."""

    ms: float
    row: int
    repeated: bool


def _waited_most(alignment: Alignment, part: _Stretches, stretches: Ints) -> _WaitedMost:
    """Of all collectives in some stretches of one kind, by the median over the stretches and the mean over the others
    of the rank's role."""
    rank = int(part.rank[stretches[0]])
    begin = part.begin[stretches]
    end = part.end[stretches]
    role = np.unique(part.rank[np.isin(part.calls, part.calls[stretches])])
    longer = np.full((len(begin), int((end - begin).max())), np.nan)
    nobodys = [lane for lane in alignment.lanes.values() if lane.group.members is None]
    for lane in (*alignment.lanes_of.get(rank, ()), *nobodys):
        rows, by = _beside(alignment, lane, rank, role)
        stretch = np.searchsorted(begin, rows) - 1
        within = (stretch >= 0) & (rows <= end[stretch])
        longer[stretch[within], (rows - begin[stretch])[within] - 1] = by[within]
    seen = np.flatnonzero(np.isfinite(longer).all(axis=0))
    if not len(seen):
        return _WaitedMost(0.0, int(end[-1]), False)
    usual = np.maximum(np.median(longer[:, seen], axis=0), 0.0)
    most = int(np.argmax(usual))
    rows = begin[-1] + 1 + seen
    name = alignment.job.ops.column("name")[rows]
    stack = alignment.job.ops.column("stack")[rows]
    same = (name == name[most]) & (stack == stack[most])
    repeated = int(same.sum()) >= _REPEATED and float(usual[same].sum()) >= _NEARLY_ALL * float(usual.sum())
    return _WaitedMost(float(usual[most]), int(rows[most]), repeated)


def _waited_in_pipeline(alignment: Alignment, part: _Stretches, stretches: Ints) -> _WaitedMost:
    """The same for all that are connected by transfers: where a rank is late, a later stage waits."""
    ops = alignment.job.ops
    until = ops.column("seq")[part.end[stretches]]
    best = _waited_most(alignment, part, stretches)
    for other in _transfers_with(alignment, int(part.rank[stretches[0]])):
        its = np.flatnonzero((part.rank == other) & np.isin(ops.column("seq")[part.end], until))
        if len(its):
            kinds, counts = np.unique(part.calls[its], return_counts=True)
            best = max(best, _waited_most(alignment, part, its[part.calls[its] == kinds[np.argmax(counts)]]))
    return best


def _transfers_with(alignment: Alignment, rank: int) -> set[int]:
    """The other ranks of a pipeline: those with which a rank exchanges anything, directly or through others."""
    ops = alignment.job.ops
    found = {rank}
    todo = [rank]
    while todo:
        span = ops.span(todo.pop())
        ends = np.union1d(ops.column("source")[span], ops.column("destination")[span])
        new = set(ends[ends >= 0].tolist()) - found
        found |= new
        todo += new
    return found - {rank}


def _beside(alignment: Alignment, lane: Lane, rank: int, role: Ints) -> tuple[Ints, Floats]:
    """A rank's collectives of one group, and how much longer others of its role were inside than the rank (mean)."""
    ops = alignment.job.ops
    ranks = ops.column("rank")[lane.rows]
    duration = np.where(np.isin(ranks, role), ops.columns["duration_ms"][lane.rows].astype(np.float64), np.nan)
    timed = np.isfinite(duration)
    count, total = (np.add.reduceat(v, lane.starts[:-1]) for v in (timed.astype(float), np.nan_to_num(duration)))
    mine = np.flatnonzero(timed & (ranks == rank))
    which = np.searchsorted(lane.starts, mine, side="right") - 1
    mine = mine[count[which] > 1]
    which = which[count[which] > 1]
    return lane.rows[mine], (total[which] - duration[mine]) / (count[which] - 1) - duration[mine]


def waits_for(alignment: Alignment, rank: int, other: int) -> float:
    """How much longer a rank was inside the collectives that it has in common with another one, in ms."""
    both = np.asarray([rank, other])
    theirs = {id(lane) for lane in alignment.lanes_of.get(other, ())}
    lanes = [lane for lane in alignment.lanes_of.get(rank, ()) if id(lane) in theirs]
    lanes += [lane for lane in alignment.lanes.values() if lane.group.members is None]
    return -sum(float(_beside(alignment, lane, rank, both)[1].sum()) for lane in lanes)


def _is_late(extra: Floats) -> Bools:
    """The stretches that make up a rank's extra time: at least half as long as the one at the middle of all of it."""
    largest_first = np.sort(np.maximum(extra, 0.0))[::-1]
    gathered = np.cumsum(largest_first)
    middle = largest_first[np.searchsorted(gathered, gathered[-1] / 2)]
    found: Bools = extra >= middle / 2
    return found
