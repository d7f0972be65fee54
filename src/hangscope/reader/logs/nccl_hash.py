"""The hash of a communicator that was split off another one.

NCCL from 2.23 on leaves it out of the log, though RAS and the profiler know the communicator by it. It follows from the
parent's hash, the number of the split and the colour (NCCL 2.24 to 2.30), by a multiply-and-mix hash of two words.
"""

from __future__ import annotations

_WORD = (1 << 64) - 1


def split_hash(parent: int, count: int, color: int) -> int:
    """The hash of the `count`-th split of a communicator, for one colour."""
    first = second = 1
    for value, size in ((parent, 8), (count, 4), (color, 4)):
        first, second = _mix(first ^ size, second)
        first = (first + value % (1 << 8 * size)) & _WORD
    first = _scramble(first, 31, 0xBAC3BD562846DE6B)
    return _scramble((first + second) & _WORD, 32, 0x995A187A14E7B445)


def _mix(first: int, second: int) -> tuple[int, int]:
    first = (first + second) & _WORD
    second ^= first
    return _scramble(first, 31, 0x9DE62BBC8CEF3CE3), _scramble(second, 32, 0x485CD6311B599E79)


def _scramble(value: int, shift: int, factor: int) -> int:
    return (value ^ value >> shift) * factor & _WORD
