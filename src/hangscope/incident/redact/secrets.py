"""Finding secrets and user names in bytes, and replacing them. In layers:

1. what lies there is looked at as it is, and once more in its plain view, with escapes and encodings undone (`view`);
2. in both, at every needle that was found: secrets of known form (`patterns`), values by their name (`names`), by the
   structure around them (`structure`), and user names;
3. long words that are random (`random_words`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

from hangscope.incident.redact import names, random_words, structure
from hangscope.incident.redact import patterns as known
from hangscope.incident.redact.view import View, may_differ

_IDENTIFIER = re.compile(rb"[A-Za-z0-9_.-]*")
_LINE_FRONT = re.compile(rb"(?:\A|\n)[ \t]*(?:-[ \t]+)?[\"']?\Z")
_KEY_LINE = re.compile(
    rb"(?:[^\n]{0,160}?(?:[A-Za-z0-9+/=]{16,}|(?:Proc-Type|DEK-Info|Comment|Version):[^\n]*))?[ \t\r]*(?:\n|\Z)"
)


_USER = "user-name"
_OPENS = "opens"
"""No edit: a mark that what was found here may go on in other lines."""


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
        self.users = tuple(sorted(name for name in users if name not in known.GENERIC_USERS and len(name) >= 3))
        needles: dict[bytes, list[Handler]] = {}

        def on(words: Iterable[bytes], handler: Handler) -> None:
            for word in words:
                needles.setdefault(word, []).append(handler)

        for pattern in (*known.TOKENS, *known.SURROUNDED):
            on(pattern.needles, _by_pattern(pattern))
        on(names.NEEDLES, _assignment)
        on((b"-----begin",), _private_key)
        on((b"-----end ",), _headless_key)
        on((b"kind",), _kubernetes)
        on((b"@",), _email)
        on((b"/home/", b"/homes/", b"/users/"), self._home)
        on((b":\\users\\", b":\\\\users\\", b":/users/", b":\\\\\\\\users"), self._windows_home)
        on((b"user", b"logname"), self._user)
        on((b"uid=", b"gid="), self._numbered_user)
        on(known.SHARED_ROOTS, self._shared_home)
        on(known.CLUSTER_ROOTS, self._cluster)
        on((b"rw-", b"rwx", b"r--", b"r-x"), self._listed)
        on((b"ssh ", b"scp ", b"rsync ", b"sftp "), self._remote)
        on((b"@",), self._prompt)
        for name in self.users:
            self._alias(name)
            if name.lower() in known.WORDS:
                on((b"/" + name.lower(),), self._component)
                on((name.lower() + b"@",), self._at_host)
            else:
                on((name.lower(),), self._word)
        self._needles, overlaps = _search_for(tuple(sorted(needles)))
        self._table = {
            needle: [(other, offset, tuple(needles[other])) for other, offset in found]
            for needle, found in overlaps.items()
        }

    def clean(self, data: bytes) -> bytes:
        """`data` without secrets. Where there is none it is the same object."""
        edits = self.edits(data)
        return self.replaced(data, edits, 0, len(data)) if edits else data

    def replaced(self, data: bytes, edits: Iterable[Edit], begin: int, end: int) -> bytes:
        """The bytes from `begin` to `end`, with those edits made that begin there."""
        parts: list[bytes] = []
        position = begin
        for edit in edits:
            start = max(edit.start, begin)
            if edit.end <= begin or start >= end:
                continue
            old = data[start : edit.end]
            text = self._alias(old) if edit.kind == _USER else edit.text
            # Lines stay lines: what else a log says is found by its line number.
            parts += (data[position:start], text, b"\n" * (old.count(b"\n") - text.count(b"\n")))
            position = edit.end
            self.counts[edit.kind] += 1
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
        return self.examine(data)[0]

    def examine(self, data: bytes) -> tuple[list[Edit], bool, bool]:
        """The edits, whether any needle was there at all, and whether something begins here that goes on elsewhere."""
        found: list[Edit] = []
        hit = self._look(data, found)
        if may_differ(data):
            view = View(data)
            if view.differs:
                found = [_snapped(view, edit) for edit in found]
                found = [edit for edit in found if edit.start < edit.end or edit.kind == _OPENS]
                inner: list[Edit] = []
                hit = self._look(view.text, inner) or hit
                for edit in inner:
                    start, end = view.back(edit.start, edit.end)
                    found.append(Edit(start, end, edit.kind, b"" if edit.kind == _USER else redacted(edit.kind)))
        marks = [edit for edit in found if edit.kind == _OPENS]
        found = [edit for edit in found if edit.kind != _OPENS] if marks else found
        return _without_overlaps(found) if found else found, hit, bool(marks)

    def _look(self, data: bytes, found: list[Edit]) -> bool:
        table = self._table
        hit = None
        lower = data.lower()
        for hit in self._needles.finditer(lower):
            start = hit.start()
            for word, offset, handlers in table[hit.group()]:
                if lower.startswith(word, start + offset):
                    for handler in handlers:
                        handler(data, start + offset, found)
        _random(data, found)
        return hit is not None

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

    def _shared_home(self, data: bytes, at: int, out: list[Edit]) -> None:
        match = known.SHARED_HOME.match(data, at)
        if match is not None and match["s"].lower() not in known.FOLDERS:
            self._add_user(match, out)

    def _cluster(self, data: bytes, at: int, out: list[Edit]) -> None:
        match = known.CLUSTER.match(data, at)
        if match is not None and not at_folder(match["s"]) and not data[max(0, at - 1) : at].isalnum():
            self._add_user(match, out)

    def _listed(self, data: bytes, at: int, out: list[Edit]) -> None:
        match = known.LISTED.match(data, at - 1) if at else None
        self._add_user(match, out)
        if match is not None and match["g"] == match["s"] and out and out[-1].start == match.start("s"):
            out.append(Edit(match.start("g"), match.end("g"), _USER, b""))

    def _remote(self, data: bytes, at: int, out: list[Edit]) -> None:
        if not data[max(0, at - 1) : at].isalnum():
            self._add_user(known.REMOTE.match(data, at, at + 320), out)

    def _prompt(self, data: bytes, at: int, out: list[Edit]) -> None:
        self._add_user(known.PROMPT.match(data, back_over(data, at, known.EMAIL_FRONT, 32), at + 128), out)

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


def at_folder(name: bytes) -> bool:
    """Whether the name of a directory is made of words that name nobody."""
    return not known.FOLDERS.isdisjoint(re.split(rb"[._-]|\d+", name.lower())) or bool(re.search(rb"\d[a-z]|\.", name))


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


def _snapped(view: View, edit: Edit) -> Edit:
    start, end = view.snapped(edit.start, edit.end) if edit.start < edit.end else (edit.start, edit.end)
    return edit._replace(start=start, end=end)


def _by_pattern(pattern: known.Pattern) -> Handler:
    regex, back, reach, kind = pattern.regex, pattern.back, pattern.reach, pattern.kind
    text = redacted(kind)

    def handle(data: bytes, at: int, out: list[Edit]) -> None:
        if at < back:
            return
        match = regex.match(data, at - back, at + reach)
        if match is None:
            line_end = data.find(b"\n", at, at + 100)
            if kind in _WRAPPED:
                if line_end > 0:
                    _unwrapped(regex, data, at - back, line_end, kind, out)
                elif len(data) - at < 100 and _TO_THE_END.match(data, at):
                    out.append(Edit(at, at, _OPENS, b""))
            return
        if pattern.weak and data[max(0, at - back - 1) : at - back].isalnum():
            rest = match["s"].split(b"-" if b"-" in match["s"][:8] else b"_", 1)[-1]
            if not random_words.is_random(rest):
                return
        out.append(Edit(match.start("s"), match.end("s"), kind, text))
        if kind in _WRAPPED:
            out += (Edit(*span, kind, text) for span in structure.tail(data, match.start("s"), match.end("s")))

    return handle


_WRAPPED = frozenset(pattern.kind for pattern in known.TOKENS)
_TO_THE_END = re.compile(rb"[A-Za-z0-9+/_=.-]+[\"'\\]?[ \t\r]*\Z")
_BREAK = re.compile(rb"[ \t]*\r?\n[ \t]*")


def _unwrapped(regex: re.Pattern[bytes], data: bytes, at: int, line_end: int, kind: str, out: list[Edit]) -> None:
    """A token that an editor or a terminal broke in two: tried with the break taken out."""
    gap = _BREAK.search(data, at, line_end + 40)
    if gap is None or gap.end() - gap.start() > 40:
        return
    joined = data[at : gap.start()] + data[gap.end() : gap.end() + 400]
    match = regex.match(joined)
    first = gap.start() - at
    if match is None or not match.start("s") < first < match.end("s"):
        return
    text = redacted(kind)
    out.append(Edit(at + match.start("s"), gap.start(), kind, text))
    out.append(Edit(gap.end(), gap.end() + match.end("s") - first, kind, text))


_judged: dict[bytes, tuple[tuple[int, int, str], ...]] = {}


def _random(data: bytes, out: list[Edit]) -> None:
    """Long words that are random, with what goes on below them."""
    for match in random_words.LONG.finditer(data):
        word = match.group()
        spans = _judged.get(word)
        if spans is None:
            if len(_judged) > _JUDGED:
                _judged.clear()
            spans = _judged[word] = _judge(word) if len(word) < _LONGEST_WORD else ((0, len(word), _RANDOM),)
        for begin, end, kind in spans:
            start = match.start()
            if kind == _RANDOM and _CHECKSUM.search(data, max(0, start + begin - 12), start + begin):
                continue
            out.append(Edit(start + begin, start + end, kind, redacted(kind)))
            if end - begin >= 40:
                below = structure.tail(data, start + begin, start + end)
                out += (Edit(*span, kind, redacted(kind)) for span in below)


_RANDOM = "random-string"
_JUDGED = 50_000
_LONGEST_WORD = 64 << 10
_CHECKSUM = re.compile(rb"sha(?:1|224|256|384|512)[-:=]\Z")
"""What follows is the checksum of a file, also where it is written in base64."""


def _judge(word: bytes) -> tuple[tuple[int, int, str], ...]:
    found = [(*match.span("s"), kind) for kind, regex in known.WHOLE for match in regex.finditer(word)]
    return (*found, *((begin, end, _RANDOM) for begin, end in random_words.pieces(word)))


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
    _around(data, start, out)
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
    out += (Edit(*span, kind, redacted(kind)) for span in structure.wrapped(data, end))


def _around(data: bytes, start: int, out: list[Edit]) -> None:
    """What a secret's name gives away that is no assignment: its pair, the block below it, the brackets behind it."""
    start += len(data[start : start + 2]) - len(data[start : start + 2].lstrip(b"-"))
    end = _IDENTIFIER.match(data, start).end()  # type: ignore[union-attr]  # matches also nothing
    if end - start > 128:
        return
    kind = "secret"
    pair = data[start - 1 : start] in (b" ", b'"', b"'", b":", b"=") and names.PAIR_FRONT.search(
        data[max(0, start - 24) : start]
    )
    opened = structure.opens(data, end)
    if not pair and not opened:
        return
    if not names.secret_name(data[start:end]):
        return
    out.append(Edit(start, start, _OPENS, b""))
    if pair:
        tail = names.PAIR_TAIL.match(data, end, end + names.REACH)
        if tail is not None:
            out.append(Edit(*tail.span("quoted" if tail["open"] is not None else "bare"), kind, redacted(kind)))
        else:
            out += (Edit(*span, kind, redacted(kind)) for span in structure.before(data, start))
    else:
        out += (Edit(*span, kind, redacted(kind)) for span in structure.below(data, start, end))


