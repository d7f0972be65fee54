"""Which rows of a job come after the same calls, and what their ranks called next: a ballot, counted in columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.align.column_tools import Bools, Ints, runs, sort_by

Hashes = npt.NDArray[np.uint64]

_BASE = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD1342543DE82EF95)
_BACK = np.uint64(pow(int(_BASE), -1, 1 << 64))
_HIGH = np.uint64(48)


class Contexts:
    """Per row a hash of the calls before it, of any number of them: differences of one running sum."""

    def __init__(self, calls: Ints, starts: Ints) -> None:
        """`calls` are ids of the calls, `starts` where each rank's rows begin, and their number."""
        total = len(calls)
        self._place = np.arange(total) - np.repeat(starts[:-1], np.diff(starts))
        with np.errstate(over="ignore"):
            power, self._back = (
                np.cumprod(np.append(np.uint64(1), np.full(total, base, dtype=np.uint64)))[:-1]
                for base in (_BASE, _BACK)
            )
            self._sums = np.cumsum(np.append(np.uint64(0), (calls.astype(np.uint64) + np.uint64(1)) * _MIX * power))

    def of(self, length: int) -> Hashes:
        """0 where there are not so many calls before."""
        found = np.zeros(len(self._place), dtype=np.uint64)
        with np.errstate(over="ignore"):
            window = (self._sums[length:-1] - self._sums[: -length - 1]) * self._back[:-length]
        found[length:] = np.where(self._place[length:] >= length, window | np.uint64(1), np.uint64(0))
        return found


class Ballots:
    """Who votes on some rows: per context that they have, all rows of the job that have the same.

    Every rank has one vote, its newest call after the same calls; of the row's own rank, the newest before the row.
    Where no other rank has the context, all earlier rounds of the rank speak, if they are `rounds` at least and alike.
    `usual` are the rows whose call at least half of `least` voters or more made too; `unclear` the rest.
    """

    def __init__(self, hashes: Hashes, rows: Ints, ranks: Ints, calls: Ints, *, least: int, rounds: int) -> None:
        self._ranks = ranks
        self._calls = calls
        self._least = least
        self._rounds = rounds
        wanted = np.unique(hashes[rows][hashes[rows] != 0])
        same = np.flatnonzero(_among(hashes, wanted))
        context = np.searchsorted(wanted, hashes[same])
        order = sort_by(context)  # by rank and time within one context
        self._rows = same[order]
        context = context[order]
        # One run of owners: the rows of one rank in one context. The last of it is the rank's newest.
        self._owners = runs(context, ranks[self._rows])
        self._blocks = runs(context)
        self._newest = self._rows[self._owners[1:] - 1]
        self._first_owner = np.searchsorted(self._owners, self._blocks)
        asked = np.zeros(len(hashes), dtype=bool)
        asked[rows] = True
        at = np.flatnonzero(asked[self._rows])
        self._places = dict(zip(self._rows[at].tolist(), at.tolist(), strict=True))
        usual = self._is_usual(at, context)
        self.usual: set[int] = set(self._rows[at[usual]].tolist())
        self.unclear: list[int] = self._rows[at[~usual]].tolist()

    def _is_usual(self, at: Ints, context: Ints) -> Bools:
        """For places in `_rows`."""
        calls = self._calls
        rows = self._rows
        newest = self._newest
        block = context[at]
        owner = np.searchsorted(self._owners, at, side="right") - 1
        first = self._owners[owner]
        owners = np.diff(self._first_owner)
        call = calls[rows[at]]
        voters = owners[block] - 1 + (at > first)
        span = int(calls.max()) + 1
        votes = np.sort(np.repeat(np.arange(len(owners)), owners) * span + calls[newest])
        low, high = (np.searchsorted(votes, block * span + call, side=side) for side in ("left", "right"))
        agree = (high - low) - (calls[newest[owner]] == call) + ((at > first) & (calls[rows[at - 1]] == call))
        changes = np.cumsum(np.append(0, calls[rows[1:]] != calls[rows[:-1]])) if len(rows) else at
        alone = (owners[block] == 1) & (at - first >= self._rounds) & (changes[at] == changes[first])
        usual: Bools = alone | ((voters >= self._least) & (agree * 2 >= voters))
        return usual

    def voters(self, row: int) -> Ints | None:
        """The rows whose calls are the votes on an asked row, by rank; None where there are too few."""
        place = self._places[row]
        rank = int(self._ranks[row])
        block, owner = (int(np.searchsorted(s, place, side="right")) - 1 for s in (self._blocks, self._owners))
        before = self._rows[self._owners[owner] : place]
        low, high = self._first_owner[block : block + 2]
        newest = np.concatenate([self._newest[low:owner], before[-1:], self._newest[owner + 1 : high]])
        if len(newest) >= self._least:
            return newest
        same = self._rows[self._blocks[block] : self._blocks[block + 1]]
        others = same[(self._ranks[same] != rank) | (same < row)]
        alike = len(others) >= self._rounds and len(set(self._calls[others].tolist())) == 1
        return others if alike else None


def _among(hashes: Hashes, wanted: Hashes) -> Bools:
    """Which of many hashes are among a few, which are sorted."""
    near = np.zeros(1 << 16, dtype=bool)
    near[wanted >> _HIGH] = True
    found: Bools = near[hashes >> _HIGH]
    rows = np.flatnonzero(found)
    place = np.minimum(np.searchsorted(wanted, hashes[rows]), len(wanted) - 1)
    found[rows] = wanted[place] == hashes[rows] if len(rows) else False
    return found
