"""What is done where a needle was found: each handler looks at the place and adds what is to be replaced."""

from __future__ import annotations

import re

from hangscope.bundle.edits import Edit, Findings, Handler, back_over, redacted
from hangscope.bundle.redact import assignments, random_words, scan, structure
from hangscope.bundle.redact import secret_forms as forms

# ---- secrets of known form -------------------------------------------------------------------------------------------


def by_pattern(pattern: forms.Pattern) -> Handler:
    def handle(data: bytes, at: int, out: Findings) -> None:
        begin = at - pattern.back
        match = pattern.regex.match(data, begin, at + pattern.reach) if begin >= 0 else None
        if match is None or (pattern.weak and not _is_token_of_its_own(data, begin, match["s"])):
            return
        out.add(match.span("s"), pattern.kind)

    return handle


def _is_token_of_its_own(data: bytes, begin: int, token: bytes) -> bool:
    """Whether a token whose beginning is also the end of ordinary words (`task-`) is none of those."""
    if not data[max(0, begin - 1) : begin].isalnum():
        return True
    rest = token.split(b"-" if b"-" in token[:8] else b"_", 1)[-1]
    return random_words.is_random(rest)


_IN_ADDRESS = re.compile(rb"://[^\s/\"']*\Z")
"""The part of a web address in front of its host is no part of a mail address."""


def email(data: bytes, at: int, out: Findings) -> None:
    start = back_over(data, at, forms.EMAIL_FRONT, 64)
    if data[start:at] in (b"", b"git") or _IN_ADDRESS.search(data[max(0, at - 256) : at]):
        return
    match = forms.EMAIL.match(data, at - len(data[start:at].lstrip(b"_.+%-")), at + 320)
    if match is not None:
        out.add(match.span("s"), "email")


_SIGNATURE = re.compile(rb"signature:[ \t]*\r?(?:\Z|\n(?:[ \t]*(?P<s>[0-9a-f]{64})(?![0-9A-Za-z]))?)", re.IGNORECASE)


def signature(data: bytes, at: int, out: Findings) -> None:
    """What botocore signed a request with: in the line below its name."""
    match = _SIGNATURE.match(data, at)
    if match is not None:
        out.opened.append(at)
        if match["s"]:
            out.add(match.span("s"), "signed-url")


_PHRASE = re.compile(
    rb"(?i:mnemonic|(?:seed|recovery)[ _-]?(?:phrase|words?))(?![A-Za-z])[^\n]{0,60}?(?<![a-z])"
    rb"(?P<s>(?:[a-z]{3,8}[ ,]{1,2}){11,23}[a-z]{3,8})(?![a-z])"
)


def recovery_phrase(data: bytes, at: int, out: Findings) -> None:
    """The words by which a wallet or an account is recovered, behind their name."""
    match = _PHRASE.match(data, at, at + 400)
    if match is not None:
        out.add(match.span("s"), "recovery-phrase")


def kubernetes(data: bytes, at: int, out: Findings) -> None:
    if structure.SECRET_OBJECT.match(data, at) is not None:
        out.opened.append(at)
        for span in structure.kubernetes(data, at):
            out.add(span, "secret")


# ---- private keys ----------------------------------------------------------------------------------------------------

_KEY_LINE = re.compile(
    rb"(?:[^\n]{0,160}?(?:[A-Za-z0-9+/=]{16,}|(?:Proc-Type|DEK-Info|Comment|Version):[^\n]*))?[ \t\r]*(?:\n|\Z)"
)
_KEY_IN_STRING = re.compile(rb"[A-Za-z0-9+/=\\\s]*")


def private_key(data: bytes, at: int, out: Findings) -> None:
    head = forms.PRIVATE_KEY_START.match(data, at)
    if head is None:
        return
    out.opened.append(at)
    end = forms.PRIVATE_KEY_END.search(data, head.end(), head.end() + forms.PRIVATE_KEY_BYTES)
    stop = end.end() if end is not None else _end_of_cut_key(data, head.end())
    out.add((at, stop), "private-key")


def _end_of_cut_key(data: bytes, begin: int) -> int:
    """Where a key ends that was cut off, or taken apart by a log: every line that looks like a part of it goes."""
    stop = begin
    while stop < len(data) and (line := _KEY_LINE.match(data, stop)) is not None and line.end() > stop:
        stop = line.end()
    if stop == begin:
        stop = _KEY_IN_STRING.match(data, begin).end()  # type: ignore[union-attr]  # matches also nothing
    return stop - (data[stop - 1 : stop] == b"\n")


