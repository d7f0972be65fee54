"""Which lines of a log need a look at all: most say the same as others, with other numbers in them.

A line's shape is the line with its digits, and its hexadecimal letters, made equal. A log of millions of lines has some
hundreds of shapes, and a line whose shape was found clean is clean: a secret does not hide in the value of a digit.
Where the line holds a word that could name a secret, only digits are made equal, so that no name is confused.
"""

from __future__ import annotations

from collections.abc import Iterable

from hangscope.incident.redact.secrets import Secrets
from hangscope.incident.redact.view import may_differ

_HEX = bytes.maketrans(b"0123456789abcdef", b"0" * 16)
_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)
_KEPT_BYTES = 24 << 20
"""How much is remembered of what was clean, before it is forgotten and learnt again."""
_MANY = 24
"""Names that are looked for one by one; more of them are left to the letters of the shape."""
_LONG = 16 << 10
"""Lines from here on have no shape that another one has."""
_FEW = 64
_ABOVE, _BELOW = 120, 120
"""Lines above and below one that opens a structure that are looked at with it."""


class Skim:
    """Remembers what was clean, for one set of secrets' needles."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._words = [name for name in secrets.users if len(name) > 2]
        self._table = _HEX if len(self._words) <= _MANY else _DIGITS
        self._clean: set[bytes] = set()
        self._clean_digits: set[bytes] = set()
        self._kept = 0

    def regions(self, data: bytes) -> list[tuple[int, int]]:
        """The stretches of `data`, in whole lines if it has any, that may hold something to replace. Usually none."""
        mark = _separator(data)
        shapes = data.translate(self._table).split(mark)
        named = self._named(data)
        if not named and self._clean.issuperset(shapes):
            return []
        lines = data.split(mark)
        look: dict[int, bool] = dict.fromkeys(_line_numbers(data, mark, named), False)
        for number, shape in enumerate(shapes):
            if shape in self._clean or number in look:
                continue
            line = lines[number]
            if len(line) > _LONG:
                look[number] = False
                continue
            key = line if may_differ(line) else line.translate(_DIGITS)
            if key not in self._clean_digits:
                found = self._judge(line, shape, key)
                if found is not None:
                    look[number] = found
                    if len(look) > _FEW and len(look) * 4 > number:
                        return [(0, len(data))]  # it is all like that: looking twice costs more than it saves
        return _merged(look, lines)

    def _judge(self, line: bytes, shape: bytes, key: bytes) -> bool | None:
        """None where the line is clean, which is remembered; else whether the lines around it matter too."""
        edits, hit, opens = self._secrets.examine(line)
        if edits or opens:
            return opens or any(edit.kind not in _ALONE and edit.end > len(line) - 4 for edit in edits)
        if hit:
            self._remember(self._clean_digits, key)
        else:
            self._remember(self._clean, shape)
        return None

    def _remember(self, where: set[bytes], key: bytes) -> None:
        if self._kept > _KEPT_BYTES:
            self._clean.clear()
            self._clean_digits.clear()
            self._kept = 0
        self._kept += len(key) + 100
        where.add(key)

    def _named(self, data: bytes) -> list[int]:
        """Where the users' own names stand: looked for by themselves, because a shape hides a letter."""
        if len(self._words) > _MANY:
            return []
        found: list[int] = []
        for word in self._words:
            at = data.find(word)
            while at >= 0:
                found.append(at)
                at = data.find(word, at + len(word))
        return found


_ALONE = frozenset(("user-name", "email"))


def _separator(data: bytes) -> bytes:
    """What parts the data into pieces to judge: the ends of lines, or, in one endless line, of its objects."""
    endless = len(data) > _LONG and data.count(b"\n") * _LONG < 8 * len(data)
    return b"}" if endless and data.count(b"}") * _LONG > 8 * len(data) else b"\n"


def _line_numbers(data: bytes, mark: bytes, places: Iterable[int]) -> list[int]:
    found: list[int] = []
    number = last = 0
    for at in sorted(places):
        number += data.count(mark, last, at)
        last = at
        found.append(number)
    return found


def _merged(look: dict[int, bool], lines: list[bytes]) -> list[tuple[int, int]]:
    """Stretches of bytes for the lines to look at, each with the lines around it where those matter."""
    if not look:
        return []
    spans: list[list[int]] = []
    for number in sorted(look):
        low, high = (number - _ABOVE, number + _BELOW) if look[number] else (number, number)
        if spans and low <= spans[-1][1] + 1:
            spans[-1][1] = max(spans[-1][1], high)
        else:
            spans.append([max(0, low), high])
    found: list[tuple[int, int]] = []
    position = line = 0
    for low, high in spans:
        while line < low:
            position += len(lines[line]) + 1
            line += 1
        start = position
        while line <= min(high, len(lines) - 1):
            position += len(lines[line]) + 1
            line += 1
        found.append((start, position - 1))
    return found
