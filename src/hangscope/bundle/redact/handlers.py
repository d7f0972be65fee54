"""What is done where a needle was found: each handler looks at the place and adds what is to be replaced."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from hangscope.bundle.redact import random_words, scan, secret_names, structure, value_columns
from hangscope.bundle.redact import secret_patterns as known

_LINE_FRONT = re.compile(rb"(?:\A|\n)[ \t]*(?:-[ \t]+)?[\"']?\Z")
_KEY_LINE = re.compile(
    rb"(?:[^\n]{0,160}?(?:[A-Za-z0-9+/=]{16,}|(?:Proc-Type|DEK-Info|Comment|Version):[^\n]*))?[ \t\r]*(?:\n|\Z)"
)


USER = "user-name"
OPENS = "opens"
"""No edit: a mark that what was found here may go on in other lines."""


class Edit(NamedTuple):
    """Bytes from `start` to `end` are a secret of this kind; `text` takes their place. A user's alias is given last."""

    start: int
    end: int
    kind: str
    text: bytes


Handler = Callable[[bytes, int, list[Edit]], None]
"""Looks at a place where its needle was found, and adds what is to be replaced."""


def back_over(data: bytes, at: int, letters: bytes, most: int) -> int:
    """Where the run of `letters` that ends at `at` begins."""
    front = data[max(0, at - most) : at]
    return at - (len(front) - len(front.rstrip(letters)))


@lru_cache(maxsize=256)
def redacted(kind: str) -> bytes:
    """What stands in a secret's place: no quotes, blanks or separators, so that what is around it still parses."""
    return b"[redacted:%s]" % kind.encode()


def by_pattern(pattern: known.Pattern) -> Handler:
    regex, back, reach, kind = pattern.regex, pattern.back, pattern.reach, pattern.kind
    text = redacted(kind)

    def handle(data: bytes, at: int, out: list[Edit]) -> None:
        if at < back:
            return
        match = regex.match(data, at - back, at + reach)
        if match is None:
            line_end = data.find(b"\n", at, at + 100) if kind in _WRAPPED else -1
            if line_end > 0:
                _unwrapped(regex, data, at - back, line_end, kind, out)
            return
        if pattern.weak and data[max(0, at - back - 1) : at - back].isalnum():
            rest = match["s"].split(b"-" if b"-" in match["s"][:8] else b"_", 1)[-1]
            if not random_words.is_random(rest):
                return
        # In a column of such words the first one's tail has gone through them all.
        followed = bool(out) and out[-1].kind == kind and out[-1].start > match.start("s")
        out.insert(len(out) - followed, Edit(match.start("s"), match.end("s"), kind, text))
        if kind in _WRAPPED and not followed:
            out += (Edit(*span, kind, text) for span in structure.tail(data, match.start("s"), match.end("s")))

    return handle


_WRAPPED = frozenset(pattern.kind for pattern in known.TOKENS)
_BREAK = re.compile(rb"[ \t]*\r?\n")


def _unwrapped(regex: re.Pattern[bytes], data: bytes, at: int, line_end: int, kind: str, out: list[Edit]) -> None:
    """A token that an editor or a terminal broke in two: tried with the break taken out."""
    gap = _BREAK.search(data, at, line_end + 40)
    if gap is None or gap.end() - gap.start() > 40:
        return
    behind = structure.continued(data, line_end + 1)
    joined = data[at : gap.start()] + data[behind : behind + 400]
    match = regex.match(joined)
    first = gap.start() - at
    if match is None or not match.start("s") < first < match.end("s"):
        return
    text = redacted(kind)
    out.append(Edit(at + match.start("s"), gap.start(), kind, text))
    end = behind + match.end("s") - first
    out.append(Edit(behind, end, kind, text))
    out += (Edit(*span, kind, text) for span in structure.tail(data, behind, end))


_judged: dict[bytes, tuple[tuple[int, int, str], ...]] = {}


