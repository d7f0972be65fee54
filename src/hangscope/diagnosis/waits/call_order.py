"""The majority's call order, and who is the outlier: a call that nobody makes after the same calls before it.

Training repeats itself: the ranks of one role make the same calls in the same order, step after step. A call is an
outlier if, after the longest run of preceding calls that is found elsewhere too, most others went on differently. No
clock, sequence number or member list is needed, so it also tells who started a wait cycle over many groups.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.ballots import Ballots, Contexts
from hangscope.diagnosis.align.column_tools import Ints, ids
from hangscope.diagnosis.waits.progress import Progress
from hangscope.model import UNKNOWN, Group, Kind, Operations

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
    other_ranks: int = 0
    """Of those ranks, how many are others."""

    @property
    def few_votes(self) -> bool:
        return self.votes < _MANY_VOTES


def outliers(progress: Progress, ranks: list[int], among: int) -> dict[int, Outlier]:
    """Of some ranks the unfinished, or last, call that is unusual. None if that were most of `among` ranks."""
    candidates: dict[int, Ints] = {}
    for rank in ranks:
        # What it has not finished, and its last calls before that.
        mine = progress.of[rank]
        part = progress.job.ops.span(rank)
        unfinished = [row for unit in (*mine.inside, *mine.queued) for row in unit.rows]
        candidates[rank] = np.arange(max(part.start, min([*unfinished, part.stop]) - _CALLS_BEFORE), part.stop)
    found = _outliers(progress.alignment, candidates)
    return found if len(found) * 2 <= among else {}  # usual is what most do


def _outliers(alignment: Alignment, candidates: dict[int, Ints]) -> dict[int, Outlier]:
    """For each rank the first of its candidate rows that is unusual, if there is one."""
    if not candidates or not len(alignment.job.ops):
        return {}
    ops = alignment.job.ops
    calls = _calls(alignment)
    starts = alignment.index.starts
    contexts = Contexts(calls, starts)
    left = np.concatenate(list(candidates.values()))
    found: dict[int, Outlier] = {}
    for length in _CONTEXTS:
        hashes = contexts.of(length)
        ballots = Ballots(hashes, left, ops.column("rank"), calls, least=_LEAST_VOTES, rounds=_LEAST_ROUNDS)
        judged = ballots.usual
        for row in ballots.unclear:
            voters = ballots.voters(row)
            if voters is not None:
                judged.add(row)
                found.update((row, outlier) for outlier in _unusual(ops, row, voters, calls))
        left = left[~np.isin(left, list(judged))]
    odd = {rank: [found[row] for row in rows.tolist() if row in found] for rank, rows in candidates.items()}
    plain = _calls(alignment, lines=False) if found else calls
    return {rank: replace(o[0], sort=_sort(alignment, plain, o[0])) for rank, o in odd.items() if o}


def _sort(alignment: Alignment, calls: Ints, outlier: Outlier) -> Sort:
    """Tell a call too many from one left out, and both from two that changed places (whatever line they are on)."""
    ops = alignment.job.ops
    after = calls[outlier.row + 1 : ops.span(outlier.rank).stop]
    usual_rank = int(ops.column("rank")[outlier.usual_row])
    usual = int(calls[outlier.usual_row])
    call = int(calls[outlier.row])
    if usual in after[:_CALLS_AFTER]:
        return Sort.ORDER
    # What follows the usual call, there or in any earlier round of that rank.
    part = ops.span(usual_rank)
    stop = outlier.row if usual_rank == outlier.rank else part.stop
    rounds = np.flatnonzero(calls[part.start : stop] == usual) + part.start
    if not any(call in calls[row + 1 : min(row + 1 + _CALLS_AFTER, stop)] for row in rounds.tolist()):
        return Sort.EXTRA
    return Sort.SKIPPED if len(after) else Sort.ORDER


def _unusual(ops: Operations, row: int, voters: Ints, calls: Ints) -> Iterator[Outlier]:
    """A call that is not as most voters went on, by a rank that makes the usual one elsewhere."""
    rank = int(ops.column("rank")[row])
    votes = Counter(calls[voters].tolist())
    start = ops.span(rank).start
    (usual, count), *others_called = votes.most_common(2)
    if others_called and others_called[0][1] == count:
        return  # which of two is usual would be decided by the ranks' numbers
    own = np.flatnonzero(calls[start:row] == usual)
    # Who never makes that call has another role than those who do.
    if votes[int(calls[row])] * 2 < len(voters) and len(own):
        fitting = voters[calls[voters] == usual]
        foreign = fitting[ops.column("rank")[fitting] != rank]
        usual_row = int((foreign if len(foreign) else fitting)[0])
        others = len(set(ops.column("rank")[foreign].tolist()))
        yield Outlier(rank, row, usual_row, int(own[-1]) + start, count, other_ranks=others)


def _calls(alignment: Alignment, *, lines: bool = True) -> Ints:
    """Per row an id of the call as every rank of one role makes it: operation, kind of group, distance of the peer,
    and line.

    Sizes count only where there are no lines: batches of text are longer or shorter from rank to rank.
    """
    job = alignment.job
    ops = alignment.job.ops
    kinds: dict[object, int] = {}
    group_kind = np.asarray([kinds.setdefault(_kind_of(group), len(kinds)) for group in job.groups] or [0])
    stack = ops.column("stack") * lines
    kind = ops.column("kind")
    peer = np.where(kind == Kind.SEND, ops.column("destination"), ops.column("source"))
    distance = np.where(np.isin(kind, (Kind.SEND, Kind.RECV)) & (peer != UNKNOWN), peer - ops.column("rank"), 0)
    sizes = np.where(stack == 0, alignment.signature, 0)
    return ids(ops.column("name"), group_kind[ops.column("group")], stack, sizes, kind, distance)


def _kind_of(group: Group) -> object:
    """What groups of one kind have in common: description but for numbers, size and the distance of their members."""
    members = group.members or ()
    return re.sub(r"\d+", "#", group.desc), len(members), members[1] - members[0] if len(members) > 1 else 0