def headless_key(data: bytes, at: int, out: Findings) -> None:
    end = forms.PRIVATE_KEY_END.match(data, at)
    if end is not None:
        out.opened.append(at)
        out.add(end.span(), "private-key")
        for span in structure.headless_key(data, at):
            out.add(span, "private-key")


# ---- long random words -----------------------------------------------------------------------------------------------

_RANDOM = "random-string"
_LEAST = 20
_NOWHERE = (1 << 62, 1 << 62)
_MOST_JUDGED = 50_000
_LONGEST_WORD = 64 << 10
_CHECKSUM = re.compile(rb"(?i:sha)(?:1|224|256|384|512)[-:=]\Z")
"""What follows is the checksum of a file, also where it is written in base64."""
_judged: dict[bytes, tuple[tuple[int, int, str], ...]] = {}


def random_strings(data: bytes, out: Findings) -> None:
    """Long words that are random. Those that are replaced already need no look."""
    done = iter(sorted((edit.start, edit.end) for edit in out if edit.end - edit.start >= _LEAST))
    begun, ended = next(done, _NOWHERE)
    for start, stop in scan.long_words(data):
        while ended < stop and (begun, ended) != _NOWHERE:
            begun, ended = next(done, _NOWHERE)
        if begun <= start and stop <= ended:
            continue
        for begin, end, kind in _judge(data[start:stop]):
            if kind != _RANDOM or not _CHECKSUM.search(data, max(0, start + begin - 12), start + begin):
                out.add((start + begin, start + end), kind)


def _judge(word: bytes) -> tuple[tuple[int, int, str], ...]:
    """`judged`, once for each word that a log repeats."""
    spans = _judged.get(word)
    if spans is None:
        if len(_judged) > _MOST_JUDGED:
            _judged.clear()
        spans = _judged[word] = judged(word) if len(word) < _LONGEST_WORD else ((0, len(word), _RANDOM),)
    return spans


def judged(word: bytes) -> tuple[tuple[int, int, str], ...]:
    """(from, to, kind) of what in a long word is secret."""
    found = [(*match.span("s"), kind) for kind, regex in forms.WHOLE for match in regex.finditer(word)]
    return (*found, *((begin, end, _RANDOM) for begin, end in random_words.pieces(word)))


# ---- values by their name --------------------------------------------------------------------------------------------


_PLAIN = re.compile(
    rb"(?:=(?P<q>[\"']?)|[\"'] ?: ?(?P<r>[\"'])|: (?=[^\s,;]*\r?(?:\n|\Z)))(?!0x)"
    rb"(?P<s>(?=[A-Za-z_+-]*\d)(?=[\d_+-]*[A-Za-z][\d_+-]*[A-Za-z])[A-Za-z0-9][A-Za-z0-9_+-]{11,200}={0,2})"
    rb"(?(q)(?P=q)|(?(r)(?P=r)|))(?=[\s\"'}]|\Z|(?(r),|(?!)))"
)
"""The plainest ways to write a value, and the most common: most of a log full of secrets is like that."""


def plainly_named(data: bytes, start: int, end: int, out: Findings) -> bool:
    """Whether the name has a value written in the plainest way, which then is added."""
    plain = _PLAIN.match(data, end, end + assignments.REACH)
    kind = assignments.plain_kind(data[start:end]) if plain is not None else None
    if plain is None or kind is None:
        return False
    out.add(plain.span("s"), kind)
    return True


def named(data: bytes, start: int, end: int, out: Findings) -> None:
    """What the name of a secret between `start` and `end` gives away."""
    bare = start + len(data[start : start + 2]) - len(data[start : start + 2].lstrip(b"-"))
    if end - bare <= 128:
        _next_item(data, bare, end, out)
        if not _pair(data, bare, end, out):
            _below(data, bare, end, out)
    _assigned(data, start, end, out)


_NEXT_ITEM = re.compile(rb"[ \t]*\r?(?:\Z|\n(?:[ \t]*-[ \t]+(?!-)[\"']?(?P<s>[^\s\"'][^\r\n\"']*))?)")
"""Behind a flag in a list of YAML: the next item."""
_LISTED = re.compile(rb"[\"'][ \t]*,[ \t]*\\?\r?(?:\n|\Z)")
"""Behind a flag in a list with one word a line."""


