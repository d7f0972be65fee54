"""Finding secrets and user names in bytes, and replacing them. In layers:

1. what lies there is looked at as it is, and once more in its plain view, with escapes and encodings undone (`view`);
2. in both, at every needle that was found: secrets of known form (`patterns`), values by their name (`names`), by the
   structure around them (`structure`), and user names;
3. long words that are random (`random_words`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache

from hangscope.bundle.redact import handlers, people, scan, secret_names, value_columns, wraps
from hangscope.bundle.redact import secret_patterns as known
from hangscope.bundle.redact.handlers import OPENS, USER, Edit, Handler, back_over, redacted
from hangscope.bundle.redact.plain_view import View


class Secrets:
    """Replaces secrets, and user names by user-1, user-2, …, and counts what it replaced.

    `users` are names that the evidence gives away somewhere (a home directory, USER=…); they are then replaced wherever
    they stand as a word. One that is also a word of logs and programs (adam, max) only in paths and in front of a host.
    """

    def __init__(self, users: Iterable[bytes] = ()) -> None:
        self.counts: Counter[str] = Counter()
        self._users: dict[bytes, bytes] = {}
        self.users = tuple(sorted(name for name in users if name not in known.GENERIC_USERS and len(name) >= 3))
        needles: dict[bytes, list[Handler]] = {}

        def on(words: Iterable[bytes], handler: Handler) -> None:
            for word in words:
                needles.setdefault(word, []).append(handler)

        for pattern in (*known.TOKENS, *known.SURROUNDED):
            on(pattern.needles, handlers.by_pattern(pattern))
        on((b"-----begin",), handlers.private_key)
        on((b"-----end ",), handlers.headless_key)
        on((b"kind",), handlers.kubernetes)
        on((b"signature:",), handlers.signature)
        on((b"\xe2\x94\x94 ",), handlers.drawn)
        on((b"mnemonic", b"seed", b"recovery"), handlers.phrase)
        on((b"@",), handlers.email)
        on((b"/home/", b"/homes/", b"/users/"), self._home)
        on((b":\\users\\", b":\\\\users\\", b":/users/", b":\\\\\\\\users"), self._windows_home)
        on((b"user", b"logname"), self._user)
        on((b"user", b"owner"), self._user_column)
        on((b"uid=", b"gid=", b"userid=", b"groupid="), self._numbered_user)
        on((b"owner",), self._owner)
        on(known.SHARED_ROOTS, self._shared_home)
        on(known.CLUSTER_ROOTS, self._cluster)
        on((b"rw-", b"rwx", b"r--", b"r-x"), self._listed)
        on((b"ssh ", b"scp ", b"rsync ", b"sftp "), self._remote)
        on((b"@",), self._prompt)
        for place in people.PLACES:
            on(place.needles, self._account_at(place))
        for name in self.users:
            self._alias(name)
            if name.lower() in known.WORDS:
                on((b"/" + name.lower(),), self._component)
                on((name.lower() + b"@",), self._at_host)
            else:
                on((name.lower(),), self._word)
        self._words = _words(frozenset((*needles, *secret_names.NEEDLES)), scan.in_use())
        self._acts = [tuple(needles.get(word, ())) for word in self._words]
        self._seen: dict[tuple[bytes, int], list[Edit]] = {}
        self._naming = [word in secret_names.NEEDLES for word in self._words]

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
            parts += (data[position:start], self._alias(data[start:stop]) if kind == USER else text)
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
        self._count(edits)
        return bytes(masked)

    def edits(self, data: bytes) -> list[Edit]:
        """What is to be replaced, in order, without overlaps. Changes nothing and counts nothing."""
        found = self._looked(data, deeper=2)
        found += wraps.more(data, found, self.edits) if b"\n" in data else ()
        views = [(begin, view) for begin, end in scan.escaped(data) if (view := View(data[begin:end])).differs]
        if views:
            found = _snapped(found, views)
            for begin, view in views:
                inner = self._looked(view.text, deeper=1)
                inner += wraps.more(view.text, inner, self.edits) if b"\n" in view.text else ()
                found += _back(view, inner, begin)
        return _without_overlaps(found) if found else found

    def _looked(self, data: bytes, *, deeper: int) -> list[Edit]:
        """What is there. Lines around something that goes on in other lines are looked at without their prefixes, too;
        and once more without those that only then are seen: of a log inside a string."""
        found: list[Edit] = []
        self._look(data, found)
        opened = sorted(edit.start for edit in found if edit.kind == OPENS)
        if opened:
            found = [edit for edit in found if edit.kind != OPENS]
            for begin, end in _around(data, opened) if deeper and b"\n" in data else ():
                view = View(data[begin:end], lines=True)
                if view.differs:
                    found += _back(view, self._looked(view.text, deeper=deeper - 1), begin)
        return found

    def _look(self, data: bytes, found: list[Edit]) -> None:
        acts, naming, identifier = self._acts, self._naming, _IDENTIFIER.match
        done = first = until = -1
        for place in self._words.places(data):
            at, number = place >> 16, place & 0xFFFF
            for act in acts[number]:
                act(data, at, found)
            if naming[number]:
                end = identifier(data, at, at + secret_names.LATEST).end()  # type: ignore[union-attr]  # matches also nothing
                if end <= until or end - at == secret_names.LATEST or (end == done and at - first <= _NEAR):
                    continue  # inside of a value, no end of a name, or another part of the same name
                done, first = end, at
                start = back_over(data, at, secret_names.FRONT, 72)
                if secret_names.is_name(data, start, end):
                    before = len(found)
                    if not handlers.plainly_named(data, start, end, found):
                        self._named(data, start, end, found)
                    until = next((edit.end for edit in found[before:] if end < edit.start < end + 8), until)
        handlers.random_strings(data, found)

    def _named(self, data: bytes, start: int, end: int, found: list[Edit]) -> None:
        """What a name gives away. In a line that was seen before, but for its digits, with the same one below it, that
        is at the same places; nothing is remembered of what may go on in other lines."""
        begin = data.rfind(b"\n", max(0, start - _WIDE), start) + 1
        line = data.find(b"\n", end, end + _WIDE)
        below = data.find(b"\n", line + 1, line + _WIDE)
        if line < 0 or below < 0 or (not begin and start >= _WIDE):
            handlers.named(data, start, end, found)
            return
        lines = data[begin:below]
        key = (lines if b"0x" in lines else lines.translate(_DIGITS), start - begin)
        known = self._seen.get(key)
        if known is None:
            before = len(found)
            handlers.named(data, start, end, found)
            new = found[before:]
            if all(edit.kind != OPENS and begin <= edit.start and edit.end <= line for edit in new):
                if len(self._seen) == _MOST_SEEN:
                    self._seen.clear()
                self._seen[key] = [Edit(one - begin, other - begin, kind, text) for one, other, kind, text in new]
        else:
            found += [Edit(one + begin, other + begin, kind, text) for one, other, kind, text in known]

    def _count(self, edits: Iterable[Edit]) -> None:
        self.counts.update(edit.kind for edit in edits)

    # ---- user names --------------------------------------------------------------------------------------------------

    def _alias(self, name: bytes) -> bytes:
        return self._users.setdefault(name, b"user-%d" % (len(self._users) + 1))

    def _add_user(self, match: re.Match[bytes] | None, out: list[Edit]) -> None:
        if match is not None and (name := match["s"]) not in known.GENERIC_USERS and not _ALIAS.fullmatch(name):
            out.append(Edit(match.start("s"), match.end("s"), USER, b""))

    def _home(self, data: bytes, at: int, out: list[Edit]) -> None:
        if data.startswith(b"/users/", at) and at and data[at - 1 : at].isalnum():
            return  # an address on the web, not a directory
        self._add_user(known.HOME.match(data, at), out)

    def _windows_home(self, data: bytes, at: int, out: list[Edit]) -> None:
        self._add_user(known.WINDOWS_HOME.match(data, at), out)

    def _user(self, data: bytes, at: int, out: list[Edit]) -> None:
        self._add_user(known.USER.match(data, back_over(data, at, known.USER_FRONT, 40)), out)
        self._add_user(known.USER_FIELD.match(data, at), out)

    def _user_column(self, data: bytes, at: int, out: list[Edit]) -> None:
        """Users below the name of their column: `JobID|User|State`."""
        head = _USER_HEADER.match(data, max(0, at - 1))
        if head is None or (at and head.group()[:1] not in b",\t|;\n"):
            return
        if not value_columns.is_header(data, at):
            return
        out.append(Edit(at, at, OPENS, b""))
        for start, end in value_columns.below(data, at):
            self._add_user(_USER_CELL.fullmatch(data, start, end), out)

    def _numbered_user(self, data: bytes, at: int, out: list[Edit]) -> None:
        self._add_user(known.NUMBERED_USER.match(data, at), out)
        self._add_user(known.NAMED_USER.match(data, at), out)

    def _owner(self, data: bytes, at: int, out: list[Edit]) -> None:
        match = known.OWNER.match(data, at)
        if match is not None and not at_folder(match["s"]):
            self._add_user(match, out)

    def _shared_home(self, data: bytes, at: int, out: list[Edit]) -> None:
        match = known.SHARED_HOME.match(data, at)
        if match is not None and match["s"].lower() not in known.FOLDERS:
            self._add_user(match, out)

    def _cluster(self, data: bytes, at: int, out: list[Edit]) -> None:
        match = known.CLUSTER.match(data, at)
        if match is not None and not at_folder(match["s"]):
            web = data.rfind(b"://", max(0, at - 200), at)
            if web < 0 or not _WEB.match(data, web, at):
                self._add_user(match, out)

    def _listed(self, data: bytes, at: int, out: list[Edit]) -> None:
        match = known.LISTED.match(data, at - 1) if at else None
        self._add_user(match, out)
        if match is not None and match["g"] == match["s"] and out and out[-1].start == match.start("s"):
            out.append(Edit(match.start("g"), match.end("g"), USER, b""))

    def _remote(self, data: bytes, at: int, out: list[Edit]) -> None:
        if not data[max(0, at - 1) : at].isalnum():
            self._add_user(known.REMOTE.match(data, at, at + 320), out)

    def _account_at(self, place: people.Place) -> Handler:
        return lambda data, at, out: self._add_user(place.find(data, at), out)

    def _prompt(self, data: bytes, at: int, out: list[Edit]) -> None:
        self._add_user(known.PROMPT.match(data, back_over(data, at, known.EMAIL_FRONT, 32), at + 128), out)

    def _word(self, data: bytes, at: int, out: list[Edit]) -> None:
        """A known user's name as a whole word, wherever it stands."""
        if out and out[-1].start == at and out[-1].kind == USER:
            return
        end = _WORD_END.search(data, at)
        name = data[at : end.start() if end else len(data)].rstrip(b".-")
        if name in self._users and not _WORD_LETTER.match(data, at - 1 if at else len(data)):
            out.append(Edit(at, at + len(name), USER, b""))

    def _component(self, data: bytes, at: int, out: list[Edit]) -> None:
        """A whole component of a path that is a known user's name."""
        end = _COMPONENT_END.search(data, at + 1)
        name = data[at + 1 : end.start() if end else len(data)]
        if name in self._users:
            out.append(Edit(at + 1, at + 1 + len(name), USER, b""))

    def _at_host(self, data: bytes, at: int, out: list[Edit]) -> None:
        name = data[at : max(at, data.find(b"@", at, at + 65))]
        if name in self._users and not data[max(0, at - 1) : at].isalnum():
            out.append(Edit(at, at + len(name), USER, b""))


