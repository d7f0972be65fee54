"""Secrets by the structure around them: blocks of YAML, objects of Kubernetes, brackets of JSON, keys that lost a line.

Everything here looks at a place that a needle found, within `NEAR` bytes of it, and gives stretches to replace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hangscope.bundle.redact.log_prefixes import PREFIX, prefix_end

NEAR = 16 << 10
"""How far a structure is followed. Objects in logs are smaller, and no file makes following them slow."""

Span = tuple[int, int]

_EMPTY_VALUE = re.compile(
    rb"(?:[\"'])?[ \t]*[:=][ \t]*(?P<mark>[|>][-+]?\d?|[{\[(]|\"{3}|'{3}|)[ \t]*(?:#[^\n]*|\\)?\r?(?:\n|\Z)"
)
_OPEN_VALUE = re.compile(rb"(?:[\"']\]?)?[ \t]*(?:=>|[:=])[ \t]*(?P<mark>[{\[(])")
_ELEMENT = re.compile(rb"</\w{1,16}>[ \t]*\r?(?:\n|\Z)")
"""A name in an element of its own: `<key>TOKEN</key>`, with the value in the next one."""
_OPENS = re.compile(
    b"|".join(re.sub(rb"\?P<mark>", b"?:", one.pattern) for one in (_EMPTY_VALUE, _OPEN_VALUE, _ELEMENT))
)
_LINE = re.compile(rb"(?P<indent>[ \t]*)(?P<text>[^\r\n]*)\r?(?:\n|\Z)")
_YAML_VALUE = re.compile(rb"(?:-[ \t]+)?(?:[\"']?[\w.-]+[\"']?[ \t]*:[ \t]+)?(?P<s>\S.*?)[ \t]*\Z")
_YAML_KEY = re.compile(rb"(?:-[ \t]+)?[\"']?[\w./-]+[\"']?[ \t]*:[ \t]*(?P<s>\S.*?)[ \t]*\Z")
_STRING = re.compile(
    rb"(?P<q>[\"'])(?P<s>(?:(?!(?P=q))[^\\\r\n]|\\.){1,3800})(?P=q)(?P<key>[ \t]*:)?|(?P<n>\b\d{4,}\b)"
)
_ONE_BARE = re.compile(rb"(?P<s>(?!redacted)(?=[^\s\]]*[A-Za-z])[^\s\"'\[\]{}(),]{6,3800})\]")
"""The one value of a header, as Go prints a map of them: `map[X-Token:[x]]`."""
_ANY_STRING = re.compile(rb"[\"']|\d{4}")
_CLOSING = {b"{": b"}", b"[": b"]", b"(": b")"}
_BRACKET = re.compile(rb"[{}\[\]()]")
_BLANKS = re.compile(rb"[ \t]{0,39}")
_DEEPEST = 64
_UNCLOSED = 2 << 10


def opens(data: bytes, end: int) -> bool:
    """Whether a name that ends here leaves its value to the lines below, or to brackets."""
    return _OPENS.match(data, end) is not None


def below(data: bytes, start: int, end: int, followed: int = 0) -> Iterator[Span]:
    """The values in the block or the brackets that a name between `start` and `end` opens.

    Brackets are looked at from `followed` on, where another one around them was followed up to there.
    """
    bracket = _OPEN_VALUE.match(data, end)
    if bracket is not None:
        yield from _inside(data, bracket.end(), bracket["mark"], followed)
        return
    match = _EMPTY_VALUE.match(data, end)
    if match is None:
        return
    if match["mark"][:1] in (b'"', b"'"):
        yield from _long_string(data, match.end(), match["mark"])
        return
    front, in_string = _front(data, start, end)
    if front.strip(b" \t-\"'{[(,"):
        return  # words are in front of the name: no key of YAML
    indent = len(front) - len(front.lstrip())
    if front.strip(b" \t-\"'"):
        indent = 0  # a dictionary as Python prints a long one: the value has a line of its own
    if front.lstrip().startswith(b"-"):
        indent += 1
    yield from _block(data, match.end(), indent, text=match["mark"][:1] in (b"|", b">"), in_string=in_string)


def _front(data: bytes, start: int, end: int) -> tuple[bytes, bool]:
    """What is in front of a name in its line, and whether that line is inside of a string, behind a log's prefix."""
    front = data[data.rfind(b"\n", 0, start) + 1 : start]
    if front.endswith((b'"', b"'")) and data[end : end + 1] == b":" and front.strip(b" \t-\"'"):
        return b"", False  # a string begins with it, in which lines were escaped
    quote = max(front.rfind(b'"'), front.rfind(b"'"))
    prefix = PREFIX.match(front[quote + 1 :]) if quote >= 0 else None
    return (front, False) if prefix is None else (front[quote + 1 + prefix.end() :], True)


