"""Which lines of a log need a look at all: most say the same as others, with other numbers in them.

A line's shape is the line with its digits, and its hexadecimal letters, made equal. A log of millions of lines has some
hundreds of shapes, and a line whose shape was found clean is clean: a secret does not hide in the value of a digit.
Where the line holds a word that could name a secret, only digits are made equal, so that no name is confused.

A log full of secrets says the same again and again, too, with other secrets. A line whose every long mixed word was
replaced is remembered by what is around those words: the next line of that layout has its secrets at the same places.
Of a line in which such a word stayed nothing is remembered, so that what was innocent once never excuses another.
More of that is in `frames`.

Lines that nobody saw before are sifted together first: where none holds anything to look at, that takes one search.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hangscope.incident.redact import names, structure
from hangscope.incident.redact.frames import BY_NAME, Frames
from hangscope.incident.redact.handlers import Edit
from hangscope.incident.redact.prefixes import prefix_end
from hangscope.incident.redact.secrets import Secrets
from hangscope.incident.redact.view import may_differ

_HEX = bytes.maketrans(b"0123456789abcdef", b"0" * 16)
_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)
_HIDDEN = re.compile(b"|".join(sorted({re.escape(word.translate(_HEX)) for word in names.NEEDLES})), re.IGNORECASE)
"""Names of secrets as they look in a shape: a line with `areas=` must not excuse one with `creds=`."""
_KEPT_BYTES = 24 << 20
"""How much is remembered of what was clean, before it is forgotten and learnt again."""
_MANY = 24
"""Names that are looked for one by one; more of them are left to the letters of the shape."""
_LONG = 16 << 10
"""Lines from here on have no shape that another one has."""
_FEW = 64
_SIFTED = 64
"""How many lines are sifted first; then ever more, as long as that spares something."""
_ITSELF, _NEXT, _AROUND = (0, 0), (0, 1), (120, 120)
"""Lines above and below one that are looked at with it: none, the one that a backslash joins to it, or those around one
that opens a structure."""
_JOINED = (b"\\", b"\\\r")


class Skim:
    """Remembers what was clean, for one set of secrets' needles."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._words = [name for name in secrets.users if len(name) > 2]
        self._table = _HEX if len(self._words) <= _MANY else _DIGITS
        self._clean: set[bytes] = set()
        self._clean_digits: set[bytes] = set()
        self._layouts: dict[bytes, list[Edit]] = {}
        """What is around the secrets of a line → where they are."""
        self._frames = Frames()
        self._kept = 0

    def edits(self, data: bytes) -> list[Edit]:
        """What is to be replaced in `data`, in order. Usually nothing."""
        mark = _separator(data)
        shapes = data.translate(self._table).split(mark)
        named = self._named(data)
        if not named and self._clean.issuperset(shapes):
            return []
        lines = data.split(mark)
        if mark == b"\n":
            self._sift(lines, shapes)
        frames: list[bytes] = []
        look: dict[int, tuple[int, int]] = dict.fromkeys(_line_numbers(data, mark, named), _ITSELF)
        ready: list[tuple[int, list[Edit]]] = []
        place, given, until = 0, len(look), -1
        for number, shape in enumerate(shapes):
            line = lines[number]
            if shape in self._clean or number <= until or number in look:
                pass
            elif frames and (seen := self._seen(data, frames, lines, number, place)) is not None:
                ready.append((place, seen))
            else:
                joined = line.endswith(_JOINED)  # looked at with the next one, and never remembered as clean by itself
                found = self._judge(line, shape, remember=not joined) if len(line) <= _LONG else []
                if joined and found is not None:
                    look[number] = _NEXT
                elif found is None:
                    look[number] = _AROUND
                elif found and (more := _goes_on(data, mark, place, line, found)):
                    look[number] = (0, more + 1)  # and the line behind, at which it ends
                    until = number + more
                    given -= more  # those count, too
                elif found:
                    ready.append((place, found))
                    if len(ready) == _FEW and mark == b"\n":
                        frames = Frames.of(data)
                    if frames and number + 1 < len(lines):
                        self._remember(None, b"", more=self._frames.learn_twin(line, lines[number + 1], found))
                elif len(line) > _LONG:
                    look[number] = _ITSELF
                if len(look) > given + _FEW and (len(look) - given) * 4 > max(number, until):
                    return self._secrets.edits(data)  # it is all like that: looking twice costs more than it saves
            place += len(line) + len(mark)
        return self._put_together(data, _merged(look, lines, len(mark)), ready)

    def _put_together(
        self, data: bytes, spans: list[tuple[int, int]], ready: list[tuple[int, list[Edit]]]
    ) -> list[Edit]:
        """The edits of stretches that are looked at as a whole, and of single lines outside of them."""
        edits = [_moved(edit, start) for start, end in spans for edit in self._secrets.edits(data[start:end])]
        index = 0
        for place, found in ready:
            while index < len(spans) and spans[index][1] < place:
                index += 1
            if index == len(spans) or place < spans[index][0]:
                edits += [_moved(edit, place) for edit in found]
        edits.sort()
        return edits

    def _seen(self, data: bytes, frames: list[bytes], lines: list[bytes], number: int, place: int) -> list[Edit] | None:
        """A line's edits, where one like it was seen before."""
        line = lines[number]
        found = self._frames.edit(frames, number, line)
        if found is not None and not (found[1] and _goes_on(data, b"\n", place, line, [found[0]])):
            return [found[0]]
        return self._frames.twin(line, lines[number + 1]) if number + 1 < len(lines) else None

    def _judge(self, line: bytes, shape: bytes, *, remember: bool) -> list[Edit] | None:
        """The edits of one line; none where it is clean, which is remembered. None where the lines around it matter."""
        key = line if may_differ(line) else line.translate(_DIGITS)
        if key in self._clean_digits:
            return []
        layout, words = _layout(line)
        known = self._layouts.get(layout)
        if known is not None:
            return known
        edits, hit, opens = self._secrets.examine(line)
        if opens:
            return None
        if edits:
            learnt = self._frames.learn(line, edits) if remember else 0
            if learnt:
                self._remember(None, b"", more=learnt)
            elif words and all(_covered(word, edits) for word in words):
                self._remember(None, layout)
                self._layouts[layout] = edits
            return edits
        if remember:
            by_digits = hit or _HIDDEN.search(shape) is not None
            self._remember(self._clean_digits if by_digits else self._clean, key if by_digits else shape)
        return []

    def _sift(self, lines: list[bytes], shapes: list[bytes]) -> None:
        """Remember as clean those lines, of shapes that nobody saw, in which there is nothing to look at."""
        clean = self._clean
        begin, size = 0, _SIFTED
        while begin < len(shapes):
            fresh = {shapes[at]: at for at in range(begin, min(begin + size, len(shapes))) if shapes[at] not in clean}
            some = [at for at in fresh.values() if len(lines[at]) <= _LONG and not lines[at].endswith(_JOINED)]
            begin, size = begin + size, size * 2
            text = b"\n".join([lines[number] for number in some])
            suspect: set[int] = set()
            index = last = 0
            for at in self._secrets.suspects(text):
                index += text.count(b"\n", last, at)
                last = at
                suspect.add(index)
            for index, number in enumerate(some):
                if index not in suspect and not _HIDDEN.search(shapes[number]):
                    self._remember(clean, shapes[number])
            if len(suspect) * 2 > len(some):
                return  # most of them are to be looked at one by one

    def _remember(self, where: set[bytes] | None, key: bytes, *, more: int = 0) -> None:
        if self._kept > _KEPT_BYTES:
            self._clean.clear()
            self._clean_digits.clear()
            self._layouts.clear()
            self._frames.clear()
            self._kept = 0
        self._kept += len(key) + more + (100 if where is not None else 800)
        if where is not None:
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


