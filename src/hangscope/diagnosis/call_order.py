"""The majority's call order, and who is the outlier: a call that nobody makes after the same calls before it.

Training repeats itself: the ranks of one role make the same calls in the same order, step after step. A call is an
outlier if, after the longest run of preceding calls that is found elsewhere too, most others went on differently. No
clock, sequence number or member list is needed, so it also tells who started a wait cycle over many groups.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from hangscope.columns import Ints, ids, runs
from hangscope.diagnosis.align import Alignment
from hangscope.diagnosis.progress import Progress
from hangscope.model import UNKNOWN, Group, Kind

Hashes = npt.NDArray[np.uint64]

# How many preceding calls have to be the same, the longest first.
_CONTEXTS = (64, 32, 16, 8, 4)
_LEAST_VOTES = 2
_MANY_VOTES = 3
# How many earlier rounds, all alike, make the habit of a rank that is alone in its role.
_LEAST_ROUNDS = 3
# How many finished calls before the first unfinished one are looked at: a small send may finish all the same, and a
# group swallows a skip until it runs out of calls.
_CALLS_BEFORE = 32
# How far behind the usual call another one may come and still be the next thing to do.
_CALLS_AFTER = 16
_BASE = np.uint64(0x9E3779B97F4A7C15)


class Sort(Enum):
    """What an outlier did with the usual call."""

    ORDER = "the usual call comes later, or may yet"
    SKIPPED = "the usual call was left out"
    EXTRA = "a call that does not belong there"


@dataclass(frozen=True, slots=True)
class Outlier:
    """One unusual call, and what the others called there.

    `own_row` is the rank's own last call of the usual kind: it says which of its own groups was due. `votes`: how many
    ranks (its own earlier rounds count as one), or of its own rounds, went on like `usual_row`.
    """

    rank: int
    row: int
    usual_row: int
    own_row: int
    votes: int
    sort: Sort = Sort.ORDER

    @property
    def few_votes(self) -> bool:
        return self.votes < _MANY_VOTES


def outliers(progress: Progress, ranks: list[int], among: int) -> dict[int, Outlier]:
    """Of some ranks the unfinished, or last, call that is unusual. None if that were most of `among` ranks."""
    candidates: dict[int, Ints] = {}
    for rank in ranks:
        # What it has not finished, and its last calls before that.
        mine, part = progress.of[rank], progress.job.ops.span(rank)
        unfinished = [row for unit in (*mine.inside, *mine.queued) for row in unit.rows]
        candidates[rank] = np.arange(max(part.start, min([*unfinished, part.stop]) - _CALLS_BEFORE), part.stop)
    found = _outliers(progress.alignment, candidates)
    return found if len(found) * 2 <= among else {}  # usual is what most do


def _outliers(alignment: Alignment, candidates: dict[int, Ints]) -> dict[int, Outlier]:
    """For each rank the first of its candidate rows that is unusual, if there is one."""
    ops = alignment.job.ops
    if not len(ops):
        return {}
    calls, ranks = _calls(alignment), ops.column("rank").astype(np.int64)
    judged: dict[int, Outlier | None] = {}
    for hashes in _contexts(calls, ranks):
        order = np.argsort(hashes, kind="stable")  # by rank and time within one context
        sorted_hashes = hashes[order]
        for rank, row in ((rank, row) for rank, rows in candidates.items() for row in rows.tolist()):
            if row in judged or hashes[row] == 0:
                continue
            low, high = np.searchsorted(sorted_hashes, [hashes[row], hashes[row] + np.uint64(1)])
            vote = _vote(row, rank, row - ops.span(rank).start, order[low:high], ranks, calls)
            if vote is not None:
                judged[row] = vote if isinstance(vote, Outlier) else None
    odd = {rank: [o for row in rows.tolist() if (o := judged.get(row))] for rank, rows in candidates.items()}
    plain = _calls(alignment, lines=False) if any(odd.values()) else calls
    return {rank: replace(o[0], sort=_sort(alignment, plain, o[0])) for rank, o in odd.items() if o}


def _sort(alignment: Alignment, calls: Ints, outlier: Outlier) -> Sort:
    """Tell a call too many from one left out, and both from two that changed places (whatever line they are on)."""
    ops = alignment.job.ops
    after = calls[outlier.row + 1 : ops.span(outlier.rank).stop]
    usual_rank = int(ops.column("rank")[outlier.usual_row])
    usual, call = int(calls[outlier.usual_row]), int(calls[outlier.row])
    if usual in after[:_CALLS_AFTER]:
        return Sort.ORDER
    # What follows the usual call, there or in any earlier round of that rank.
    part = ops.span(usual_rank)
    stop = outlier.row if usual_rank == outlier.rank else part.stop
    rounds = np.flatnonzero(calls[part.start : stop] == usual) + part.start
    if not any(call in calls[row + 1 : min(row + 1 + _CALLS_AFTER, stop)] for row in rounds.tolist()):
        return Sort.EXTRA
    return Sort.SKIPPED if len(after) else Sort.ORDER


def _vote(row: int, rank: int, place: int, same: Ints, ranks: Ints, calls: Ints) -> Outlier | bool | None:
    """One vote a rank: its newest call after the same calls. None: too few; False: as usual.

    `place` is how many calls of the rank are kept before this one.
    """
    others = same[(ranks[same] != rank) | (same < row)]
    if not len(others):
        return None
    newest = others[np.append(ranks[others][1:] != ranks[others][:-1], True)]
    if len(newest) < _LEAST_VOTES:
        if len(others) < _LEAST_ROUNDS or len(set(calls[others].tolist())) > 1:
            return None
        newest = others  # nobody else has its role: all of its own earlier rounds speak
    votes = Counter(calls[newest].tolist())
    if votes[int(calls[row])] * 2 >= len(newest):
        return False
    usual, count = votes.most_common(1)[0]
    own = np.flatnonzero(calls[row - place : row] == usual)
    if not len(own):
        return False  # it never makes that call: it has another role than those who do
    fitting = newest[calls[newest] == usual]
    foreign = fitting[ranks[fitting] != rank]
    usual_row = int((foreign if len(foreign) else fitting)[0])
    return Outlier(rank, row, usual_row, int(own[-1]) + row - place, count)


def _contexts(calls: Ints, ranks: Ints) -> list[Hashes]:
    """Per row a hash of the calls before it, for every length of context; 0 where there are not so many."""
    total = len(calls)
    starts = runs(ranks)
    place = np.arange(total) - np.repeat(starts[:-1], np.diff(starts))
    with np.errstate(over="ignore"):
        window = np.zeros(total, dtype=np.uint64)
        window[1:] = (calls[:-1].astype(np.uint64) + np.uint64(1)) * _BASE
        found: dict[int, Hashes] = {}
        length, power = 1, _BASE
        while length <= _CONTEXTS[0]:
            found[length] = np.where(place >= length, window | np.uint64(1), np.uint64(0))
            shifted = np.zeros(total, dtype=np.uint64)
            shifted[length:] = window[:-length]
            window = window + shifted * power * np.uint64(31)
            length, power = 2 * length, power * power
    return [found[length] for length in _CONTEXTS]


def _calls(alignment: Alignment, *, lines: bool = True) -> Ints:
    """Per row an id of the call as every rank of one role makes it: operation, kind of group, distance of the peer,
    and line.

    Sizes count only where there are no lines: batches of text are longer or shorter from rank to rank.
    """
    job, ops = alignment.job, alignment.job.ops
    kinds: dict[object, int] = {}
    group_kind = np.asarray([kinds.setdefault(_kind_of(group), len(kinds)) for group in job.groups] or [0])
    stack, kind = ops.column("stack") * lines, ops.column("kind")
    peer = np.where(kind == Kind.SEND, ops.column("destination"), ops.column("source"))
    distance = np.where(np.isin(kind, (Kind.SEND, Kind.RECV)) & (peer != UNKNOWN), peer - ops.column("rank"), 0)
    sizes = np.where(stack == 0, alignment.signature, 0)
    return ids(ops.column("name"), group_kind[ops.column("group")], stack, sizes, kind, distance)


def _kind_of(group: Group) -> object:
    """What groups of one kind have in common: description but for numbers, size and the distance of their members."""
    members = group.members or ()
    return re.sub(r"\d+", "#", group.desc), len(members), members[1] - members[0] if len(members) > 1 else 0
