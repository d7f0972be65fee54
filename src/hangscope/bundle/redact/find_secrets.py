"""Finding secrets and user names in bytes, and replacing them. In layers:

1. what lies there is looked at as it is, and once more in its plain view, with escapes and encodings undone
   (`plain_view`), and without what a log puts in front of its lines where a value goes on in other lines;
2. in each, at every needle that was found: secrets of known form (`secret_forms`), values by name (`assignments`),
   by the structure around them (`structure`), and user names;
3. long words that are random (`random_words`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache

from hangscope.bundle.edits import USER, Edit, Findings, Handler, back_over, redacted, without_overlaps
from hangscope.bundle.redact import assignments, needle_handlers, scan
from hangscope.bundle.redact import secret_forms as forms
from hangscope.bundle.redact.plain_view import View
from hangscope.bundle.redact.user_names import Users

_IDENTIFIER = re.compile(rb"[A-Za-z0-9_.-]*")
_NEAR = 60
_WIDE = 600
"""Lines from here on are hardly seen twice."""
_MOST_SEEN = 20_000
_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)


class Secrets:
    """Replaces secrets, and user names by user-1, user-2, …, and counts what it replaced."""

    def __init__(self, users: Iterable[bytes] = ()) -> None:
        self.counts: Counter[str] = Counter()
        self._users = Users(users)
        needles: dict[bytes, list[Handler]] = {}
        for words, handler in (*_handlers(), *self._users.handlers()):
            for word in words:
                needles.setdefault(word, []).append(handler)
        self._words = _words(frozenset((*needles, *assignments.NEEDLES)), scan.in_use())
        self._handlers = [tuple(needles.get(word, ())) for word in self._words]
        self._names_secret = [word in assignments.NEEDLES for word in self._words]
        self._seen: dict[tuple[bytes, int], list[Edit]] = {}

    def clean(self, data: bytes) -> bytes:
        """`data` without secrets. Where there is none it is the same object."""
        edits = self.edits(data)
        return self.replaced(data, edits, 0, len(data)) if edits else data

    def replaced(self, data: bytes, edits: Iterable[Edit], begin: int, end: int) -> bytes:
        """The bytes from `begin` to `end`, with those edits made that begin there."""
        parts: list[bytes] = []
        kinds: list[str] = []
        position = begin
        for first, stop, kind, text in edits:
            if stop <= begin or first >= end:
                continue
            start = first if first > begin else begin
            parts += (data[position:start], self._users.alias(data[start:stop]) if kind == USER else text)
            lines = data.count(b"\n", start, stop)
            if lines:  # lines stay lines: what else a log says is found by its line number
                parts.append(b"\n" * (lines - text.count(b"\n")))
            position = stop
            kinds.append(kind)
        self.counts.update(kinds)
        parts.append(data[position:end])
        return b"".join(parts)

    def mask(self, data: bytes) -> bytes:
        """Like `clean`, but of the same length: for binary files, in which places and lengths matter."""
        edits = self.edits(data)
        if not edits:
            return data
        masked = bytearray(data)
        for edit in edits:
            masked[edit.start : edit.end] = b"x" * (edit.end - edit.start)
        self.counts.update(edit.kind for edit in edits)
        return bytes(masked)

    def edits(self, data: bytes) -> list[Edit]:
        """What is to be replaced, in order, without overlaps. Changes nothing and counts nothing."""
        found = self._looked(data, deeper=2)
        views = [(begin, view) for begin, end in scan.escaped(data) if (view := View(data[begin:end])).differs]
        if views:
            found = _snapped(found, views)
            for begin, view in views:
                found += _back(view, self._looked(view.text, deeper=1), begin)
        return without_overlaps(found)

    def _looked(self, data: bytes, *, deeper: int) -> list[Edit]:
        """What is there. Lines around something that goes on in other lines are looked at without their prefixes, too;
        and once more without those that only then are seen: of a log inside a string."""
        found = Findings()
        self._look(data, found)
        edits: list[Edit] = list(found)
        if found.opened and deeper and b"\n" in data:
            for begin, end in _lines_around(data, sorted(found.opened)):
                view = View(data[begin:end], lines=True)
                if view.differs:
                    edits += _back(view, self._looked(view.text, deeper=deeper - 1), begin)
        return edits

    def _look(self, data: bytes, found: Findings) -> None:
        handlers = self._handlers
        names_secret = self._names_secret
        done = first = until = -1
        for place in self._words.places(data):
            at, number = divmod(place, 1 << 16)
            for handler in handlers[number]:
                handler(data, at, found)
            if not names_secret[number]:
                continue
            end = _IDENTIFIER.match(data, at, at + assignments.LATEST).end()  # type: ignore[union-attr]  # never None
            if end <= until or end - at == assignments.LATEST or (end == done and at - first <= _NEAR):
                continue  # inside of a value, no end of a name, or another part of the same name
            done = end
            first = at
            until = self._look_at_name(data, back_over(data, at, assignments.FRONT, 72), end, found) or until
        needle_handlers.random_strings(data, found)

    def _look_at_name(self, data: bytes, start: int, end: int, found: Findings) -> int | None:
        """Add what a name gives away, if it is a secret's; up to where the value goes that follows it."""
        if not assignments.is_name(data, start, end):
            return None
        before = len(found)
        if not needle_handlers.plainly_named(data, start, end, found):
            self._named(data, start, end, found)
        return next((edit.end for edit in found[before:] if end < edit.start < end + 8), None)

    def _named(self, data: bytes, start: int, end: int, found: Findings) -> None:
        """What a name gives away. In a line that was seen before, but for its digits, with the same one below it, that
        is at the same places; nothing is remembered of what may go on in other lines."""
        begin = data.rfind(b"\n", max(0, start - _WIDE), start) + 1
        line = data.find(b"\n", end, end + _WIDE)
        below = data.find(b"\n", line + 1, line + _WIDE)
        if line < 0 or below < 0 or (not begin and start >= _WIDE):
            needle_handlers.named(data, start, end, found)
            return
        lines = data[begin:below]
        key = (lines if b"0x" in lines else lines.translate(_DIGITS), start - begin)
        known = self._seen.get(key)
        if known is not None:
            found += [Edit(one + begin, other + begin, kind, text) for one, other, kind, text in known]
            return
        before = len(found)
        opened = len(found.opened)
        needle_handlers.named(data, start, end, found)
        new = found[before:]
        if len(found.opened) == opened and all(begin <= edit.start and edit.end <= line for edit in new):
            if len(self._seen) == _MOST_SEEN:
                self._seen.clear()
            self._seen[key] = [Edit(one - begin, other - begin, kind, text) for one, other, kind, text in new]


