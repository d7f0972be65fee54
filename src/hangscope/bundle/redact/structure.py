"""Secrets by the structure around them: blocks of YAML, objects of Kubernetes, brackets of JSON, keys that lost a line.

Everything here looks at a place that a needle found, within `NEAR` bytes of it, and gives stretches to replace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hangscope.bundle.redact import secret_names
from hangscope.bundle.redact.skip_prefixes import PREFIX, prefix_end

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
    line = data.rfind(b"\n", 0, start) + 1
    front = data[line:start]
    if front.endswith((b'"', b"'")) and data[end : end + 1] == b":" and front.strip(b" \t-\"'"):
        front = b""  # a string begins with it, in which lines were escaped
    inside = re.split(rb"[\"']", front)[-1]
    behind = PREFIX.match(inside) if inside is not front else None
    if behind is not None:
        front = inside[behind.end() :]  # a string begins with a log's prefix
    indent = len(front) - len(front.lstrip())
    if front.strip(b" \t-\"'{[(,"):
        yield from _word_below(data, line, start, match)
        return  # something else stands in front of the name: no key of YAML
    if front.strip(b" \t-\"'"):
        indent = min(indent, 0)  # a dictionary as Python prints a long one: the value stands in a line of its own
    if front.lstrip().startswith(b"-"):
        indent += 1
    text = match["mark"][:1] in (b"|", b">")
    yield from _block(data, match.end(), indent, text=text, inside=behind is not None)


def _long_string(data: bytes, at: int, mark: bytes) -> Iterator[Span]:
    """The lines of a string of TOML or Python, up to the three quotes that close it."""
    last = data.find(mark, at, at + _UNCLOSED)
    while at < last:
        end = data.find(b"\n", at, last)
        end = last if end < 0 else end
        start = continued(data, at)
        if start < end and not _is_redacted(data[start:end]):
            yield start, end
        at = end + 1


_SENTENCE = re.compile(rb"(?:[^\n]*[:\]>)|-][ ])?(?:[A-Za-z][\w-]{0,23}[ ]){1,4}")
_ALONE = re.compile(rb"(?P<s>(?=\S{0,199}\d)(?![\w.-]{1,64}[:=][^=])[^\s\"'\[]{8,200})[ \t]*\r?(?:\n|\Z)")


def _word_below(data: bytes, line: int, start: int, match: re.Match[bytes]) -> Iterator[Span]:
    """One word with a digit in it, alone in the line below a sentence that ends with a secret's name and a colon."""
    if match["mark"] or b":" not in match.group() or not _SENTENCE.fullmatch(data, line, start):
        return
    word = _ALONE.match(data, continued(data, match.end()))
    if word is not None:
        yield word.span("s")


def _block(data: bytes, at: int, indent: int, *, text: bool, inside: bool) -> Iterator[Span]:
    """Values of the lines that are indented deeper than `indent`; `inside` a string up to its end."""
    last = min(len(data), at + NEAR)
    while at < last and (line := _LINE.match(data, at)) is not None and line.end() > at:
        if line["text"]:
            dash = line["text"].startswith(b"- ") and len(line["indent"]) == indent
            if len(line["indent"]) <= indent and not dash:
                return
            words, quote, _ = line["text"].partition(b'"') if inside else (line["text"], b"", b"")
            value = None if text else _YAML_VALUE.match(words)
            begin = line.start("text") + (value.start("s") if value else 0)
            stop = line.start("text") + (value.end("s") if value else len(words.rstrip()))
            key_only = value is not None and value["s"].endswith(b":") and not text
            if stop > begin and not key_only and not _is_redacted(data[begin:stop]):
                quoted = data[begin : begin + 1] in (b'"', b"'") and data[stop - 1 : stop] == data[begin : begin + 1]
                yield (begin + 1, stop - 1) if quoted and stop - begin > 2 else (begin, stop)
            if quote:
                return
        at = line.end()


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
    closing, depth = _CLOSING[mark], 1
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
    """The values of a Secret: of `data` and `stringData`, above or below its `kind`."""
    if SECRET_OBJECT.match(data, at) is None:
        return
    low = max(0, at - NEAR)
    for boundary in _KIND.finditer(data, low, at):
        if boundary.end() < at:
            low = boundary.end()
    following = _KIND.search(data, at + 6, at + NEAR)
    high = following.start() if following else min(len(data), at + NEAR)
    for match in _DATA.finditer(data, low, high):
        if match["open"]:
            yield from _inside(data, match.end(), b"{")
        else:
            for line in _deeper(data, match.end(), len(match["front"])):
                value = _YAML_KEY.match(data[line[0] : line[1]])
                if value and value["s"][:1] not in (b"|", b">") and not _is_redacted(value["s"]):
                    yield line[0] + value.start("s"), line[0] + value.end("s")
                elif value is None:
                    yield line


def _deeper(data: bytes, at: int, indent: int) -> Iterator[Span]:
    last = min(len(data), at + NEAR)
    while at < last and (line := _LINE.match(data, at)) is not None and line.end() > at:
        if line["text"]:
            if len(line["indent"]) <= indent:
                return
            yield line.start("text"), line.end("text")
        at = line.end()


