"""Whether one sequence of calls follows another at a distance: the same calls, so many numbers earlier or later.

Numbers of a group are positions here, and calls are ids; below 0 is a position of which nothing is known. A distance
says something only where it explains what differs without it: in a program whose calls all look alike, every distance
fits, and so nothing is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.align.column_tools import Bools, Ints

LEAST = 12
"""So many calls at least must differ in place, and agree at the distance: fewer are a disagreement, no shift."""
_ROUNDS = 3
# A shift lasts longer than one step: one call at least was made so often in it, or very many different ones were.
_MANY = 64
# How far away the same calls are looked for.
_FURTHEST = 512
# Calls that differ, from the end, by which distances worth trying are found.
_SAMPLES = 16
# Of each direction the nearest.
_TRIED = 12
# Of what a distance explains, so much may speak against it.
_AGAINST = 0.05
# What neither place nor distance explains (a line that only this rank has) may be so much of what is explained.
_ELSEWHERE = 0.5
# Two distances explain the same where one explains so much of what the other does: steps repeat themselves.
_AS_GOOD = 0.9
# So many calls in place, which a shift would not explain, show that there was none before.
_IN_PLACE = 3


@dataclass(frozen=True, slots=True)
class SequenceShift:
    """From position `start` on, what stands at a position stands in the reference `by` positions later.

    `by` above 0: as many calls were left out; below 0: as many were added. `explained`: so many calls differ in place
    and agree at the distance. `begins`: the positions before it agree in place, so that `start` is where it began.
    `other_way`: the distance in the other direction that fits as well, because steps repeat themselves.
    """

    start: int
    by: int
    explained: int
    begins: bool
    other_way: int | None = None


@dataclass(frozen=True, slots=True)
class _Fit:
    """One distance: from where on it holds, how much it explains, and how many calls at the start are found nowhere."""

    by: int
    start: int
    explained: int
    own: int
    begins: bool


def find_shift(own: Ints, reference: Ints) -> SequenceShift | None:
    """The distance at which a sequence follows the reference up to its end; None where it follows in place, where no
    distance explains the difference, or where that has not lasted."""
    fits = [fit for by in _distances(own, reference) if (fit := _fit(own, reference, by)) is not None]
    most = max((fit.explained for fit in fits), default=0)
    fits = [fit for fit in fits if fit.explained >= _AS_GOOD * most]
    if not fits:
        return None
    chosen = _likeliest(fits)
    others = [fit.by for fit in fits if (fit.by > 0) is not (chosen.by > 0) and not chosen.own]
    return SequenceShift(
        start=chosen.start,
        by=chosen.by,
        explained=chosen.explained,
        begins=chosen.begins,
        other_way=min(others, key=abs, default=None),
    )


def _likeliest(fits: list[_Fit]) -> _Fit:
    """A rank leaves calls out far more often than it makes its usual ones twice; unless the extra ones are there."""
    added = [fit for fit in fits if fit.by < 0 and fit.own == -fit.by]
    if added:
        return max(added, key=lambda fit: fit.by)
    return min(fits, key=lambda fit: (fit.by < 0, abs(fit.by)))


def _distances(own: Ints, reference: Ints) -> list[int]:
    """The distances at which most of the last calls that differ are found."""
    places = np.flatnonzero((own >= 0) & (reference >= 0) & (own != reference))
    if len(places) < LEAST:
        return []
    samples = places[-_SAMPLES:]
    found: Counter[int] = Counter()
    for place in samples.tolist():
        low = max(0, place - _FURTHEST)
        near = reference[low : place + _FURTHEST + 1]
        found.update((np.flatnonzero(near == own[place]) + low - place).tolist())
    # The last calls may differ before the reference has come as far: half of the samples are enough to try.
    wanted = sorted((by for by, count in found.items() if by and count * 2 >= len(samples)), key=abs)
    return [*[by for by in wanted if by > 0][:_TRIED], *[by for by in wanted if by < 0][:_TRIED]]


def _fit(own: Ints, reference: Ints, by: int) -> _Fit | None:
    """How well one distance explains the end of a sequence; None where it does not."""
    there = _moved(reference, by)
    known = (own >= 0) & (reference >= 0) & (there >= 0)
    in_place = known & (own == reference)
    at_distance = known & (own == there)
    gain = at_distance.astype(np.int64) - in_place
    from_here = np.cumsum(gain[::-1])[::-1]
    start = len(from_here) - 1 - int(np.argmax(from_here[::-1]))
    explained = (gain == 1) & (np.arange(len(gain)) >= start)
    count = int(explained.sum())
    against = int((gain[start:] == -1).sum())
    elsewhere = int((known & ~in_place & ~at_distance)[start:].sum())
    if count < LEAST or against > _AGAINST * count or elsewhere > _ELSEWHERE * count:
        return None
    if not _lasts(own, gain, explained):
        return None
    begins = _begins(gain, start)
    differs = known & ~in_place
    first = _first(differs, gain, start) if begins else start
    return _Fit(by, first, count, int((differs & ~at_distance)[first:start].sum()), begins)


def _moved(reference: Ints, by: int) -> Ints:
    """What stands in the reference so many positions later."""
    moved = np.full(len(reference), -1, dtype=np.int64)
    if by > 0:
        moved[:-by] = reference[by:]
    else:
        moved[-by:] = reference[:by]
    return moved


def _lasts(own: Ints, gain: Ints, explained: Bools) -> bool:
    """Whether it lasted for more than a step, and to the end."""
    calls = own[explained]
    most = int(np.unique(calls, return_counts=True)[1].max(initial=0))
    differing = gain[gain != 0]
    return (most >= _ROUNDS or len(calls) >= _MANY) and bool(np.all(differing[-LEAST:] == 1))


def _first(differs: Bools, gain: Ints, start: int) -> int:
    """The first call that differs after the last that shows no shift: calls that were added are found nowhere."""
    in_place = np.flatnonzero(gain[:start] == -1)
    after = int(in_place[-1]) + 1
    return after + int(np.argmax(differs[after : start + 1]))


def _begins(gain: Ints, start: int) -> bool:
    before = gain[:start]
    in_place = int((before == -1).sum())
    return in_place >= _IN_PLACE and int((before == 1).sum()) <= _AGAINST * in_place


# ---- what most do ----------------------------------------------------------------------------------------------------


def usual(calls: Ints) -> tuple[Ints, Bools]:
    """Of a table (a row a rank, a column a position) what most ranks have at each position, and where two sides have
    as many. Below 0 where there is none, or nobody to compare with."""
    present = calls >= 0
    count = present.sum(axis=0)
    highest = calls.max(axis=0, initial=-1)
    lowest = np.where(present, calls, np.iinfo(np.int64).max).min(axis=0, initial=np.iinfo(np.int64).max)
    found = np.where((count > 1) & (lowest == highest), highest, -1)
    tied = np.zeros(len(found), dtype=bool)
    differ = np.flatnonzero((count > 1) & (lowest != highest))
    if len(differ):
        found[differ], tied[differ] = _most_frequent(np.sort(calls[:, differ], axis=0))
    return found, tied


def _most_frequent(in_order: Ints) -> tuple[Ints, Bools]:
    """The value that is there most often in each column, -1 where several are; and whether several are."""
    run = np.zeros(in_order.shape[1], dtype=np.int64)
    best = np.zeros_like(run)
    value = np.full_like(run, -1)
    several = np.zeros(len(run), dtype=bool)
    for at, row in enumerate(in_order):
        same = row == in_order[at - 1] if at else np.zeros(len(run), dtype=bool)
        run = np.where(row < 0, 0, np.where(same, run + 1, 1))
        more = run > best
        several = np.where(more, False, several | ((run == best) & (run > 0)))
        value = np.where(more, row, value)
        best = np.where(more, run, best)
    several = several | (best < 2)
    return np.where(several, -1, value), several


def two_sides(calls: Ints) -> Iterator[tuple[Ints, Ints]]:
    """The rows of a table as two sides of the same size that each agree; nothing where there are no such two."""
    rows = np.flatnonzero((calls >= 0).any(axis=1))
    if len(rows) < 2 or len(rows) % 2:
        return
    here = np.array([_alike(calls[rows[0]], calls[row]) for row in rows])
    one = rows[here]
    other = rows[~here]
    if len(one) == len(other) and all(_alike(calls[other[0]], calls[row]) for row in other):
        yield one, other


def _alike(one: Ints, other: Ints) -> bool:
    known = (one >= 0) & (other >= 0)
    return bool(known.any()) and int((one != other)[known].sum()) <= _AGAINST * int(known.sum())
