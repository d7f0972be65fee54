"""The JSON form of a dump, read piece by piece.

PyTorch has written it since 2.5 (`_dump_nccl_trace_json`, the worker server's handlers), and torchcomms writes it too.
The entries are taken one at a time, so that a file that was cut off still gives up every entry before the cut, and a
large one never lies in memory as a whole tree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from hangscope.errors import DamagedError
from hangscope.reader.dumps.pickle_machine import Loaded
from hangscope.safeio.limits import DEFAULT, JSON_DIGITS, MIB, Limits

OnEntry = Callable[[int, Any], None]

_WINDOW = 12 * MIB
_KEPT = frozenset(("version", "pg_config", "pg_status", "comm_lib_version", "nccl_version", "rank"))
_MANY = 100_000
_LEAST_ENTRY = 24
"""More than so many entries have so many bytes each at least; real ones have hundreds."""
_SPACE = re.compile(r"[ \t\r\n]*")
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * JSON_DIGITS


class _Broken(Exception):
    """The text stops making sense here."""


def loads(data: bytes, *, file: str, limits: Limits = DEFAULT, on_entry: OnEntry | None = None) -> Loaded:
    """The top object, with each of its entries handed to `on_entry` as soon as it was read, and left out of the value.

    A bare list is taken as a list of entries. Keys that no dump has are skipped.
    """
    if len(data) > limits.input_bytes:
        raise DamagedError(f"{len(data)} bytes, more than the limit of {limits.input_bytes}", file=file)
    text = _Text(data)
    value: dict[str, Any] = {}
    try:
        if text.peek() == "[":
            _entries(text, on_entry)
            return Loaded([])
        else:
            _object(text, value, on_entry)
    except (_Broken, ValueError) as error:
        return Loaded(value, complete=False, broke_at=text.offset(), reason=str(error))
    except RecursionError:
        return Loaded(value, complete=False, broke_at=text.offset(), reason="nested too deep")
    return Loaded(value)


def _object(text: _Text, value: dict[str, Any], on_entry: OnEntry | None) -> None:
    text.take("{")
    if text.peek() == "}":
        return
    while True:
        key = text.value()
        text.take(":")
        if key == "entries" and text.peek() == "[":
            _entries(text, on_entry)
        else:
            found = text.value()
            if type(key) is str and key in _KEPT:
                value[key] = found
        if text.peek() == "}":
            return
        text.take(",")


def _entries(text: _Text, on_entry: OnEntry | None) -> None:
    text.take("[")
    index = 0
    while text.peek() != "]":
        if index:
            text.take(",")
            text.peek()
        entry = text.value()
        if index > _MANY and text.offset_about() < index * _LEAST_ENTRY:
            raise _Broken(f"{index} entries of a few bytes each: no recorder writes such")
        if on_entry is not None:
            on_entry(index, entry)
        index += 1
    text.take("]")


class _Text:
    """The bytes as text, a window at a time. No single value may be larger than half a window."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._scan = json.JSONDecoder(strict=False).raw_decode
        self._base = 3 if data.startswith(b"\xef\xbb\xbf") else 0
        self._fill(self._base)

    def _fill(self, start: int) -> None:
        raw = self._data[start : start + _WINDOW]
        if _LONG_NUMBER in raw.translate(_DIGITS):
            raw = raw[: raw.translate(_DIGITS).index(_LONG_NUMBER)]
        self._base = start
        self._index = 0
        self._last = start + _WINDOW >= len(self._data)
        self._text = raw.decode("utf-8", "surrogateescape")

    def offset_about(self) -> int:
        """How far it is read, in characters of this window: for every entry, so at no cost."""
        return self._base + self._index

    def offset(self) -> int:
        return self._base + len(self._text[: self._index].encode("utf-8", "surrogateescape"))

    def peek(self) -> str:
        """The next character that is not white space, or nothing at the end."""
        while True:
            found = _SPACE.match(self._text, self._index)
            self._index = found.end() if found else self._index
            if self._last or self._index <= len(self._text) // 2:
                return self._text[self._index : self._index + 1]
            self._fill(self.offset())

    def take(self, expected: str) -> None:
        found = self.peek()
        if found != expected:
            raise _Broken(f"`{expected}` expected" if found else "ends in the middle of the data")
        self._index += 1

    def value(self) -> Any:
        if not self.peek():
            raise _Broken("ends in the middle of the data")
        try:
            value, index = self._scan(self._text, self._index)
        except json.JSONDecodeError:
            raise _Broken("a value that is no JSON, or is cut off") from None
        if index == len(self._text) and not self._last:
            raise _Broken(f"a value of more than {_WINDOW // 2} bytes")
        self._index = index
        return value