@lru_cache(maxsize=4096)
def at_folder(name: bytes) -> bool:
    """Whether the name of a directory is made of words that name nobody."""
    return not known.FOLDERS.isdisjoint(re.split(rb"[._-]|\d+", name.lower())) or bool(
        re.search(rb"\d[a-z]|\.|[_-]\d+\Z", name)
    )


_USER_HEADER = re.compile(rb"(?:[,\t|;\n]|\A)?(?:user(?:name)?|owner)(?=[,\t|;][A-Za-z]|\r?\n|\Z)", re.IGNORECASE)
_USER_CELL = re.compile(rb"(?P<s>[A-Za-z_][\w.-]{1,31})")
_WEB = re.compile(rb"[^\s\"']*\Z")
"""In an address on the web `/work/` is no directory."""
_ALIAS = re.compile(rb"user-\d+")
_WORD_LETTER = re.compile(rb"[A-Za-z0-9_-]")
_WORD_END = re.compile(rb"[^A-Za-z0-9_.-]")
_COMPONENT_END = re.compile(rb"[^A-Za-z0-9_.+-]")


_IDENTIFIER = re.compile(rb"[A-Za-z0-9_.-]*")
_NEAR = 60
_WIDE = 600
"""Lines from here on are hardly seen twice."""
_MOST_SEEN = 20_000
_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)


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