def random_strings(data: bytes, out: list[Edit]) -> None:
    """Long words that are random, with what goes on below them. Those that are replaced already need no look."""
    followed = -1
    done = iter(sorted((edit.start, edit.end) for edit in out if edit.end - edit.start >= _LEAST))
    begun, ended = next(done, _NOWHERE)
    for start, stop in scan.long_words(data):
        while ended < stop and (begun, ended) != _NOWHERE:
            begun, ended = next(done, _NOWHERE)
        if begun <= start and stop <= ended:
            continue
        word = data[start:stop]
        spans = _judged.get(word)
        if spans is None:
            if len(_judged) > _JUDGED:
                _judged.clear()
            spans = _judged[word] = judged(word) if len(word) < _LONGEST_WORD else ((0, len(word), _RANDOM),)
        for begin, end, kind in spans:
            if kind == _RANDOM and _CHECKSUM.search(data, max(0, start + begin - 12), start + begin):
                continue
            out.append(Edit(start + begin, start + end, kind, redacted(kind)))
            if end - begin >= 40 and start + begin > followed:  # of a column of them the first one's tail is all of it
                for span in structure.tail(data, start + begin, start + end):
                    out.append(Edit(*span, kind, redacted(kind)))
                    followed = span[0]


_RANDOM = "random-string"
_LEAST = 20
_NOWHERE = (1 << 62, 1 << 62)
_JUDGED = 50_000
_LONGEST_WORD = 64 << 10
_CHECKSUM = re.compile(rb"(?i:sha)(?:1|224|256|384|512)[-:=]\Z")
"""What follows is the checksum of a file, also where it is written in base64."""


def judged(word: bytes) -> tuple[tuple[int, int, str], ...]:
    found = [(*match.span("s"), kind) for kind, regex in known.WHOLE for match in regex.finditer(word)]
    return (*found, *((begin, end, _RANDOM) for begin, end in random_words.pieces(word)))


_IN_ADDRESS = re.compile(rb"://[^\s/\"']*\Z")
"""The part of a web address in front of its host is no part of a mail address."""


def email(data: bytes, at: int, out: list[Edit]) -> None:
    start = back_over(data, at, known.EMAIL_FRONT, 64)
    if data[start:at] in (b"", b"git") or _IN_ADDRESS.search(data[max(0, at - 256) : at]):
        return
    match = known.EMAIL.match(data, at - len(data[start:at].lstrip(b"_.+%-")), at + 320)
    if match is not None:
        out.append(Edit(match.start("s"), match.end("s"), "email", redacted("email")))


def named(data: bytes, start: int, end: int, out: list[Edit]) -> None:
    """What the name of a secret between `start` and `end` gives away."""
    _around(data, start, end, out)
    _assigned(data, start, end, out)


def plainly_named(data: bytes, start: int, end: int, out: list[Edit]) -> bool:
    """Whether the name has a value written in the plainest way, which then is added."""
    plain = _PLAIN.match(data, end, end + secret_names.REACH)
    kind = secret_names.plain_kind(data[start:end]) if plain is not None else None
    if plain is None or kind is None:
        return False
    begin, stop = plain.span("s")
    out.append(Edit(begin, stop, kind, redacted(kind)))
    if data[stop : stop + 1] in (b"\n", b"\r"):
        out += (Edit(*span, kind, redacted(kind)) for span in structure.wrapped(data, stop))
    return True


_PLAIN = re.compile(
    rb"(?:=(?P<q>[\"']?)|[\"'] ?: ?(?P<r>[\"'])|: (?=[^\s,;]*\r?(?:\n|\Z)))(?!0x)"
    rb"(?P<s>(?=[A-Za-z_+-]*\d)(?=[\d_+-]*[A-Za-z][\d_+-]*[A-Za-z])[A-Za-z0-9][A-Za-z0-9_+-]{11,200}={0,2})"
    rb"(?(q)(?P=q)|(?(r)(?P=r)|))(?=[\s\"'}]|\Z|(?(r),|(?!)))"
)
"""The plainest ways to write a value, and the most common: most of a log full of secrets is like that."""