def _handlers() -> Iterator[tuple[Iterable[bytes], Handler]]:
    """Needles with what to do where one is found, for everything but users and names."""
    for pattern in (*forms.TOKENS, *forms.SURROUNDED):
        yield pattern.needles, needle_handlers.by_pattern(pattern)
    yield (b"-----begin",), needle_handlers.private_key
    yield (b"-----end ",), needle_handlers.headless_key
    yield (b"kind",), needle_handlers.kubernetes
    yield (b"signature:",), needle_handlers.signature
    yield (b"mnemonic", b"seed", b"recovery"), needle_handlers.recovery_phrase
    yield (b"@",), needle_handlers.email


@lru_cache(maxsize=4)
def _words(words: frozenset[bytes], in_c: bool) -> scan.Words:
    return scan.Words(words, in_c=in_c)


def _snapped(edits: list[Edit], views: list[tuple[int, View]]) -> list[Edit]:
    """Edits that cut no escape in two: half of one would break what is around it. Not those inside of an escape."""
    begins = [begin for begin, _ in views]
    kept: list[Edit] = []
    for edit in edits:
        index = bisect_right(begins, edit.start) - 1
        begin, view = views[index] if index >= 0 else (0, None)
        if view is None or edit.start >= edit.end or edit.start > begin + view.size:
            kept.append(edit)
            continue
        start, end = view.snapped(edit.start - begin, edit.end - begin)
        if start < end:
            kept.append(edit._replace(start=start + begin, end=end + begin))
    return kept


def _back(view: View, edits: list[Edit], begin: int) -> list[Edit]:
    """What was found in the view, where it lies in what the view is of."""
    found: list[Edit] = []
    for edit in edits:
        start, end = view.back(edit.start, edit.end)
        found.append(Edit(start + begin, end + begin, edit.kind, b"" if edit.kind == USER else redacted(edit.kind)))
    return found


_LINES = 120
_BYTES = 48 << 10
_APART = 2 << 10


def _lines_around(data: bytes, places: list[int]) -> Iterator[tuple[int, int]]:
    """Stretches of whole lines around places, those together that are close to each other."""
    stretch = (0, -1)
    first = places[0]
    for place, following in zip(places, (*places[1:], None), strict=True):
        if following is not None and following - place < _APART:
            continue
        begin, end = _whole_lines(data, first, place)
        if begin <= stretch[1]:
            begin = stretch[0]
        elif stretch[1] >= 0:
            yield stretch
        stretch = (begin, end)
        first = following or 0
    yield stretch


def _whole_lines(data: bytes, first: int, last: int) -> tuple[int, int]:
    """Some lines before `first` and behind `last`."""
    begin = first
    end = last
    for _ in range(_LINES):
        begin = data.rfind(b"\n", max(0, first - _BYTES), max(0, begin))
        end = data.find(b"\n", end + 1, last + _BYTES) if end >= 0 else end
    return (
        begin + 1 if begin >= 0 else max(0, first - _BYTES),
        end if end >= 0 else min(len(data), last + _BYTES),
    )