def _long_string(data: bytes, at: int, mark: bytes) -> Iterator[Span]:
    """The lines of a string of TOML or Python, up to the three quotes that close it."""
    last = data.find(mark, at, at + _UNCLOSED)
    while at < last:
        end = data.find(b"\n", at, last)
        end = last if end < 0 else end
        start = behind_prefix(data, at)
        if start < end and not _is_redacted(data[start:end]):
            yield start, end
        at = end + 1


def behind_prefix(data: bytes, line: int) -> int:
    """Where the text of the line at `line` begins: behind its prefix, and blanks."""
    return _BLANKS.match(data, prefix_end(data, line)).end()  # type: ignore[union-attr]  # matches also nothing


def _deeper(data: bytes, at: int, indent: int, *, lists: bool) -> Iterator[Span]:
    """The texts of the lines that are indented deeper than `indent`; with `lists` also items that are just as deep."""
    last = min(len(data), at + NEAR)
    while at < last and (line := _LINE.match(data, at)) is not None and line.end() > at:
        if line["text"]:
            item = lists and line["text"].startswith(b"- ") and len(line["indent"]) == indent
            if len(line["indent"]) <= indent and not item:
                return
            yield line.span("text")
        at = line.end()


def _block(data: bytes, at: int, indent: int, *, text: bool, in_string: bool) -> Iterator[Span]:
    """Values of the lines of a block, or the lines themselves where it is a text; in a string up to its end."""
    for start, end in _deeper(data, at, indent, lists=True):
        words, quote, _ = data[start:end].partition(b'"') if in_string else (data[start:end], b"", b"")
        begin, stop = (0, len(words.rstrip())) if text else _yaml_value(words)
        if stop > begin and not _is_redacted(words[begin:stop]):
            yield start + begin, start + stop
        if quote:
            return


def _yaml_value(words: bytes) -> Span:
    """Where the value of a line is; nowhere in one with a key alone."""
    value = _YAML_VALUE.match(words)
    if value is None:
        return 0, len(words.rstrip())
    begin, stop = value.span("s")
    if words[begin:stop].endswith(b":"):
        return 0, 0
    quoted = stop - begin > 2 and words[begin] in b"\"'" and words[begin] == words[stop - 1]
    return (begin + 1, stop - 1) if quoted else (begin, stop)


def _inside(data: bytes, at: int, mark: bytes, followed: int = 0) -> Iterator[Span]:
    """The strings, and long numbers, up to the bracket that closes this one; keys stay."""
    last = _balanced(data, at, mark)
    at = max(at, followed)
    if mark == b"[" and (word := _ONE_BARE.match(data, at)) is not None:
        yield word.span("s")
        return
    if _ANY_STRING.search(data, at, last) is None:
        return
    for match in _STRING.finditer(data, at, last):
        group = "n" if match["n"] else "s"
        if not match["key"] and not _is_redacted(match[group]):
            yield match.span(group)


def looked_through(data: bytes, end: int) -> int:
    """How far the bracket is looked through that a name, which ends here, opens; `end` where it opens none."""
    bracket = _OPEN_VALUE.match(data, end)
    return _balanced(data, bracket.end(), bracket["mark"]) if bracket is not None else end