def _assigned(data: bytes, start: int, end: int, out: list[Edit]) -> None:
    start = secret_names.whole(data, start, end)
    match = secret_names.assignment(data, start, end)
    if match is not None and match["flag"] and match["bare"] and _METAVAR.fullmatch(match["bare"]):
        default = _DEFAULT.match(data, match.end(), match.end() + 400)
        if default is not None and secret_names.secret_name(match["name"].lstrip(b"-")):
            out.append(Edit(*default.span("s"), "secret", redacted("secret")))
            return
    kind = secret_names.kind_of(match) if match is not None else None
    if match is None or kind is None or (match["tag"] and not match["close"] and data[start - 1 : start] != b"<"):
        return
    group = "quoted" if match["open"] is not None else "bare"
    begin, end = match.span(group)
    text = redacted(kind)
    close = (match["close"] or b"").rstrip(b"]*`")
    if group == "bare" and b":" in match["sep"]:
        if close:  # a number in JSON: what replaces it must be a string
            text = close + text + close
        elif kind in ("password", "secret") and _LINE_FRONT.search(data[max(0, start - 80) : start]):
            scalar = secret_names.PLAIN_SCALAR.match(data, begin - 1)
            end = scalar.end() if scalar else end
    if group == "bare" and not close:
        while (more := secret_names.MORE.match(data, end, end + 256)) is not None:
            end = more.end()
    out.append(Edit(begin, end, kind, text))
    if group == "quoted" and data[end : end + 1] in (b"\n", b"\r"):
        out += (Edit(*span, kind, redacted(kind)) for span in structure.unclosed(data, end))
    elif data[end : end + 1] in (b"\n", b"\r", b"\\"):
        out += (Edit(*span, kind, redacted(kind)) for span in structure.wrapped(data, end))


_METAVAR = re.compile(rb"[A-Z]{3,16}")
_DEFAULT = re.compile(rb"[^\n]*?[\[(]default: (?P<s>[^\])\n]+)[\])]")
"""In the help of a program: `--password TEXT  … [default: x]`."""
_LISTED = re.compile(rb"[\"'][ \t]*,[ \t]*\\?\r?(?:\n|\Z)")
"""Behind a flag in a list with one word a line."""


_NEXT_ITEM = re.compile(rb"[ \t]*\r?(?:\Z|\n(?:[ \t]*-[ \t]+(?!-)[\"']?(?P<s>[^\s\"'][^\r\n\"']*))?)")
"""Behind a flag in a list of YAML: the next item."""


FOLLOWED = b"followed"
_LATEST = 8


def _around(data: bytes, start: int, end: int, out: list[Edit]) -> None:
    """What a secret's name gives away that is no assignment: its pair, the block below it, the brackets behind it."""
    start += len(data[start : start + 2]) - len(data[start : start + 2].lstrip(b"-"))
    if end - start > 128:
        return
    kind = "secret"
    pair = data[start - 1 : start] in (b" ", b'"', b"'", b":", b"=") and secret_names.PAIR_FRONT.search(
        data[max(0, start - 24) : start]
    )
    opened = structure.opens(data, end)
    flag = data[start - 2 : start] == b"--"
    listed = flag and _LISTED.match(data, end) is not None
    if (
        flag
        and secret_names.secret_name(data[start:end])
        and (word := _NEXT_ITEM.match(data, end, end + secret_names.REACH))
    ):
        out.append(Edit(start, start, OPENS, b""))
        if word["s"]:
            out.append(Edit(*word.span("s"), kind, redacted(kind)))
    if data[end : end + 2].lstrip(b"\"'")[:1] in _SEPARATORS or data[start - 1 : start] in _SEPARATORS:
        _column(data, start, end, out)
    if not pair and not opened and not listed:
        return
    if not secret_names.secret_name(data[start:end]) and not (opened and _spoken(data, start, end)):
        return
    out.append(Edit(start, start, OPENS, b""))
    if pair:
        tail = secret_names.PAIR_TAIL.match(data, end, end + secret_names.REACH)
        if tail is None and (part := secret_names.PART_TAIL.match(data, end, end + secret_names.REACH)) is not None:
            out.append(Edit(*part.span("bare"), kind, redacted(kind)))
        elif tail is not None:
            out.append(Edit(*tail.span("quoted" if tail["open"] is not None else "bare"), kind, redacted(kind)))
        else:
            out += (Edit(*span, kind, redacted(kind)) for span in structure.before(data, start))
    else:
        followed = _followed(out, end)
        spans = list(structure.below(data, start, end, followed))
        out += (Edit(*span, kind, redacted(kind)) for span in spans)
        last = spans[-1][1] + 1 if spans else max(structure.looked_through(data, end), followed)
        out.append(Edit(end, last, OPENS, FOLLOWED))


