"""Finding secrets and user names in bytes, and replacing them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

from hangscope.incident.redact import names
from hangscope.incident.redact import patterns as known

_IDENTIFIER = re.compile(rb"[A-Za-z0-9_.-]*")
_LINE_FRONT = re.compile(rb"(?:\A|\n)[ \t]*(?:-[ \t]+)?[\"']?\Z")
_KEY_LINE = re.compile(
    rb"(?:[^\n]{0,160}?(?:[A-Za-z0-9+/=]{16,}|(?:Proc-Type|DEK-Info|Comment|Version):[^\n]*))?[ \t\r]*(?:\n|\Z)"
)


_USER = "user-name"


class Edit(NamedTuple):
    """Bytes from `start` to `end` are a secret of this kind; `text` takes their place. A user's alias is given last."""

    start: int
    end: int
    kind: str
    text: bytes


Handler = Callable[[bytes, int, list[Edit]], None]
"""Looks at a place where its needle was found, and adds what is to be replaced."""


class Secrets:
    """Replaces secrets, and user names by user-1, user-2, …, and counts what it replaced.

    `users` are names that the evidence gives away somewhere (a home directory, USER=…); they are then replaced wherever
    they stand as a word. One that is also a word of logs and programs (adam, max) only in paths and in front of a host.
    """

    def __init__(self, users: Iterable[bytes] = ()) -> None:
        self.counts: Counter[str] = Counter()
        self._users: dict[bytes, bytes] = {}
        needles: dict[bytes, list[Handler]] = {}

        def on(words: Iterable[bytes], handler: Handler) -> None:
            for word in words:
                needles.setdefault(word, []).append(handler)

        for pattern in (*known.TOKENS, *known.SURROUNDED):
            on(pattern.needles, _by_pattern(pattern))
        on(names.NEEDLES, _assignment)
        on((b"-----begin",), _private_key)
        on((b"@",), _email)
        on((b"/home/", b"/homes/", b"/users/"), self._home)
        on((b":\\users\\", b":\\\\users\\", b":/users/", b":\\\\\\\\users"), self._windows_home)
        on((b"user", b"logname"), self._user)
        on((b"uid=", b"gid="), self._numbered_user)
        for name in sorted(users):
            if name in known.GENERIC_USERS or len(name) < 3:
                continue
            self._alias(name)
            if name.lower() in known.WORDS:
                on((b"/" + name.lower(),), self._component)
                on((name.lower() + b"@",), self._at_host)
            else:
                on((name.lower(),), self._word)
        self._needles, overlaps = _search_for(tuple(sorted(needles)))
        self._table = {
            needle: [(handler, offset) for other, offset in found for handler in needles[other]]
            for needle, found in overlaps.items()
        }

    def clean(self, data: bytes) -> bytes:
        """`data` without secrets. Where there is none it is the same object."""
        edits = self.edits(data)
        if not edits:
            return data
        parts: list[bytes] = []
        position = 0
        for edit in edits:
            text = self._alias(data[edit.start : edit.end]) if edit.kind == _USER else edit.text
            parts += (data[position : edit.start], text)
            position = edit.end
        parts.append(data[position:])
        self._count(edits)
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
        found: list[Edit] = []
        table = self._table
        for hit in self._needles.finditer(data.lower()):
            start = hit.start()
            for handler, offset in table[hit.group()]:
                handler(data, start + offset, found)
        return _without_overlaps(found) if found else found

    def _count(self, edits: Iterable[Edit]) -> None:
        self.counts.update(edit.kind for edit in edits)

    # ---- user names --------------------------------------------------------------------------------------------------

    def _alias(self, name: bytes) -> bytes:
        return self._users.setdefault(name, b"user-%d" % (len(self._users) + 1))

    def _add_user(self, match: re.Match[bytes] | None, out: list[Edit]) -> None:
        if match is not None and (name := match["s"]) not in known.GENERIC_USERS and not _ALIAS.fullmatch(name):
            out.append(Edit(match.start("s"), match.end("s"), _USER, b""))

    def _home(self, data: bytes, at: int, out: list[Edit]) -> None:
        if data[at : at + 7] == b"/users/" and at and data[at - 1 : at].isalnum():
            return  # an address on the web, not a directory
        self._add_user(known.HOME.match(data, at), out)

    def _windows_home(self, data: bytes, at: int, out: list[Edit]) -> None:
        self._add_user(known.WINDOWS_HOME.match(data, at), out)

    def _user(self, data: bytes, at: int, out: list[Edit]) -> None:
        self._add_user(known.USER.match(data, back_over(data, at, known.USER_FRONT, 40)), out)
        self._add_user(known.USER_FIELD.match(data, at), out)

    def _numbered_user(self, data: bytes, at: int, out: list[Edit]) -> None:
        self._add_user(known.NUMBERED_USER.match(data, at), out)

    def _word(self, data: bytes, at: int, out: list[Edit]) -> None:
        """A known user's name as a whole word, wherever it stands."""
        end = _WORD_END.search(data, at)
        name = data[at : end.start() if end else len(data)].rstrip(b".-")
        if name in self._users and not _WORD_LETTER.match(data, at - 1 if at else len(data)):
            out.append(Edit(at, at + len(name), _USER, b""))

    def _component(self, data: bytes, at: int, out: list[Edit]) -> None:
        """A whole component of a path that is a known user's name."""
        end = _COMPONENT_END.search(data, at + 1)
        name = data[at + 1 : end.start() if end else len(data)]
        if name in self._users:
            out.append(Edit(at + 1, at + 1 + len(name), _USER, b""))

    def _at_host(self, data: bytes, at: int, out: list[Edit]) -> None:
        name = data[at : max(at, data.find(b"@", at, at + 65))]
        if name in self._users and not data[max(0, at - 1) : at].isalnum():
            out.append(Edit(at, at + len(name), _USER, b""))


