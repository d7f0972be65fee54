"""Small tools for whole columns, and for lists, that several modules use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hangscope.model import Operations

K = TypeVar("K")
V = TypeVar("V")

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


def runs(*columns: npt.NDArray[np.generic]) -> Ints:
    """Where runs of equal values begin in columns that are read together; their length is the last entry."""
    total = len(columns[0])
    changed = np.zeros(max(total - 1, 0), dtype=bool)
    for column in columns:
        changed |= column[1:] != column[:-1]
    return np.concatenate([np.zeros(min(total, 1), dtype=np.int64), np.flatnonzero(changed) + 1, [total]])


def rows_of(ops: Operations, rank: int, **wanted: int) -> Ints:
    """The rows of one rank that have these values in these columns."""
    part = ops.span(rank)
    hits = np.ones(part.stop - part.start, dtype=bool)
    for name, value in wanted.items():
        hits &= ops.column(name)[part] == value
    rows: Ints = np.flatnonzero(hits) + int(part.start)
    return rows


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Key → all of its values, both in the order in which they come."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
