"""Tools for whole columns of operations, and for lists, that several modules use.

Rows are numbered and sorted by counting, because the values are small: the cost is linear in the operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hangscope.model import Operations

K = TypeVar("K")
V = TypeVar("V")

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

_SPARE = 4
"""A table of all possible values may be this many times as long as the columns; beyond that they are sorted."""
_SMALL = 1 << 16
_HALF = 1 << 31
_WHOLE = 1 << 62
"""Two values below the first fit into one number, one below the second; what a damaged dump holds may be larger."""


def runs(*columns: npt.NDArray[np.generic]) -> Ints:
    """Where runs of equal values begin in columns that are read together; their length is the last entry."""
    total = len(columns[0])
    changed = np.zeros(max(total - 1, 0), dtype=bool)
    for column in columns:
        changed |= column[1:] != column[:-1]
    return np.concatenate([np.zeros(min(total, 1), dtype=np.int64), np.flatnonzero(changed) + 1, [total]])


def ids(*columns: Ints) -> Ints:
    """Per row a small id of its values in all columns together, in the order of the values."""
    if not len(columns[0]):
        return columns[0].astype(np.int64)
    found, size = _from_zero(columns[0], _HALF)
    for column in columns[1:]:
        values, span = _from_zero(column, _HALF)
        if span == 1:
            continue
        if size * span > _limit(found):
            found, size = _numbered(found, size)
        found *= span
        found += values
        size *= span
    return _numbered(found, size)[0]


def _from_zero(column: Ints, most: int) -> tuple[Ints, int]:
    """The values counted from the smallest, in their order, and how many there may be: at most `most`, or the rows."""
    low = int(column.min())
    span = int(column.max()) - low + 1
    if span > most:
        distinct, places = np.unique(column, return_inverse=True)
        return places.reshape(-1).astype(np.int64), len(distinct)
    values = column.astype(np.int64)
    values -= low
    return values, span


def _limit(keys: Ints) -> int:
    return _SPARE * len(keys) + _SMALL


def _numbered(keys: Ints, size: int) -> tuple[Ints, int]:
    """Keys below `size` as numbers without holes, and how many there are."""
    if size > _limit(keys):
        order = sort_by(keys)
        starts = runs(keys[order])
        found = np.empty(len(keys), dtype=np.int64)
        found[order] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        return found, len(starts) - 1
    seen = np.zeros(size, dtype=bool)
    seen[keys] = True
    numbers = np.cumsum(seen, dtype=np.int64) - 1
    return numbers[keys], int(numbers[-1]) + 1


def sort_by(*columns: Ints) -> Ints:
    """Row numbers in the order of the first column, then the second, …; equal rows stay in their order."""
    order: Ints | None = None
    for key in reversed(_packed(columns)) if len(columns[0]) else ():
        for shift in range(0, int(key.max()).bit_length(), 16):
            digit = (key >> shift).astype(np.uint16)  # numpy sorts 16 bits by counting
            if order is None:
                order = np.argsort(digit, kind="stable")
            else:
                order = order[np.argsort(digit[order], kind="stable")]
    return np.arange(len(columns[0])) if order is None else order


def _packed(columns: Sequence[Ints]) -> list[Ints]:
    """The columns as fewer ones of larger keys, from 0 on."""
    keys: list[Ints] = []
    size = _WHOLE
    for column in columns:
        values, span = _from_zero(column, _WHOLE)
        if size * span < 1 << 48:
            keys[-1] *= span
            keys[-1] += values
            size *= span
        else:
            keys.append(values)
            size = span
    return keys


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