_ALIAS = re.compile(rb"user-\d+")
_WORD_LETTER = re.compile(rb"[A-Za-z0-9_-]")
_WORD_END = re.compile(rb"[^A-Za-z0-9_.-]")
_COMPONENT_END = re.compile(rb"[^A-Za-z0-9_.+-]")


def back_over(data: bytes, at: int, letters: bytes, most: int) -> int:
    """Where the run of `letters` that ends at `at` begins."""
    front = data[max(0, at - most) : at]
    return at - (len(front) - len(front.rstrip(letters)))


def redacted(kind: str) -> bytes:
    """What stands in a secret's place: no quotes, blanks or separators, so that what is around it still parses."""
    return b"[redacted:%s]" % kind.encode()


def _by_pattern(pattern: known.Pattern) -> Handler:
    regex, back, reach, kind = pattern.regex, pattern.back, pattern.reach, pattern.kind
    text = redacted(kind)

    def handle(data: bytes, at: int, out: list[Edit]) -> None:
        match = regex.match(data, at - back, at + reach) if at >= back else None
        if match is not None:
            out.append(Edit(match.start("s"), match.end("s"), kind, text))

    return handle


_IN_ADDRESS = re.compile(rb"://[^\s/\"']*\Z")
"""The part of a web address in front of its host is no part of a mail address."""


def _email(data: bytes, at: int, out: list[Edit]) -> None:
    start = back_over(data, at, known.EMAIL_FRONT, 64)
    if data[start:at] in (b"", b"git") or _IN_ADDRESS.search(data[max(0, at - 256) : at]):
        return
    match = known.EMAIL.match(data, at - len(data[start:at].lstrip(b"_.+%-")), at + 320)
    if match is not None:
        out.append(Edit(match.start("s"), match.end("s"), "email", redacted("email")))


def _assignment(data: bytes, at: int, out: list[Edit]) -> None:
    start = back_over(data, at, names.FRONT, 72)
    if _pair(data, start, out):
        return
    if data[start - 1 : start] == b" ":
        start -= next(
            (len(word) for word in names.FIRST_WORDS if data[max(0, start - 8) : start].lower().endswith(word)), 0
        )
    match = names.ASSIGNMENT.match(data, start, start + names.REACH)
    kind = names.kind_of(match) if match is not None else None
    if match is None or kind is None or (match["tag"] and data[start - 1 : start] != b"<"):
        return
    group = "quoted" if match["open"] is not None else "bare"
    begin, end = match.span(group)
    text = redacted(kind)
    close = (match["close"] or b"").rstrip(b"]")
    if group == "bare" and b":" in match["sep"]:
        if close:  # a number in JSON: what replaces it must be a string
            text = close + text + close
        elif kind in ("password", "secret") and _LINE_FRONT.search(data[max(0, start - 80) : start]):
            scalar = names.PLAIN_SCALAR.match(data, begin - 1)
            end = scalar.end() if scalar else end
    if group == "bare" and not close and kind in ("password", "secret"):
        while (more := names.MORE.match(data, end, end + 256)) is not None:
            end = more.end()
    out.append(Edit(begin, end, kind, text))


