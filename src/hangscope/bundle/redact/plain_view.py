"""A plain view of evidence: escapes, colours and encodings undone, with a way back to the bytes as they lie.

A token in a coloured line follows the `m` of an escape sequence, one in a repr follows the `n` of `\\n`, one in a web
address follows the `2` of `%22`: looked at as they lie they are tails of longer words. In the plain view they are not.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from heapq import merge

from hangscope.bundle.redact.log_prefixes import prefixes

_ESCAPE = re.compile(
    rb"(?P<colour>(?:\x1b|\\{1,4}(?:x1b|u001b|033|e)|\^\[)(?:\[[0-?]{0,24}[ -/]{0,4}[@-~]|\][^\x07\n]{0,80}\x07))"
    rb"|(?P<wrap>\\(?:\r?\n|\\\\n)[ \t]*)"
    rb"|(?P<wide>(?<=\0[ -~])\0|(?<=[ -~])\0(?=[ -~]\0))"
    rb"|\\{1,4}(?:(?P<letter>[nrtfv])|u00(?P<unicode>[0-7][0-9A-Fa-f])|u(?P<box>25[0-7][0-9A-Fa-f])|x(?P<hex>[0-7][0-9A-Fa-f])|(?P<sign>[\"'/]))"
    rb"|%(?:25){0,2}(?P<url>[2-7][0-9A-Fa-f])"
    rb"|&(?:(?P<entity>quot|amp|lt|gt|apos)|#(?P<number>\d{2,3})|#x(?P<hexnumber>[2-7][0-9A-Fa-f]));"
)  # fmt: skip
_SIGN = re.compile(rb"[\\\x1b%&^\0]")
"""How an escape begins."""
_LETTERS = {b"n": b"\n", b"r": b"\n", b"t": b"\t", b"f": b"\n", b"v": b"\n"}
_ENTITIES = {b"quot": b'"', b"amp": b"&", b"lt": b"<", b"gt": b">", b"apos": b"'"}
MARK = re.compile(rb"[\\\x1b]|\0[ -~]\0|%(?:25){0,2}[2-7][0-9A-Fa-f]|&(?:quot|amp|lt|gt|apos|#)|\^\[")
"""Where a view could differ from what it is of."""


class View:
    """`text` is the plain view; `back` says which bytes of the original a stretch of it was."""

    __slots__ = ("_original", "_plain", "size", "text")

    def __init__(self, data: bytes, *, lines: bool = False) -> None:
        """With `lines`, what stands in front of every line of a log is taken away, too."""
        self.size = len(data)
        plain = [0]
        original = [0]
        parts: list[bytes] = []
        done = length = 0
        decoded: dict[bytes, bytes] = {}
        for start, end, match in _together(data) if lines else _escapes(data):
            if start < done:
                continue
            if match is None:
                new = b""
            else:
                new = decoded.get(match.group())  # type: ignore[assignment]  # None where it is a new one
                if new is None:
                    new = _decoded(match, data)
                    if match.lastgroup != "wrap":
                        decoded[match.group()] = new
            parts += (data[done:start], new)
            length += start - done
            # Two anchors: where what was decoded begins, and where the plain bytes go on behind it.
            plain += (length, length + len(new))
            original += (start, end)
            length += len(new)
            done = end
        parts.append(data[done:])
        self._plain = plain
        self._original = original
        self.text = b"".join(parts) if done else data

    @property
    def differs(self) -> bool:
        """Whether anything was decoded."""
        return len(self._plain) > 1

    def back(self, start: int, end: int) -> tuple[int, int]:
        """The bytes of the original between two places of the view; what was decoded is taken whole."""
        return self._place(start), self._place(end - 1, last=True) if end > start else self._place(start)

    def snapped(self, start: int, end: int) -> tuple[int, int]:
        """Bytes of the original, so that no escape is cut in two: half of one would break what is around it."""
        for _ in range(2):
            index = bisect_right(self._original, start) - 1
            if index % 2 == 1 and self._original[index] < start:
                start = self._original[index + 1]  # inside an escape: behind it
        index = bisect_right(self._original, end - 1) - 1
        if index % 2 == 1 and index + 1 < len(self._original):
            end = max(end, self._original[index + 1])
        return start, end

    def _place(self, at: int, *, last: bool = False) -> int:
        index = bisect_right(self._plain, at) - 1
        inside = at - self._plain[index]
        if last:
            # The byte's own end: of a decoded one the end of its whole escape.
            following = index + 1
            if following < len(self._plain) and self._plain[following] == at + 1 and index % 2 == 1:
                return self._original[following]
            return self._original[index] + inside + 1
        return self._original[index] + inside


_Part = tuple[int, int, "re.Match[bytes] | None"]
"""From where to where, and the escape that is there; None where it is taken away."""


def _escapes(data: bytes) -> Iterator[_Part]:
    done = 0
    for sign in _SIGN.finditer(data):  # a search for one of a few signs is many times faster than one for all forms
        at = sign.start()
        if at >= done and (match := _ESCAPE.match(data, at)) is not None:
            done = match.end()
            yield at, done, match


def _together(data: bytes) -> Iterator[_Part]:
    fronts: Iterator[_Part] = ((start, end, None) for start, end in prefixes(data))
    return merge(fronts, _escapes(data), key=lambda part: part[0])


def _decoded(match: re.Match[bytes], data: bytes) -> bytes:
    kind = match.lastgroup
    if kind in ("colour", "wide"):
        return b""
    if kind == "wrap":
        return b" " if data[max(0, match.start() - 1) : match.start()].isspace() else b""
    value = match[kind or 0]
    if kind == "letter":
        return _LETTERS[value]
    if kind == "entity":
        return _ENTITIES[value]
    if kind == "sign":
        return value
    if kind == "box":
        return chr(int(value, 16)).encode()
    if kind == "number":
        return bytes([int(value)]) if int(value) < 128 else b" "
    return bytes([int(value, 16)])