_SEPARATORS = (b",", b"\t", b"|", b";")


def _column(data: bytes, start: int, end: int, out: list[Edit]) -> None:
    """The values below a secret's name in the header of a table."""
    if value_columns.is_header(data, start) and secret_names.secret_name(data[start:end]):
        out.append(Edit(start, start, OPENS, b""))
        out += (Edit(*span, "secret", redacted("secret")) for span in value_columns.below(data, start))


def drawn(data: bytes, at: int, out: list[Edit]) -> None:
    """A variable's value below the line of code, at the end of a line that is drawn to it."""
    any_there, span = value_columns.drawn(data, at, secret_names.secret_name)
    if any_there:
        out.append(Edit(at, at, OPENS, b""))
    if span is not None:
        out.append(Edit(*span, "secret", redacted("secret")))


_WORD_BEFORE = re.compile(rb"[A-Za-z]{2,24}[ ]\Z")


def _spoken(data: bytes, start: int, end: int) -> bool:
    """Whether the word in front makes it a secret's name: `api key`, `session cookie`."""
    before = _WORD_BEFORE.search(data, max(0, start - 25), start)
    return before is not None and secret_names.secret_name(before.group()[:-1] + b"_" + data[start:end])


def _followed(out: list[Edit], at: int) -> int:
    """How far an open bracket in front of this place was followed: nothing in it needs to be found again."""
    marks = (edit for edit in reversed(out[-_LATEST:]) if edit.kind == OPENS and edit.text == FOLLOWED)
    return next((mark.end for mark in marks if mark.start < at < mark.end), 0)


_SIGNATURE = re.compile(rb"signature:[ \t]*\r?(?:\Z|\n(?:[ \t]*(?P<s>[0-9a-f]{64})(?![0-9A-Za-z]))?)", re.IGNORECASE)


def signature(data: bytes, at: int, out: list[Edit]) -> None:
    """What botocore signed a request with: in the line below its name."""
    match = _SIGNATURE.match(data, at)
    if match is not None:
        out.append(Edit(at, at, OPENS, b""))
        if match["s"]:
            out.append(Edit(*match.span("s"), "signed-url", redacted("signed-url")))


def kubernetes(data: bytes, at: int, out: list[Edit]) -> None:
    if structure.SECRET_OBJECT.match(data, at) is not None:
        out.append(Edit(at, at, OPENS, b""))
    out += (Edit(*span, "secret", redacted("secret")) for span in structure.kubernetes(data, at))


_WORDS = rb"(?P<s>(?:[a-z]{3,8}[ ,]{1,2}){11,23}[a-z]{3,8})(?![a-z])"
_SPOKEN = rb"(?i:mnemonic|(?:seed|recovery)[ _-]?(?:phrase|words?))"
_PHRASE = re.compile(_SPOKEN + rb"(?![A-Za-z])[^\n]{0,60}?(?<![a-z])" + _WORDS)
_PHRASE_BELOW = re.compile(_SPOKEN + rb"[ \t:=>\"'-]{0,6}\r?(?:\n|\Z)")
_ONLY_WORDS = re.compile(_WORDS)


def phrase(data: bytes, at: int, out: list[Edit]) -> None:
    """The words by which a wallet or an account is recovered, behind their name or in the line below it."""
    match = _PHRASE.match(data, at, at + 400)
    if match is None and (below := _PHRASE_BELOW.match(data, at)) is not None:
        out.append(Edit(at, at, OPENS, b""))
        match = _ONLY_WORDS.match(data, structure.continued(data, below.end()))
    if match is not None:
        out.append(Edit(*match.span("s"), "recovery-phrase", redacted("recovery-phrase")))


def headless_key(data: bytes, at: int, out: list[Edit]) -> None:
    end = known.PRIVATE_KEY_END.match(data, at)
    if end is not None:
        text = redacted("private-key")
        out.append(Edit(at, at, OPENS, b""))
        out.append(Edit(at, at + end.end() - end.start(), "private-key", text))
        out += (Edit(*span, "private-key", text) for span in structure.headless(data, at))


def private_key(data: bytes, at: int, out: list[Edit]) -> None:
    head = known.PRIVATE_KEY_START.match(data, at)
    if head is None:
        return
    out.append(Edit(at, at, OPENS, b""))
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