def _next_item(data: bytes, start: int, end: int, out: Findings) -> None:
    """The value of a flag in the next line: of a list of YAML, or of JSON."""
    if data[start - 2 : start] != b"--" or not assignments.secret_name(data[start:end]):
        return
    word = _NEXT_ITEM.match(data, end, end + assignments.REACH)
    if word is not None or _LISTED.match(data, end):
        out.opened.append(start)
    if word is not None and word["s"]:
        out.add(word.span("s"), "secret")


def _pair(data: bytes, start: int, end: int, out: Findings) -> bool:
    """Whether it is the name of a pair, `name: TOKEN` with `value: x` behind it or in front; which then is added."""
    if data[start - 1 : start] not in (b" ", b'"', b"'", b":", b"="):
        return False
    if not assignments.PAIR_FRONT.search(data[max(0, start - 24) : start]):
        return False
    if assignments.secret_name(data[start:end]):
        out.opened.append(start)
        for span in _value_of_pair(data, start, end):
            out.add(span, "secret")
    return True


def _value_of_pair(data: bytes, start: int, end: int) -> list[tuple[int, int]]:
    tail = assignments.PAIR_TAIL.match(data, end, end + assignments.REACH)
    if tail is not None:
        return [tail.span("quoted" if tail["open"] is not None else "bare")]
    part = assignments.PART_TAIL.match(data, end, end + assignments.REACH)
    return [part.span("bare")] if part is not None else list(structure.before(data, start))


def _below(data: bytes, start: int, end: int, out: Findings) -> None:
    """The block below a name, or the brackets behind it."""
    if not structure.opens(data, end):
        return
    if not assignments.secret_name(data[start:end]) and not _has_first_word(data, start, end):
        return
    out.opened.append(start)
    begun, until = out.followed
    followed = until if begun < end < until else 0
    spans = list(structure.below(data, start, end, followed))
    for span in spans:
        out.add(span, "secret")
    out.followed = (end, spans[-1][1] + 1 if spans else max(structure.looked_through(data, end), followed))


_WORD_BEFORE = re.compile(rb"[A-Za-z]{2,24}[ ]\Z")


def _has_first_word(data: bytes, start: int, end: int) -> bool:
    """Whether the word in front makes it a secret's name: `api key`, `session cookie`."""
    before = _WORD_BEFORE.search(data, max(0, start - 25), start)
    return before is not None and assignments.secret_name(before.group()[:-1] + b"_" + data[start:end])


_METAVAR = re.compile(rb"[A-Z]{3,16}")
_DEFAULT = re.compile(rb"[^\n]*?[\[(]default: (?P<s>[^\])\n]+)[\])]")
"""In the help of a program: `--password TEXT  … [default: x]`."""
_LINE_FRONT = re.compile(rb"(?:\A|\n)[ \t]*(?:-[ \t]+)?[\"']?\Z")


def _assigned(data: bytes, start: int, end: int, out: Findings) -> None:
    """The value that follows a name."""
    found = assignments.assignment(data, assignments.begin_of_name(data, start, end), end)
    if found is None or _default(found, out):
        return
    kind = assignments.kind_of(found)
    if kind is None or (found["tag"] and not found["close"] and data[found.start - 1 : found.start] != b"<"):
        return
    begin, stop = found.span
    text = redacted(kind)
    if not found.quoted:
        close = found["close"].rstrip(b"]*`")
        if close and b":" in found["sep"]:  # a number in JSON: what replaces it must be a string
            text = close + text + close
        elif not close:
            stop = _end_of_bare(found, kind)
    out.append(Edit(begin, stop, kind, text))


def _default(found: assignments.Assignment, out: Findings) -> bool:
    """Whether it is a flag in the help of a program, whose default then is added."""
    if not found.name.flag or found.quoted or not _METAVAR.fullmatch(found.value):
        return False
    default = _DEFAULT.match(found.data, found.end, found.end + 400)
    if default is None or not assignments.secret_name(found.name.text):
        return False
    out.add(default.span("s"), "secret")
    return True


def _end_of_bare(found: assignments.Assignment, kind: str) -> int:
    """Where a value without quotes ends. A password of YAML goes to the end of its line, blanks and all."""
    begin, stop = found.span
    front = found.data[max(0, found.start - 80) : found.start]
    if b":" in found["sep"] and kind in ("password", "secret") and _LINE_FRONT.search(front):
        scalar = assignments.PLAIN_SCALAR.match(found.data, begin - 1)
        stop = scalar.end() if scalar else stop
    while (more := assignments.MORE.match(found.data, stop, stop + 256)) is not None:
        stop = more.end()
    return stop
