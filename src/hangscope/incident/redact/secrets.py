"""Finding secrets and user names in bytes, and replacing them. In layers:

1. what lies there is looked at as it is, and once more in its plain view, with escapes and encodings undone (`view`);
2. in both, at every needle that was found: secrets of known form (`patterns`), values by their name (`names`), by the
   structure around them (`structure`), and user names;
3. long words that are random (`random_words`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache

from hangscope.incident.redact import handlers, names, random_words
from hangscope.incident.redact import patterns as known
from hangscope.incident.redact.handlers import BROKEN, OPENS, USER, Edit, Handler, back_over, redacted
from hangscope.incident.redact.view import MARK, View, may_differ


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
        on(names.NEEDLES, handlers.assignment)
        on((b"-----begin",), handlers.private_key)
        on((b"-----end ",), handlers.headless_key)
        on((b"kind",), handlers.kubernetes)
        on((b"signature:",), handlers.signature)
        on((b"@",), handlers.email)
        on((b"/home/", b"/homes/", b"/users/"), self._home)
        on((b":\\users\\", b":\\\\users\\", b":/users/", b":\\\\\\\\users"), self._windows_home)
        on((b"user", b"logname"), self._user)
        on((b"uid=", b"gid=", b"userid=", b"groupid="), self._numbered_user)
        on((b"owner",), self._owner)
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
        self._needles, longer = _search_for(tuple(sorted(needles)))
        self._table = {needle: [(other, tuple(needles[other])) for other in found] for needle, found in longer.items()}

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
        return self.examine(data)[0]

    def examine(self, data: bytes) -> tuple[list[Edit], bool, bool]:
        """The edits, whether any needle was there at all, and whether something begins here that goes on elsewhere."""
        found: list[Edit] = []
        hit = self._look(data, found)
        opens = any(edit.kind == OPENS for edit in found) and b"\n" in data
        if opens or may_differ(data):
            view = View(data, lines=opens)
            if view.differs:
                found = [_snapped(view, edit) for edit in found]
                found = [edit for edit in found if edit.start < edit.end or edit.kind == OPENS]
                inner: list[Edit] = []
                hit = self._look(view.text, inner) or hit
                if b"\n" in view.text and any(edit.kind == OPENS for edit in inner):
                    self._look_below(view.text, inner)
                found += (_back(view, edit) for edit in inner)
        marks = [edit for edit in found if edit.kind == OPENS]
        found = [edit for edit in found if edit.kind != OPENS] if marks else found
        marks = [mark for mark in marks if mark.text != BROKEN or not _inside(mark.start, found)]
        return _without_overlaps(found) if found else found, hit, bool(marks)

    def suspects(self, data: bytes) -> Iterator[int]:
        """Places of `data` at which there may be something to find, at most one a line. Elsewhere there is nothing."""
        places = []
        for search, text in (
            (self._needles.search, data.lower()),
            (random_words.LONG.search, data),
            (MARK.search, data),
        ):
            hit = search(text)
            while hit is not None:
                places.append(hit.start())
                end = text.find(b"\n", hit.start())
                hit = search(text, end) if end >= 0 else None
        return iter(sorted(places))

    def _look_below(self, text: bytes, found: list[Edit]) -> None:
        """Once more, without the prefixes of lines that only the view has: those of a log inside a string."""
        view = View(text, lines=True)
        if view.differs:
            inner: list[Edit] = []
            self._look(view.text, inner)
            found += [_back(view, edit) for edit in inner]

    def _look(self, data: bytes, found: list[Edit]) -> bool:
        table, search = self._table, self._needles.search
        any_hit = False
        lower = data.lower()
        hit = search(lower)
        while hit is not None:
            any_hit = True
            start = hit.start()
            for word, acts in table[hit.group()]:
                if lower.startswith(word, start):
                    for act in acts:
                        act(data, start, found)
            hit = search(lower, start + 1)  # another one may begin inside of it
        handlers.random_strings(data, found)
        return any_hit

    def _count(self, edits: Iterable[Edit]) -> None:
        self.counts.update(edit.kind for edit in edits)

    # ---- user names --------------------------------------------------------------------------------------------------

    def _alias(self, name: bytes) -> bytes:
        return self._users.setdefault(name, b"user-%d" % (len(self._users) + 1))

    def _add_user(self, match: re.Match[bytes] | None, out: list[Edit]) -> None:
        if match is not None and (name := match["s"]) not in known.GENERIC_USERS and not _ALIAS.fullmatch(name):
            out.append(Edit(match.start("s"), match.end("s"), USER, b""))

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
        if match is not None and not at_folder(match["s"]) and not _WEB.search(data, max(0, at - 200), at):
            self._add_user(match, out)

    def _listed(self, data: bytes, at: int, out: list[Edit]) -> None:
        match = known.LISTED.match(data, at - 1) if at else None
        self._add_user(match, out)
        if match is not None and match["g"] == match["s"] and out and out[-1].start == match.start("s"):
            out.append(Edit(match.start("g"), match.end("g"), USER, b""))

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


def at_folder(name: bytes) -> bool:
    """Whether the name of a directory is made of words that name nobody."""
    return not known.FOLDERS.isdisjoint(re.split(rb"[._-]|\d+", name.lower())) or bool(
        re.search(rb"\d[a-z]|\.|[_-]\d+\Z", name)
    )


_WEB = re.compile(rb"://[^\s\"']*\Z")
"""In an address on the web `/work/` is no directory."""
_ALIAS = re.compile(rb"user-\d+")
_WORD_LETTER = re.compile(rb"[A-Za-z0-9_-]")
_WORD_END = re.compile(rb"[^A-Za-z0-9_.-]")
_COMPONENT_END = re.compile(rb"[^A-Za-z0-9_.+-]")


def _snapped(view: View, edit: Edit) -> Edit:
    start, end = view.snapped(edit.start, edit.end) if edit.start < edit.end else (edit.start, edit.end)
    return edit._replace(start=start, end=end)


def _inside(at: int, edits: list[Edit]) -> bool:
    """Whether what is there is replaced already, by its name: where its line ends, so does it."""
    return any(edit.start <= at < edit.end for edit in edits)


def _back(view: View, edit: Edit) -> Edit:
    """What was found in the view, where it lies in what the view is of."""
    return Edit(*view.back(edit.start, edit.end), edit.kind, b"" if edit.kind == USER else redacted(edit.kind))


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
def _search_for(words: tuple[bytes, ...]) -> tuple[re.Pattern[bytes], dict[bytes, list[bytes]]]:
    """One search for all words; and for each word those that begin with it, which it hides from the search."""
    return re.compile(_trie(words)), {word: [other for other in words if other.startswith(word)] for word in words}


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
