"""Rewriting the strings inside a pickled dump, so that the dump stays valid. Nothing is unpickled.

A pickle is a list of opcodes with their arguments; a string is its length and its bytes, so that one can be exchanged
for another in place. Only opcodes that a flight recorder writes are known here (torch 2.2 to 2.15: protocol 2 without
any class; Python's own pickle, as third-party recorders use it: protocol 4 and 5). Anything else makes the dump one
that cannot be walked: it may hide a string where nobody looks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from mmap import mmap
from typing import Protocol

Raw = bytes | mmap


class Strings(Protocol):
    """Knows what to make of a string."""

    def string(self, data: bytes, /) -> bytes:
        """Its replacement; the same object where it stays as it is."""

    def touches(self, data: bytes, /) -> bool:
        """Whether bytes that may be no string at all hold something to replace. Has no effect."""

    def secret_key(self, text: bytes, /) -> bool:
        """Whether it, as the key of a dictionary, makes the value behind it secret."""


class Unwalkable(Exception):
    """The bytes are no pickle of plain values; says where."""


_PLAIN = dict.fromkeys(b"}]()Nsueat\x85\x86\x87\x88\x89\x94", 0)
_PLAIN |= dict.fromkeys(b"Khq\x80", 1) | {ord("M"): 2, ord("G"): 8} | dict.fromkeys(b"Jjr", 4)
"""Opcode → bytes of its argument, for everything that is not a string, a long number, a frame or the end."""

_STOP = ord(".")
_FRAME = 0x95
_LONG1 = 0x8A
_LONG4 = 0x8B
_STRINGS = {ord("X"): 4, 0x8C: 1, 0x8D: 8}
"""BINUNICODE, SHORT_BINUNICODE, BINUNICODE8 → bytes of the length."""
_PUT = {ord("q"), ord("r")}
_GET = {ord("h"), ord("j")}
_MEMOIZE = 0x94
_REMEMBER = {*_PUT, _MEMOIZE}

_MAYBE_STRING = re.compile(rb"X(?=(.{4}))", re.DOTALL)
_MAYBE_SHORT = re.compile(rb"\x8c(?=(.))", re.DOTALL)
_MAYBE_LONG = re.compile(rb"\x8d(?=(.{8}))", re.DOTALL)
_LONGEST = 64 << 10
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def is_pickle(head: bytes) -> bool:
    """Whether a file that begins like this claims to be a pickle."""
    return len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5


def rewrite(data: Raw, strings: Strings) -> Iterator[bytes]:
    """The dump with every string changed, in pieces. Raises Unwalkable before the first piece or not at all."""
    quick = _in_place(data, strings) if len(data) > 1 and data[1] < 4 else None
    if quick is None:
        # Twice, because what cannot be walked to its end must not be given away in part.
        for _ in _walk(data, strings):
            pass
        yield from _walk(data, strings)
        return
    position = 0
    for start, size, new in quick:
        yield data[position : start - 4]
        yield len(new).to_bytes(4, "little")
        yield new
        position = start + size
    while position < len(data):
        yield data[position : position + (8 << 20)]
        position += 8 << 20


def _in_place(data: Raw, strings: Strings) -> list[tuple[int, int, bytes]] | None:
    """(place, size, replacement) of the strings to change, found without walking; None where that is not safe.

    A dump is mostly numbers and references to strings seen before. So every byte that could be the opcode of a string
    is tried as one: a true string is never missed. It is followed by the opcode that remembers it; where a text is
    not, the writer was another, and the dump is walked. A false string would have to hold something to replace, read
    as text and be followed by that opcode: its bytes would then span the true string's own length, which holds zeros,
    and text holds none. What is in doubt is left to the walk.
    """
    found: list[tuple[int, int, bytes]] = []
    end = len(data)
    for match in _MAYBE_STRING.finditer(data):
        start = match.start() + 5
        size = int.from_bytes(match[1], "little")
        after = start + size
        if after >= end:
            if size < _LONGEST and _is_doubtful_rest(data, start, strings):
                return None  # the dump was cut inside this string
            continue
        if data[after] not in _PUT:
            if 8 <= size < _LONGEST and not _CONTROL.search(data[start:after]):
                return None
            continue
        text = data[start:after]
        if _CONTROL.search(text):
            if strings.touches(text):
                return None
            continue
        if strings.secret_key(text):
            return None
        new = strings.string(text)
        if new is not text:
            if found and start < found[-1][0] + found[-1][1]:
                return None
            found.append((start, size, new))
    return None if _has_newer_strings(data, strings) else found


def _has_newer_strings(data: Raw, strings: Strings) -> bool:
    """Whether there may be strings as later protocols write them, with something to replace. Protocol 2 has none; a
    file that mixes them must still not leak."""
    for pattern, width in ((_MAYBE_SHORT, 1), (_MAYBE_LONG, 8)):
        for match in pattern.finditer(data):
            start = match.start() + 1 + width
            after = start + int.from_bytes(match[1], "little")
            if after < len(data) and data[after] in _REMEMBER and _doubtful(data[start:after], strings):
                return True
    return False


def _is_doubtful_rest(data: Raw, start: int, strings: Strings) -> bool:
    return len(data) - start < _LONGEST and _doubtful(data[start : len(data)], strings)


def _doubtful(text: bytes, strings: Strings) -> bool:
    """Whether bytes that may be a string, or a part of one, read as text with something to replace in it."""
    return not _CONTROL.search(text) and strings.touches(text)


def _walk(data: Raw, strings: Strings) -> Iterator[bytes]:
    """Every opcode in turn. A dump that was cut short is walked to where it was cut; half a string is left out."""
    position = copied = 0
    end = len(data)
    after_key = False
    last_was_key = False
    memo_keys: set[int] = set()
    memoized = 0
    while position < end:
        op = data[position]
        if op in _STRINGS:
            start = position + 1 + _STRINGS[op]
            size = int.from_bytes(data[position + 1 : start], "little")
            if start + size > end:
                yield data[copied:position]
                return
            text = data[start : start + size]
            new = _SECRET if after_key and text else strings.string(text)
            last_was_key = not after_key and strings.secret_key(text)
            if new is not text:
                yield data[copied:position]
                yield b"X" + len(new).to_bytes(4, "little") + new
                copied = start + size
            position = start + size
            after_key = last_was_key
            continue
        if op in _PLAIN:
            size = 1 + _PLAIN[op]
            if op in _PUT or op == _MEMOIZE:
                index = memoized if op == _MEMOIZE else int.from_bytes(data[position + 1 : position + size], "little")
                memoized += 1
                if last_was_key:
                    memo_keys.add(index)
            else:
                after_key = op in _GET and int.from_bytes(data[position + 1 : position + size], "little") in memo_keys
                last_was_key = False
            position += size
            continue
        after_key = last_was_key = False
        if op == _FRAME:  # its length would no longer be true; readers do not need frames
            yield data[copied:position]
            position += 9
            copied = position
        elif op in (_LONG1, _LONG4):
            width = 1 if op == _LONG1 else 4
            position += 1 + width + int.from_bytes(data[position + 1 : position + 1 + width], "little")
        elif op == _STOP:
            yield data[copied : position + 1]
            return
        else:
            raise Unwalkable(f"opcode 0x{op:02x} at byte {position}")
    yield data[copied:end]


_SECRET = b"[redacted:secret]"
