"""Values below their names: columns of a table with one separator, and the variables that a traceback draws.

`run,api_key,epoch` with rows below it, as csv, tab and `sacct -P` write them; and loguru's and better_exceptions' lines
from a name in the code down to its value: `└ 'x'`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from hangscope.bundle.redact.skip_prefixes import prefix_end

Span = tuple[int, int]

_HEADER = re.compile(
    rb"[\"']?[A-Za-z_][\w.#% -]{0,40}[\"']?(?P<sep>[,\t|;])(?! )[\"']?[A-Za-z_][\w.#%-]{0,40}[\"']?"
    rb"(?:(?P=sep)[\"']?[A-Za-z_][\w.#% -]{0,40}[\"']?){0,60}\|?\r?\Z"
)
_MOST_ROWS, _WIDEST = 20_000, 2000
_FIELD = {sep: re.compile(rb'(?:"[^"\n]*"|[^%s\n]*)' % re.escape(sep)) for sep in (b",", b"\t", b"|", b";")}
_NUMBER = re.compile(rb"[\d.eE+-]{0,15}")


def header(line: bytes) -> re.Match[bytes] | None:
    """A line of names with one sign between them."""
    return _HEADER.match(line) if len(line) < _WIDEST else None


def is_header(data: bytes, at: int) -> bool:
    """Whether `at` is in a header, and not in a row below one; quick."""
    line = data.rfind(b"\n", max(0, at - _WIDEST), at) + 1
    end = data.find(b"\n", at, at + _WIDEST)
    end = len(data) if end < 0 else end
    head = _head(data, line, at, end)[0] if end - line < _WIDEST else None
    if head is None or line == 0:
        return head is not None
    above = data[data.rfind(b"\n", max(0, line - _WIDEST), line - 1) + 1 : line - 1]
    return head["sep"] not in above or not (header(above) or header(above[prefix_end(above, 0) :]))


def below(data: bytes, at: int) -> Iterator[Span]:
    """The values of the column in whose header `at` is: one a row, as long as rows have as many fields."""
    line = data.rfind(b"\n", max(0, at - _WIDEST), at) + 1
    end = data.find(b"\n", at, at + _WIDEST)
    if end < 0 or end - line > _WIDEST:
        return
    head, begin = _head(data, line, at, end)
    if head is None:
        return
    sep = head["sep"]
    column, fields = data.count(sep, begin, at), head.group().count(sep)
    bare = prefix_end(data, begin) == begin and begin == line
    for _ in range(_MOST_ROWS):
        line, end = end + 1, data.find(b"\n", end + 1)
        end = len(data) if end < 0 else end
        start = line if bare else prefix_end(data, line)
        if start >= end or data.count(sep, start, end) < fields:
            return
        for _ in range(column):
            start = _FIELD[sep].match(data, start, end).end() + 1  # type: ignore[union-attr]  # matches also nothing
        value = _FIELD[sep].match(data, start, end)
        if value is None or start > end:
            return
        begin, stop = value.span()
        if data[begin : begin + 1] == b'"' and stop - begin > 1:
            begin, stop = begin + 1, stop - 1
        stop -= data[stop - 1 : stop] == b"\r"
        if stop - begin >= 3 and not _NUMBER.fullmatch(data, begin, stop) and data[begin : begin + 9] != b"[redacted":
            yield begin, stop
        if end == len(data):
            return


def _head(data: bytes, line: int, at: int, end: int) -> tuple[re.Match[bytes] | None, int]:
    """The header around `at`, and where it begins: behind a log's prefix, or in a string."""
    begins = [line, prefix_end(data, line)]
    quote = data.rfind(b'"', line, at) + 1
    if quote and data[quote - 2 : quote - 1] in (b" ", b":"):
        begins += [quote, prefix_end(data, quote)]
    for begin in reversed(begins):
        if begin <= at and (head := header(data[begin:end])) is not None:
            return head, begin
    return None, 0


_DRAWN = re.compile(rb"\xe2\x94\x94[ ](?P<q>b?[\"'])(?P<s>[^\n]{4,800}?)[\"']?[ \t]*\r?(?:\n|\Z)")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
_HIGHEST = 24


def drawn(data: bytes, at: int, secret: Callable[[bytes], bool]) -> tuple[bool, Span | None]:
    """Whether a value is drawn at `at` at all, and where, if the variable that its line leads up to is a secret's."""
    line = data.rfind(b"\n", max(0, at - _WIDEST), at) + 1
    match = _DRAWN.match(data, at) if line or at < _WIDEST else None
    if match is None:
        return False, None
    column = len(data[line:at].decode("utf-8", "replace"))
    for _ in range(_HIGHEST):
        if line == 0:
            break
        above = data.rfind(b"\n", max(0, line - _WIDEST), line - 1) + 1
        text = data[above : line - 1].decode("utf-8", "replace")
        if len(text) <= column or line - above >= _WIDEST:
            break
        if text[column] != "│":
            name = _VARIABLE.match(text, column)
            found = name is not None and secret(name.group().encode())
            return True, match.span("s") if found else None
        line = above
    return True, None