_LINES, _BYTES, _APART = 120, 48 << 10, 2 << 10


def _around(data: bytes, places: list[int]) -> Iterator[tuple[int, int]]:
    """Stretches of whole lines around places, those together that are close to each other."""
    stretch, first = (0, -1), places[0]
    for place, following in zip(places, (*places[1:], None), strict=True):
        if following is not None and following - place < _APART:
            continue
        begin, end = first, place
        for _ in range(_LINES):
            begin = data.rfind(b"\n", max(0, first - _BYTES), max(0, begin))
            end = data.find(b"\n", end + 1, place + _BYTES) if end >= 0 else end
        begin = begin + 1 if begin >= 0 else max(0, first - _BYTES)
        end = end if end >= 0 else min(len(data), place + _BYTES)
        if begin <= stretch[1]:
            begin = stretch[0]
        elif stretch[1] >= 0:
            yield stretch
        stretch, first = (begin, end), following or 0
    yield stretch


_GENERIC = frozenset(("password", "secret", "token", "api-key", "credentials", "random-string"))
"""Kinds that a name gave; where a pattern knows the value itself, its kind says more."""


def _without_overlaps(found: list[Edit]) -> list[Edit]:
    found.sort(key=lambda edit: (edit.start, -edit.end, edit.kind in _GENERIC))
    kept = [found[0]]
    for edit in found[1:]:
        last = kept[-1]
        if edit.start >= last.end:
            kept.append(edit)
        elif edit.end > last.end:
            kind = edit.kind if last.kind == USER else last.kind
            kept[-1] = Edit(last.start, edit.end, kind, redacted(kind))
    return kept


@lru_cache(maxsize=4)
def _words(words: frozenset[bytes], in_c: bool) -> scan.Words:
    return scan.Words(words, in_c=in_c)