def _balanced(data: bytes, at: int, mark: bytes) -> int:
    """Where it is closed. One that is not, or holds more than anybody writes, is followed less far: there may be one at
    every word."""
    closing = _CLOSING[mark]
    depth = 1
    if data.find(closing, at, at + NEAR) >= 0:
        for match in _BRACKET.finditer(data, at, at + NEAR):
            depth += 1 if match.group() == mark else -1 if match.group() == closing else 0
            if depth == 0:
                return match.start()
            if depth > _DEEPEST:
                break
    return min(len(data), at + _UNCLOSED)


_BEFORE = re.compile(
    rb"[\"']?[vV]alue[\"']?[ \t]*[:=][ \t]*(?:(?P<q>[\"'])(?P<quoted>(?:(?!(?P=q))[^\r\n]){1,3800})(?P=q)"
    rb"|(?P<bare>[^\s,\"'{}\[\]][^\r\n,}]{0,3800}?))[ \t]*,?[ \t]*(?:\r?\n)?[ \t]*[\"']?(?:name|key|Name|Key)[\"']?"
    rb"[ \t]*[:=][ \t]*[\"']?\Z"
)


def before(data: bytes, start: int) -> Iterator[Span]:
    """The value in front of its name: `value: x` above `name: TOKEN`."""
    front = max(0, start - 4200)
    near = data[front:start]
    at = max(near.rfind(b"value"), near.rfind(b"Value"))
    match = _BEFORE.search(near, max(0, at - 1)) if at >= 0 else None
    if match is not None:
        begin, stop = match.span("quoted" if match["q"] else "bare")
        if not _is_redacted(near[begin:stop]):
            yield front + begin, front + stop


_DATA = re.compile(
    rb"(?m)^(?P<front>[ \t-]*)(?:data|stringData):[ \t]*\r?\n|[\"'](?:data|stringData)[\"'][ \t]*:[ \t]*(?P<open>\{)"
)
_KIND = re.compile(rb"(?m)^[ \t-]*kind:|^---|[\"']kind[\"'][ \t]*:")
SECRET_OBJECT = re.compile(rb"kind[\"']?[ \t]*:[ \t]*[\"']?(?:Sealed)?Secret(?:List)?\b")


def kubernetes(data: bytes, at: int) -> Iterator[Span]:
    """The values of a Secret, whose `kind` is at this place: of `data` and `stringData`, above or below it."""
    low = max(0, at - NEAR)
    for boundary in _KIND.finditer(data, low, at):
        if boundary.end() < at:
            low = boundary.end()
    following = _KIND.search(data, at + 6, at + NEAR)
    high = following.start() if following else min(len(data), at + NEAR)
    for match in _DATA.finditer(data, low, high):
        if match["open"]:
            yield from _inside(data, match.end(), b"{")
            continue
        for start, end in _deeper(data, match.end(), len(match["front"]), lists=False):
            value = _YAML_KEY.match(data[start:end])
            if value is None:
                yield start, end
            elif value["s"][:1] not in (b"|", b">") and not _is_redacted(value["s"]):
                yield start + value.start("s"), start + value.end("s")


_KEY_BODY = re.compile(rb"[^\n]{0,160}?(?P<s>[A-Za-z0-9+/]{40,76}={0,2})[ \t\r]*\n")
_KEY_LAST = re.compile(rb"[^\n]{0,160}?(?<![^\s:|])(?P<s>(?=[A-Za-z/]*[\d+=])[A-Za-z0-9+/]{2,76}={0,2})[ \t\r]*\n")


def headless_key(data: bytes, at: int) -> Iterator[Span]:
    """The lines of a private key above its end mark, where its first line is missing."""
    line = data.rfind(b"\n", 0, at) + 1
    first = max(0, at - NEAR)
    shape = _KEY_LAST
    while line > first:
        above = data.rfind(b"\n", 0, line - 1) + 1
        match = shape.fullmatch(data, above, line)
        if match is None:
            return
        yield match.span("s")
        line = above
        shape = _KEY_BODY


def _is_redacted(text: bytes) -> bool:
    return text.lstrip(b"\"'").startswith(b"[redacted")