def _kubernetes(data: bytes, at: int, out: list[Edit]) -> None:
    if structure.SECRET_OBJECT.match(data, at) is not None:
        out.append(Edit(at, at, _OPENS, b""))
    out += (Edit(*span, "secret", redacted("secret")) for span in structure.kubernetes(data, at))


def _headless_key(data: bytes, at: int, out: list[Edit]) -> None:
    end = known.PRIVATE_KEY_END.match(data, at)
    if end is not None:
        text = redacted("private-key")
        out.append(Edit(at, at, _OPENS, b""))
        out.append(Edit(at, at + end.end() - end.start(), "private-key", text))
        out += (Edit(*span, "private-key", text) for span in structure.headless(data, at))


def _private_key(data: bytes, at: int, out: list[Edit]) -> None:
    head = known.PRIVATE_KEY_START.match(data, at)
    if head is None:
        return
    out.append(Edit(at, at, _OPENS, b""))
    stop = head.end()
    end = known.PRIVATE_KEY_END.search(data, stop, stop + known.PRIVATE_KEY_BYTES)
    if end is not None:
        stop = end.end()
    else:
        # Cut off, or taken apart by a log: every line that looks like a part of a key goes.
        while stop < len(data) and (line := _KEY_LINE.match(data, stop)) is not None and line.end() > stop:
            stop = line.end()
        if stop == head.end():
            rest = _IDENTIFIER_OR_ESCAPE.match(data, stop)
            stop = rest.end() if rest else stop
        stop -= data[stop - 1 : stop] == b"\n"
    out.append(Edit(head.start(), stop, "private-key", redacted("private-key")))


_IDENTIFIER_OR_ESCAPE = re.compile(rb"[A-Za-z0-9+/=\\\s]*")


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
