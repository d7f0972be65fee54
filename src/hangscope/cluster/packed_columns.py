"""Columns for the way: what is constant or grows evenly is a number or two, the rest as narrow as it fits.

A dump's columns take about as many bytes as the dump itself, and most of them hold small ids, counters that grow by
one, and times that are near each other. Nothing is lost: unpacked, a column has the values and the type it had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hangscope.model import UNKNOWN
from hangscope.reader.dumps.raw_dump import RawDump

_TIMES = 1 << 40
"""Only times are so large."""
_WIDTHS = ((1 << 8, np.uint8), (1 << 16, np.uint16), (1 << 32, np.uint32))


@dataclass(frozen=True, slots=True)
class Packed:
    """An integer column as its smallest value and what is above it; `first` where those are steps from row to row."""

    kind: str
    length: int
    low: int
    above: Any
    first: int | None = None
    unknown: Any = None
    """One bit a row where some values are UNKNOWN among times."""


def pack(column: Any) -> Any:
    """A column in fewer bytes; itself where that is not possible."""
    if column.dtype.kind != "i" or len(column) < 2:
        return column
    values = column.astype(np.int64)
    unknown = None
    if int(values.max()) >= _TIMES and int(values.min()) == UNKNOWN:
        gaps = values == UNKNOWN
        values = np.where(gaps, np.maximum.accumulate(values), values)
        values[values == UNKNOWN] = int(column[~gaps][0])
        unknown = np.packbits(gaps)
    plain = _narrow(values)
    steps = _narrow(np.diff(values))
    if steps is not None and (plain is None or _size(steps) < _size(plain)):
        return Packed(column.dtype.str, len(column), *steps, int(values[0]), unknown)
    return column if plain is None else Packed(column.dtype.str, len(column), *plain, unknown=unknown)


def unpack(packed: Any) -> Any:
    if not isinstance(packed, Packed):
        return packed
    count = packed.length if packed.first is None else packed.length - 1
    values = np.full(count, packed.low, dtype=np.int64)
    if packed.above is not None:
        values += packed.above.astype(np.int64)
    if packed.first is not None:
        values = np.cumsum(np.concatenate([np.asarray([packed.first], dtype=np.int64), values]))
    if packed.unknown is not None:
        values[np.unpackbits(packed.unknown, count=packed.length).astype(bool)] = UNKNOWN
    return values.astype(packed.kind)


def _narrow(values: Any) -> tuple[int, Any] | None:
    """The smallest value, and all as what they are above it, in the narrowest type; None where 64 bits are needed."""
    low = int(values.min())
    high = int(values.max())
    if low == high:
        return low, None
    for limit, kind in _WIDTHS:
        if high - low < limit:
            return low, (values - low).astype(kind)
    return None


def _size(narrow: tuple[int, Any]) -> int:
    return 0 if narrow[1] is None else int(narrow[1].nbytes)


def pack_dump(dump: RawDump) -> None:
    dump.columns.update({name: pack(column) for name, column in dump.columns.items()})


def unpack_dump(dump: RawDump) -> None:
    dump.columns.update({name: unpack(column) for name, column in dump.columns.items()})