def _pair(data: bytes, start: int, out: list[Edit]) -> bool:
    """`name: PASSWORD` with its `value:` behind it."""
    if data[start - 1 : start] not in (b" ", b'"', b"'", b":", b"=") or not names.PAIR_FRONT.search(
        data[max(0, start - 24) : start]
    ):
        return False
    end = _IDENTIFIER.match(data, start).end()  # type: ignore[union-attr]  # matches also nothing
    tail = names.PAIR_TAIL.match(data, end, end + names.REACH)
    if tail is None or not names.secret_name(data[start:end]):
        return False
    begin, stop = tail.span("quoted" if tail["open"] is not None else "bare")
    out.append(Edit(begin, stop, "secret", redacted("secret")))
    return True


def _private_key(data: bytes, at: int, out: list[Edit]) -> None:
    head = known.PRIVATE_KEY_START.match(data, at)
    if head is None:
        return
    start = head.end()
    end = known.PRIVATE_KEY_END.search(data, start, start + known.PRIVATE_KEY_BYTES)
    if end is not None:
        stop = end.start()
    else:
        # Cut off, or taken apart by a log: every line that looks like a part of a key goes.
        stop = start
        while stop < len(data) and (line := _KEY_LINE.match(data, stop)) is not None and line.end() > stop:
            stop = line.end()
        if stop == start:
            rest = _IDENTIFIER_OR_ESCAPE.match(data, start)
            stop = rest.end() if rest else start
    # Lines stay lines: what else a log says is found by its line number.
    out.append(Edit(start, stop, "private-key", redacted("private-key") + b"\n" * data.count(b"\n", start, stop)))


_IDENTIFIER_OR_ESCAPE = re.compile(rb"[A-Za-z0-9+/=\\\s]*")


_GENERIC = frozenset(("password", "secret", "token", "api-key", "credentials"))
"""Kinds that a name gave; where a pattern knows the value itself, its kind says more."""


def _without_overlaps(found: list[Edit]) -> list[Edit]:
    found.sort(key=lambda edit: (edit.start, -edit.end, edit.kind in _GENERIC))
    kept = [found[0]]
    for edit in found[1:]:
        last = kept[-1]
        if edit.start >= last.end:
            kept.append(edit)
        elif edit.end > last.end:
            kind = edit.kind if last.kind == _USER else last.kind
            kept[-1] = Edit(last.start, edit.end, kind, redacted(kind))
    return kept


@lru_cache(maxsize=4)
def _search_for(words: tuple[bytes, ...]) -> tuple[re.Pattern[bytes], dict[bytes, list[tuple[bytes, int]]]]:
    """One search for all words; and for each word those that may begin inside it, which the search then steps over."""
    overlaps: dict[bytes, list[tuple[bytes, int]]] = {}
    for word in words:
        found = overlaps[word] = []
        for offset in range(len(word)):
            rest = word[offset:]
            found += [(other, offset) for other in words if rest.startswith(other) or other.startswith(rest)]
    return re.compile(_trie(words)), overlaps


def _trie(words: Iterable[bytes]) -> bytes:
    """One regular expression for all words, by their common beginnings. A word that begins another one hides it."""
    root: dict[int, object] = {}
    for word in sorted(words):
        node = root
        for byte in word[:-1]:
            step = node.setdefault(byte, {})
            if step is None:
                break
            node = step  # type: ignore[assignment]  # a nested dictionary of the same kind
        else:
            node[word[-1]] = None

    def build(node: dict[int, object]) -> bytes:
        parts = []
        for byte, below in node.items():
            parts.append(re.escape(bytes([byte])) + (build(below) if isinstance(below, dict) else b""))
        return parts[0] if len(parts) == 1 else b"(?:" + b"|".join(parts) + b")"

    return build(root)