_KEY_BODY = re.compile(rb"[^\n]{0,160}?(?P<s>[A-Za-z0-9+/]{40,76}={0,2})[ \t\r]*\n")
_KEY_LAST = re.compile(rb"[^\n]{0,160}?(?<![^\s:|])(?P<s>(?=[A-Za-z/]*[\d+=])[A-Za-z0-9+/]{2,76}={0,2})[ \t\r]*\n")


def headless(data: bytes, at: int) -> Iterator[Span]:
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
        line, shape = above, _KEY_BODY


_GOES_ON = re.compile(rb"[ \t]*\r?\n")
_BLANKS = re.compile(rb"[ \t]{0,39}")
_REST = re.compile(rb"[A-Za-z0-9+/_.-]{2,160}(?:=[A-Za-z0-9]{1,8}|={1,2})?")
_BEHIND = re.compile(rb"[ \t]*(?:[\r\n\"'\\]|\Z)")
_APART = re.compile(rb"[\s\"',;)\]}]")
WIDE = 72
"""Terminals and log viewers break lines that are wider: what follows a secret there may go on with other words."""
_MIXED = re.compile(
    rb"(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?=\D*\d).{4}|(?=\D*\d)[0-9a-f-]{16}|(?:[^a-z]*[a-z]+(?![a-z])){3}"
)
_SOME_SIGN = re.compile(rb"[0-9+/=]|[a-z][A-Z]")


def tail(data: bytes, start: int, end: int) -> Iterator[Span]:
    """What goes on in the lines below a random string that reached the end of its line: the rest of a wrapped one."""
    line = data.rfind(b"\n", 0, start) + 1
    front = data[line:start]
    for _ in range(400):
        following = _GOES_ON.match(data, end, end + 80)
        if following is None:
            return
        below = following.end()
        wide = end - line >= WIDE and (rest := _REST.match(data, below)) is not None and _MIXED.match(rest.group())
        if wide and rest is not None and _APART.match(data, rest.end()):
            begin = below
        else:
            same = bool(front) and data.startswith(front, below)
            begin = below + len(front) if same else continued(data, below)
            rest = _REST.match(data, begin)
            if rest is None or len(rest.group()) > end - start + 12 or not _BEHIND.match(data, rest.end()):
                return
            if not _SOME_SIGN.search(rest.group()):
                return
        yield begin, rest.end()
        line, start, end = below, begin, rest.end()


def continued(data: bytes, below: int) -> int:
    """Where the text of the line at `below` begins: behind its prefix, and blanks."""
    return _BLANKS.match(data, prefix_end(data, below)).end()  # type: ignore[union-attr]  # matches also nothing


def wrapped(data: bytes, end: int) -> Iterator[Span]:
    """Lines below a bare value at the end of its line that can only be the rest of it: one word with a digit in it."""
    if _ANOTHER_NAME.match(data, end):
        return
    line = data.rfind(b"\n", 0, end) + 1
    width = end - prefix_end(data, line)
    for _ in range(40):
        gap = _BREAK.match(data, end, end + 3)
        if gap is None:
            return
        begin = continued(data, gap.end())
        match = secret_names.CONTINUES.match(data, begin, begin + 200)
        if match is None or match.end("s") - match.start("s") > width:
            return  # where a line was broken no later one is wider
        if begin > gap.end() and data[gap.end()] not in b" \t" and not _PIECE.match(match["s"]):
            return
        yield match.span("s")
        end = match.end("s")


_ANOTHER_NAME = re.compile(rb"\r?\n[A-Za-z_][\w.]*=[^=\s]")
_BORDER = re.compile(rb"[ \t]*(?:\xe2\x94\x82|\|)?[ \t]*")
_INNER = re.compile(rb"(?P<s>[A-Za-z0-9+/_~.-]{1,200}={0,2})(?:(?P<end>[\"'])|[ \t]*(?:\xe2\x94\x82|\|)?[ \t]*\r?\n)")


def unclosed(data: bytes, end: int) -> Iterator[Span]:
    """The lines below a string that lost its closing quote at the end of its line, as in a box of a traceback, up to
    that quote."""
    found: list[Span] = []
    below = data.find(b"\n", end) + 1
    for _ in range(40):
        begin = _BORDER.match(data, continued(data, below)).end() if below else 0  # type: ignore[union-attr]
        match = _INNER.match(data, begin) if begin else None
        if match is None:
            return
        found.append(match.span("s"))
        if match["end"]:
            yield from found
            return
        below = match.end()


_BREAK = re.compile(rb"\\?\r?\n")
_PIECE = re.compile(
    rb"(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?=\D*\d)|(?=\D*\d)[0-9a-f-]{6,}={0,2}\Z|(?:[A-Z]*\d+){3}|(?:[^a-z]*[a-z]+(?![a-z])){3}"
)
"""Behind a prefix, where any line of the log may follow: no word of a sentence, and no name with a number."""


def _is_redacted(text: bytes) -> bool:
    return text.lstrip(b"\"'").startswith(b"[redacted")
