"""The sends and receives of all ranks, by who recorded them, their two ends and their group."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from hangscope.diagnosis.align.column_tools import Ints, runs, sort_by
from hangscope.model import UNKNOWN, Kind, Operations

_SEND = int(Kind.SEND)
_RECV = int(Kind.RECV)
_KEYS = ("rank", "kind", "source", "destination", "group")


class Transfers:
    """Made once: thousands of ranks of a pipeline wait in sends and receives, and each asks for two lists of them."""

    def __init__(self, ops: Operations) -> None:
        kind = ops.column("kind")
        rows = np.flatnonzero((kind == _SEND) | (kind == _RECV))
        self._rows: Ints = rows[sort_by(*(ops.column(name)[rows] for name in _KEYS))]
        columns = [ops.column(name)[self._rows] for name in _KEYS]
        starts = runs(*columns)
        keys = zip(*(column[starts[:-1]].tolist() for column in columns), strict=True)
        self._places: dict[tuple[int, ...], tuple[int, int]] = dict(zip(keys, pairwise(starts.tolist()), strict=True))

    def of(self, owner: int, source: int, destination: int, group: int) -> Ints:
        """`owner`'s rows that carry data from one rank to another: its sends or its receives, as recorded."""
        return self._side(owner, _SEND if owner == source else _RECV, source, destination, group)

    def _side(self, owner: int, kind: int, source: int, destination: int, group: int) -> Ints:
        start, stop = self._places.get((owner, kind, source, destination, group), (0, 0))
        return self._rows[start:stop]

    def both_sides(self) -> Iterator[tuple[int, int, Ints, Ints]]:
        """(sender, receiver, its sends, the other's receives), for every two ranks and group whose ends are known."""
        for owner, kind, source, destination, group in self._places:
            if kind == _SEND and UNKNOWN not in (source, destination):
                sends = self._side(owner, _SEND, source, destination, group)
                yield source, destination, sends, self._side(destination, _RECV, source, destination, group)
