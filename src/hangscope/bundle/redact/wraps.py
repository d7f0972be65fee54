"""Secrets that a terminal, a pager or a table broke into lines of one width: put together, looked at, and taken back.

A line is followed by its rest where it ends with the beginning of something (a web address, or a value that was found
there), and the next one begins at the same column, is no wider, and goes on with one word that no sentence begins with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import zip_longest

from hangscope.bundle.redact.handlers import USER, Edit
from hangscope.bundle.redact.skip_prefixes import prefix_end

_SIGNS = (rb"\xe2\x94\x82", rb"\|")
Look = Callable[[bytes], list[Edit]]

_ADDRESS = re.compile(rb"://[^\s\"'<>]{2,400}\r?\n")
_ROWS = tuple(re.compile(sign + rb"[ ]{3,60}" + sign + rb"[ ](?=[^\s|]{1,400}[ ]+" + sign + rb")") for sign in _SIGNS)
"""A row of a table with an empty first cell: the second one goes on with what is above."""
_CELL = re.compile(rb"(?P<s>[^\s|\x80-\xff]{1,400})(?P<gap>[ ]+)(?:\xe2\x94\x82|\|)")
_WORD = re.compile(rb"[^\s\"'\x80-\xff]{3,400}")
_ENDS = re.compile(rb"[\"'})\],;]{0,6}[ \t]*(?:[ \t]|\xe2\x94\x82|\|)*\r?(?:\n|\Z)|;[ ]")
_REST = re.compile(rb"[^\n]{0,200}[0-9+/=@%&?#!^*]|[^\n]{0,200}?[a-z][A-Z]")
_NAMED = re.compile(rb"[A-Za-z_][\w.-]{0,64}(?:=|:(?:\s|\Z))")
_NEXT_NAMED = re.compile(rb"[ \t-]*" + _NAMED.pattern)
_LINKED = re.compile(rb"[;&?]")
_BORDER = re.compile(rb"(?:[ \t]*(?:\xe2\x94\x82|\|)){1,3}[ \t]*\r?\n")
_LAST_SIGN = re.compile(rb".*(?:[ \t:|>\])]|\xe2\x94\x82)", re.DOTALL)
_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)
_NARROWEST, _WIDEST, _MOST_LINES = 20, 400, 60
_MOST_BORDER = 16
_NO_SECRET = (USER, "email")
"""What looks like a mail address may be the end of a password, and the host behind it."""


def more(data: bytes, edits: list[Edit], look: Look) -> list[Edit]:
    """What is to be replaced besides `edits`: the rests, in the lines below, of what one of the lines begins."""
    found: list[Edit] = []
    begun = {edit.start for edit in edits if edit.start < edit.end and edit.kind not in _NO_SECRET}
    done = -1
    for at in _begun(data, edits):
        if at < done:
            continue
        line = data.rfind(b"\n", max(0, at - _WIDEST), at) + 1
        pieces = _lines(data, line, at, begun)
        if len(pieces) < 2 and (quote := data.rfind(b'"', line, at)) >= 0:
            pieces = _lines(data, quote + 1, at, begun)  # a log inside a string
        if len(pieces) > 1:
            done = pieces[-1][0]
            found += _taken_back(data, pieces, look)
    for regex, sign in zip(_ROWS, (b"\xe2\x94\x82   ", b"|   "), strict=True):
        done = -1
        for row in regex.finditer(data) if sign in data else ():
            if row.start() >= done:
                pieces = _rows(data, row)
                done = pieces[-1][1] if pieces else row.end()
                found += _taken_back(data, pieces, look) if len(pieces) > 1 else []
    return found


def _begun(data: bytes, edits: list[Edit]) -> Iterator[int]:
    """Ends of lines at which something may be cut in two. Where the next line is a matter of its own, there is none."""
    places: list[int] = []
    if b"://" in data:
        for match in _ADDRESS.finditer(data):
            below = match.end()
            if data.find(b"://", below, max(below, data.find(b"\n", below, below + _WIDEST))) < 0:
                places.append(below - 1)
    ordered: list[Edit] = []
    for edit in sorted(edits):
        if edit.start < edit.end and (not ordered or edit.start >= ordered[-1].end):
            ordered.append(edit)
    for edit, following in zip_longest(ordered, ordered[1:]):
        end = edit.end
        if data[end : end + 1] == b"\r":
            end += 1
        elif data[end : end + 1] in (b" ", b"|", b"\xe2"):
            border = _BORDER.match(data, end, end + _MOST_BORDER)
            end = border.end() - 1 if border is not None else end
        if data[end : end + 1] != b"\n" or edit.kind == USER or _another(data, edit.start, end + 1):
            continue
        if following is not None and following.start < end + _WIDEST:
            stop = data.find(b"\n", end + 1, end + _WIDEST)
            if following.start <= stop <= following.end + 2 and following.kind not in _NO_SECRET:
                continue  # what ends the next line is found already
        places.append(end)
    return iter(sorted(set(places)))


def _another(data: bytes, at: int, below: int) -> bool:
    """Whether the line at `below` begins with another name; a host with a colon may stand in front of both."""
    name = _NEXT_NAMED.match(data, below)
    if name is None or name.group().endswith(b"="):
        return name is not None
    line = data.rfind(b"\n", max(0, at - _WIDEST), at) + 1
    return not data.startswith(name.group(), line)


def _lines(data: bytes, line: int, at: int, begun: set[int]) -> list[tuple[int, int]]:
    """The line from `line` to `at`, and what goes on below it, as stretches of the data."""
    border = _BORDER.search(data, max(line, at - _MOST_BORDER), at + 1)
    end = border.start() if border is not None else at - data.endswith(b"\r", 0, at)
    width = end - line
    if width < _NARROWEST or line <= at - _WIDEST:
        return []
    front = _front(data, line, at + 1)
    pieces = [(line + front, end)]
    begin = at + 1
    while len(pieces) < _MOST_LINES:
        start = begin + front
        word = _WORD.match(data, start, start + _WIDEST)
        if word is None or word.end() - begin > width or (len(pieces) == 1 and start in begun):
            break
        if not _ENDS.match(data, word.end()) or not _goes_on(data, word, pieces, full=word.end() - begin == width):
            break
        pieces.append((start, word.end()))
        begin = data.find(b"\n", word.end()) + 1
        if word.end() - pieces[-1][0] + front != width or begin == 0:
            break
    return pieces


def _goes_on(data: bytes, word: re.Match[bytes], pieces: list[tuple[int, int]], *, full: bool) -> bool:
    """Whether a word may be the rest of what is above: no name of another value, no word of a sentence."""
    text = word.group()
    if _NAMED.match(text) and not (full and any(_LINKED.search(data, *piece) for piece in pieces)):
        return False
    return _REST.match(text) is not None


def _front(data: bytes, line: int, below: int) -> int:
    """How much of two lines is what stands in front of each: the same, but for digits, up to a sign or a blank."""
    known = prefix_end(data, line) - line
    if known and prefix_end(data, below) - below == known:
        text = data[line + known : line + known + 80]
        return known + len(text) - len(text.lstrip(b" \t"))
    one, other = (data[at : at + 160].partition(b"\n")[0].translate(_DIGITS) for at in (line, below))
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    match = _LAST_SIGN.match(one[:same])
    return match.end() if match is not None else 0


def _rows(data: bytes, row: re.Match[bytes]) -> list[tuple[int, int]]:
    """The second cells of a row of a table and of those below it, the first with the name in front."""
    line = data.rfind(b"\n", max(0, row.start() - _WIDEST), row.start()) + 1
    if line == 0:
        return []
    border, column = row.start() - line, row.end() - line
    above = data.rfind(b"\n", max(0, line - 1 - _WIDEST), line - 1) + 1
    cell = _CELL.match(data, above + column, line)
    if cell is None or len(cell["gap"]) != 1:
        return []
    name = _LAST_CELL.search(data, above, above + column)
    pieces = [(name.start("s") if name else above, cell.end("s"))]
    while len(pieces) < _MOST_LINES and row.re.match(data, line + border) and len(cell["gap"]) == 1:
        cell = _CELL.match(data, line + column)
        if cell is None:
            break
        pieces.append(cell.span("s"))
        line = data.find(b"\n", line) + 1 or len(data)
    return pieces


_LAST_CELL = re.compile(rb"(?:\xe2\x94\x82|\|)[ ]+(?P<s>[\w.-]{1,80})[ ]+(?:\xe2\x94\x82|\|)[ ]\Z")


def _taken_back(data: bytes, pieces: list[tuple[int, int]], look: Look) -> Iterator[Edit]:
    """What is found in the pieces put together, where they lie."""
    joined = b"".join(data[start:end] for start, end in pieces)
    for edit in look(joined):
        at = 0
        if edit.kind in _NO_SECRET:
            continue
        for start, end in pieces:
            low, high = max(edit.start, at), min(edit.end, at + end - start)
            if low < high:
                yield Edit(start + low - at, start + high - at, edit.kind, edit.text)
            at += end - start