_WORD = re.compile(rb"[A-Za-z0-9+/_-]{8,200}={0,2}")
_LETTERS = bytes(range(65, 91)) + bytes(range(97, 123)) + bytes(range(48, 58))
_FRONT = re.compile(rb"(?:[A-Za-z]{1,9}[_-]){0,2}")
_MIXED = 20
"""From this length on a word with letters and digits may be a secret; a shorter one, if it mixes large and small."""


def _layout(line: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """The line with its digits made equal, and of each long mixed word its length, beginning and signs alone; and where
    those words are. Lines of one layout have everything else at the same places."""
    parts: list[bytes] = []
    words: list[tuple[int, int]] = []
    done = 0
    for match in _WORD.finditer(line):
        word = match.group()
        letters = word.translate(None, b"0123456789+/_-=")
        if not letters or len(word) == len(letters) or (len(word) < _MIXED and (word.islower() or word.isupper())):
            continue
        start, end = match.span()
        front = _FRONT.match(word).group()  # type: ignore[union-attr]  # matches also nothing
        parts += (line[done:start].translate(_DIGITS), b"%d" % len(word), front, word.translate(None, _LETTERS))
        words.append((start + len(front), end))
        done = end
    parts.append(line[done:].translate(_DIGITS))
    return b"\0".join(parts), words


def _covered(word: tuple[int, int], edits: list[Edit]) -> bool:
    """Whether all of a word is replaced but what its layout says of it."""
    return any(edit.start <= word[0] and edit.end >= word[1] - 2 for edit in edits)


def _goes_on(data: bytes, mark: bytes, place: int, line: bytes, edits: list[Edit]) -> int:
    """Over how many lines what ends this one may go on: they are looked at together."""
    last = edits[-1]
    if last.kind in _ALONE or last.end <= len(line) - 4:
        return 0
    if mark != b"\n":
        return _AROUND[1]
    start, end = place + last.start, place + last.end
    behind = place + len(line) + 1
    quoted = data[start - 1 : start] in (b'"', b"'") and end == behind - 1
    if last.kind in BY_NAME and not quoted:
        if _ANOTHER_NAME.match(data, behind):
            return 0
        goes_on = names.CONTINUES.match(data, structure.continued(data, behind)) is not None
        return sum(1 for _ in structure.wrapped(data, end)) if goes_on else 0
    same = data.startswith(line[: last.start], behind) or _ONE_WORD.match(data, prefix_end(data, behind))
    if not same and len(line) < structure.WIDE and not quoted:
        return 0
    ways = [structure.tail(data, start, end), structure.wrapped(data, end)]
    ways += [structure.unclosed(data, end)] if quoted else []
    return max(sum(1 for _ in way) for way in ways)


_ANOTHER_NAME = re.compile(rb"[A-Za-z_][\w.]*=[^=\s]")
_ONE_WORD = re.compile(rb"[ \t]*[^\s]*[ \t\r]*(?:\n|\Z)")


def _moved(edit: Edit, by: int) -> Edit:
    return Edit(edit.start + by, edit.end + by, edit.kind, edit.text) if by else edit


_ALONE = frozenset(("user-name", "email"))


def _separator(data: bytes) -> bytes:
    """What parts the data into pieces to judge: the ends of lines, or, in one endless line, of its objects, or of the
    lines that somebody escaped in it."""
    if len(data) <= _LONG or data.count(b"\n") * _LONG >= 8 * len(data):
        return b"\n"
    return next((mark for mark in (b"\r", b"}", b"\\n") if data.count(mark) * _LONG > 8 * len(data)), b"\n")


def _line_numbers(data: bytes, mark: bytes, places: Iterable[int]) -> list[int]:
    found: list[int] = []
    number = last = 0
    for at in sorted(places):
        number += data.count(mark, last, at)
        last = at
        found.append(number)
    return found


def _merged(look: dict[int, tuple[int, int]], lines: list[bytes], gap: int) -> list[tuple[int, int]]:
    """Stretches of bytes for the lines to look at, each with the lines around it where those matter."""
    if not look:
        return []
    spans: list[list[int]] = []
    for number in sorted(look):
        low, high = number - look[number][0], number + look[number][1]
        if spans and low <= spans[-1][1] + 1:
            spans[-1][1] = max(spans[-1][1], high)
        else:
            spans.append([max(0, low), high])
    found: list[tuple[int, int]] = []
    position = line = 0
    for low, high in spans:
        while line < low:
            position += len(lines[line]) + gap
            line += 1
        start = position
        while line <= min(high, len(lines) - 1):
            position += len(lines[line]) + gap
            line += 1
        found.append((start, position - gap))
    return found
