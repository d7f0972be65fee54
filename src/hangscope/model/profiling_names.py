"""What an entry's `profiling_name` says, and how large its elements are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from hangscope.model import UNKNOWN, Kind, Shapes
from hangscope.model.numbers import integer

_PEERS = re.compile(r"(\S*?(?:send|recv))\s+(\d{1,9}|\?)\s*(->|<-)\s*(\d{1,9}|\?)", re.IGNORECASE)
_SEND = re.compile(r"i?send(?!_?recv)", re.IGNORECASE)
_RECV = re.compile(r"i?recv", re.IGNORECASE)

_LONGEST = 1000
_LARGEST = (1 << 63) - 1


class Name(NamedTuple):
    """One profiling name, taken apart. `own` and `peer` are numbers within the group, -1 where not said."""

    library: str
    operation: str
    kind: Kind
    own: int = UNKNOWN
    peer: int = UNKNOWN
    closes_batch: bool = False
    """May close a coalesced batch: always for ``coalesced``, for ``…_coalesced`` only where it has no tensors."""


def parse(text: str) -> Name:
    """``nccl:send 0->1`` taken apart. Unknown libraries and operations keep their names."""
    if len(text) > _LONGEST:
        return Name("", text[:_LONGEST], Kind.COLLECTIVE)
    library, colon, operation = text.partition(":")
    if not colon:
        library = ""
        operation = text
    operation = operation.strip(": ")
    found = _PEERS.fullmatch(operation)
    if found:
        name, own, arrow, peer = found.groups()
        kind = Kind.SEND if arrow == "->" else Kind.RECV
        return Name(library, name, kind, _local(own), _local(peer))
    if operation == "coalesced" or operation.endswith("_coalesced"):
        return Name(library, operation, Kind.COLLECTIVE, closes_batch=True)
    if _SEND.match(operation):
        return Name(library, operation, Kind.SEND)
    if _RECV.match(operation):
        return Name(library, operation, Kind.RECV)
    return Name(library, operation, Kind.COLLECTIVE)


def _local(text: str) -> int:
    return UNKNOWN if text == "?" else integer(text)


# The names that c10 gives its scalar types (c10/core/ScalarType.h), with the bytes of one element.
_ELEMENT_BYTES = {
    "Byte": 1,
    "Char": 1,
    "Short": 2,
    "Int": 4,
    "Long": 8,
    "Half": 2,
    "Float": 4,
    "Double": 8,
    "ComplexHalf": 4,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
    "Bool": 1,
    "QInt8": 1,
    "QUInt8": 1,
    "QInt32": 4,
    "QUInt4x2": 1,
    "QUInt2x4": 1,
    "BFloat16": 2,
    "Float8_e5m2": 1,
    "Float8_e4m3fn": 1,
    "Float8_e5m2fnuz": 1,
    "Float8_e4m3fnuz": 1,
    "Float8_e8m0fnu": 1,
    "Float4_e2m1fn_x2": 1,
    "UInt16": 2,
    "UInt32": 4,
    "UInt64": 8,
    "Bits1x8": 1,
    "Bits2x4": 1,
    "Bits4x2": 1,
    "Bits8": 1,
    "Bits16": 2,
    **{f"{sign}{bits}": 1 for sign in ("Int", "UInt") for bits in range(1, 8)},
}


def size_bytes(shapes: Shapes, dtypes: Sequence[str]) -> int:
    """The bytes of all these tensors; -1 where a type is not said or not known."""
    if len(shapes) != len(dtypes):
        return UNKNOWN
    total = 0
    for shape, dtype in zip(shapes, dtypes, strict=True):
        count = _ELEMENT_BYTES.get(dtype)
        if count is None:
            return UNKNOWN
        for length in shape:
            if length < 0 or count > _LARGEST:
                return UNKNOWN
            count *= length
        total += count
    return total if total <= _LARGEST else UNKNOWN


def parse_version(text: str) -> tuple[int, ...]:
    """``2.10`` as (2, 10), because as text it would come before ``2.9``."""
    return tuple(integer(part) for part in re.findall(r"\d{1,6}", text)[:4])
