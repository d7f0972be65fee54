"""Just enough of protobuf's wire format to write a trace: single messages, and millions of alike ones at once.

Alike messages are cut from a template whose numbers have a fixed width. Protobuf allows a number to be written with
more bytes than it needs, so every copy has the same length, and numpy fills in all of them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

_VARINT = 0
_FIXED64 = 1
_LENGTH = 2


def varint(value: int) -> bytes:
    """A number that is not negative, as short as it goes."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3 | _VARINT) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    return varint(field << 3 | _FIXED64) + value.to_bytes(8, "little")


def text(field: int, value: str) -> bytes:
    return message(field, value.encode("utf-8", "backslashreplace"))


def message(field: int, *parts: bytes) -> bytes:
    inner = b"".join(parts)
    return varint(field << 3 | _LENGTH) + varint(len(inner)) + inner


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in a template: a varint of `width` bytes, or eight bytes as they are."""

    name: str
    at: int
    width: int
    fixed: bool


@dataclass(frozen=True, slots=True)
class Template:
    """Bytes with slots. Templates are put together like messages."""

    data: bytes
    slots: tuple[Slot, ...] = ()

    def __add__(self, other: Template) -> Template:
        moved = tuple(Slot(s.name, s.at + len(self.data), s.width, s.fixed) for s in other.slots)
        return Template(self.data + other.data, self.slots + moved)

    def within(self, field: int) -> Template:
        """This as the content of a message field."""
        head = varint(field << 3 | _LENGTH) + varint(len(self.data))
        return Template(head) + self

    def fill(self, columns: Mapping[str, Ints]) -> Bytes:
        """One copy a row, with the numbers of the columns in the slots."""
        count = len(next(iter(columns.values())))
        out = np.tile(np.frombuffer(self.data, dtype=np.uint8), (count, 1))
        for slot in self.slots:
            values = columns[slot.name].astype(np.uint64)
            for i in range(slot.width):
                shifted = values >> np.uint64((8 if slot.fixed else 7) * i)
                if slot.fixed:
                    out[:, slot.at + i] = shifted & np.uint64(0xFF)
                else:
                    more = 0x80 if i < slot.width - 1 else 0
                    out[:, slot.at + i] = (shifted & np.uint64(0x7F)) | np.uint64(more)
        return out


def varint_slot(field: int, name: str, width: int) -> Template:
    head = varint(field << 3 | _VARINT)
    return Template(head + bytes(width), (Slot(name, len(head), width, fixed=False),))


def fixed64_slot(field: int, name: str) -> Template:
    head = varint(field << 3 | _FIXED64)
    return Template(head + bytes(8), (Slot(name, len(head), 8, fixed=True),))
