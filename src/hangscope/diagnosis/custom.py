"""Who did something else than is done there: a call that nobody, itself included, makes after the same calls before it.

Training repeats itself: the ranks of one role make the same calls in the same order, step after step. A call is out of
custom if, after the longest run of preceding calls that is found elsewhere too, most others went on differently. No
clock, sequence number or member list is needed, so it also tells who started a knot of waits over many groups.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.align import Alignment, Ints, paired
from hangscope.diagnosis.standing import Standings
from hangscope.model import UNKNOWN, Group, Kind

Hashes = npt.NDArray[np.uint64]

_CONTEXTS = (64, 32, 16, 8, 4)
"""How many preceding calls have to be the same, the longest first."""
_LEAST_VOTES = 2
_SURE_VOTES = 3
_LEAST_ROUNDS = 3
"""How many earlier rounds, all alike, make the custom of a rank that is alone in its role."""
_CALLS_BEFORE = 32
"""How many finished calls before the first unfinished one are looked at: a small send may finish all the same, and a
group swallows a skip until it runs out of calls."""
_CALLS_AFTER = 16
"""How far behind the usual call another one may come and still be the next thing to do."""
_BASE = np.uint64(0x9E3779B97F4A7C15)


class Sort(Enum):
    """What kind of step out of custom it is."""

    ORDER = "the usual call comes later, or may yet"
    SKIPPED = "the usual call was left out"
    EXTRA = "a call that does not belong there"


@dataclass(frozen=True, slots=True)
class Departure:
    """One call out of custom, and what the others called there."""

    rank: int
    row: int
    usual_row: int
    own_row: int
    """The rank's own last call of the usual kind: it says which of its own groups was due."""
    votes: int
    """How many ranks (its own earlier rounds count as one), or of its own rounds, went on like `usual_row`."""
    sort: Sort = Sort.ORDER

    @property
    def sure(self) -> bool:
        return self.votes >= _SURE_VOTES


def departures(standings: Standings, ranks: list[int], among: int) -> dict[int, Departure]:
    """Of some ranks the unfinished, or last, call that is out of custom. None if that were most of `among` ranks."""
    candidates = {rank: rows for rank in ranks if len(rows := _recent(standings, rank))}
    found = _departures(standings.alignment, candidates)
    return found if len(found) * 2 <= among else {}  # custom is what most do


def _recent(standings: Standings, rank: int) -> Ints:
    """What a rank has not finished, and its last calls before that."""
    standing = standings.of[rank]
    unfinished = [row for unit in (*standing.inside, *standing.queued) for row in unit.rows]
    part = standings.job.ops.span(rank)
    return np.arange(max(part.start, min(unfinished, default=part.stop) - _CALLS_BEFORE), part.stop)


def _departures(alignment: Alignment, candidates: dict[int, Ints]) -> dict[int, Departure]:
    """For each rank the first of its candidate rows that is out of custom, if there is one."""
    ops = alignment.job.ops
    found: dict[int, Departure] = {}
    if not len(ops):
        return found
    calls = _calls(alignment)
    ranks = ops.column("rank").astype(np.int64)
    judged: dict[int, Departure | None] = {}
    for hashes in _contexts(calls, ranks):
        order = np.argsort(hashes, kind="stable")  # by rank and time within one context
        sorted_hashes = hashes[order]
        for rank, rows in candidates.items():
            kept_from = ops.span(rank).start
            for row in rows.tolist():
                if row in judged or hashes[row] == 0:
                    continue
                low, high = np.searchsorted(sorted_hashes, [hashes[row], hashes[row] + np.uint64(1)])
                vote = _vote(row, rank, row - kept_from, order[low:high], ranks, calls)
                if vote is not None:
                    judged[row] = vote if isinstance(vote, Departure) else None
    plain: Ints | None = None
    for rank, rows in candidates.items():
        odd = [departure for row in rows.tolist() if (departure := judged.get(row)) is not None]
        if odd:
            plain = _calls(alignment, lines=False) if plain is None else plain
            found[rank] = replace(odd[0], sort=_sort(alignment, plain, odd[0]))
    return found


def _sort(alignment: Alignment, calls: Ints, departure: Departure) -> Sort:
    """Tell a call too many from one left out, and both from two that changed places (whatever line they are on)."""
    ops = alignment.job.ops
    after = calls[departure.row + 1 : ops.span(departure.rank).stop]
    usual_rank = int(ops.column("rank")[departure.usual_row])
    usual, call = int(calls[departure.usual_row]), int(calls[departure.row])
    if usual in after[:_CALLS_AFTER]:
        return Sort.ORDER
    # What follows the usual call, there or in any earlier round of that rank.
    part = ops.span(usual_rank)
    stop = departure.row if usual_rank == departure.rank else part.stop
    rounds = np.flatnonzero(calls[part.start : stop] == usual) + part.start
    due = any(call in calls[row + 1 : min(row + 1 + _CALLS_AFTER, stop)] for row in rounds.tolist())
    if not due:
        return Sort.EXTRA
    return Sort.SKIPPED if len(after) else Sort.ORDER


def _vote(row: int, rank: int, place: int, same: Ints, ranks: Ints, calls: Ints) -> Departure | bool | None:
    """One vote a rank: its newest call after the same calls. None: too few; False: as is the custom.

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
    return Departure(rank, row, usual_row, int(own[-1]) + row - place, count)


def _contexts(calls: Ints, ranks: Ints) -> list[Hashes]:
    """Per row a hash of the calls before it, for every length of context; 0 where there are not so many."""
    total = len(calls)
    start = np.zeros(total, dtype=np.int64)
    first = np.flatnonzero(np.append(True, np.diff(ranks) != 0))
    start[first] = first
    place = np.arange(total) - np.maximum.accumulate(start)
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
    stack = ops.column("stack").astype(np.int64) * lines
    rank = ops.column("rank").astype(np.int64)
    peers = np.isin(ops.column("kind"), (Kind.SEND, Kind.RECV))
    source, destination = ops.column("source").astype(np.int64), ops.column("destination").astype(np.int64)
    peer = np.where(ops.column("kind") == Kind.SEND, destination, source)
    parts = [
        ops.column("name").astype(np.int64),
        group_kind[ops.column("group")].astype(np.int64),
        stack,
        np.where(stack == 0, alignment.signature, 0),
        ops.column("kind").astype(np.int64),
        np.where(peers & (peer != UNKNOWN), peer - rank, 0),
    ]
    calls = parts[0]
    for part in parts[1:]:
        calls = paired(calls, part - int(part.min()))
    return calls


def _kind_of(group: Group) -> object:
    """What groups of one kind have in common: description but for numbers, size and the distance of their members."""
    members = group.members or ()
    return re.sub(r"\d+", "#", group.desc), len(members), members[1] - members[0] if len(members) > 1 else 0
