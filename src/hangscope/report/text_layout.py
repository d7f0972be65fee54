"""Lines of text with a role a piece, wrapped to a width. Plain code, so that the same verdict always looks the same.

A role says what a piece is, never how it looks: `ROLES` is the one table of looks, used by a terminal that has colour.
Every piece is made safe when it is made, so nothing from evidence reaches a terminal untouched.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hangscope.report.safe_text import safe

ROLES = {
    "": "",
    "alarm": "bold red",
    "culprit": "bold red",
    "waiting": "yellow",
    "good": "bold green",
    "label": "bold",
    "faint": "dim",
}


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of one role."""

    text: str
    role: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", safe(self.text))


Line = tuple[Piece, ...]


def plain(lines: Iterable[Line]) -> str:
    """The text alone; no line ends in blanks."""
    return "".join("".join(piece.text for piece in line).rstrip() + "\n" for line in lines)


def cells(text: str) -> int:
    """How many columns of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in ("W", "F") else 1 for c in text
    )


def pad(text: str, width: int) -> str:
    return text + " " * max(0, width - cells(text))


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` columns; the middle goes, because names differ at their ends."""
    if cells(text) <= width:
        return text
    if width <= 1:
        return "…"[:width]
    head = (width - 1) // 2
    tail = width - 1 - head
    return f"{cut(text, head)}…{cut(text[::-1], tail)[::-1]}"


def cut(text: str, width: int) -> str:
    """The first `width` columns of `text`."""
    used = 0
    for i, character in enumerate(text):
        used += cells(character)
        if used > width:
            return text[:i]
    return text


def wrap(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` columns, broken at blanks, inside a word only where it must be."""
    lines: list[str] = []
    line = ""
    for word in safe(text).split():
        if line and cells(line) + 1 + cells(word) <= width:
            line = f"{line} {word}"
            continue
        if line:
            lines.append(line)
        while cells(word) > width:
            head = _break(word, width)
            lines.append(head)
            word = word[len(head) :]
        line = word
    if line or not lines:
        lines.append(line)
    return lines


def _break(word: str, width: int) -> str:
    """The first part of a word that is too long: up to the last ``/`` or ``,`` that fits, else as much as fits."""
    head = cut(word, width) or word[0]
    at = max((m.end() for m in re.finditer(r"[/,]", head)), default=0)
    return head[:at] if at > width // 2 else head


def paragraph(
    text: str, width: int, *, first: str = "", indent: int = 0, role: str = "", mark: str = "label"
) -> list[Line]:
    """`text` wrapped behind `first`, continued at column `indent` (at least after `first`)."""
    column = max(indent, cells(first))
    lines: list[Line] = []
    for i, part in enumerate(wrap(text, max(width - column, 10))):
        lead = Piece(pad(first, column), mark) if i == 0 and first else Piece(" " * column)
        lines.append((lead, Piece(part, role)))
    return lines


def table(rows: Sequence[Sequence[str]], width: int, *, right: frozenset[int] = frozenset()) -> list[str]:
    """Rows of equal length as aligned columns two blanks apart, each line cut to `width`."""
    clean = [[safe(cell) for cell in row] for row in rows]
    sizes = [max(cells(row[i]) for row in clean) for i in range(len(clean[0]))]
    out = []
    for row in clean:
        parts = [
            " " * (sizes[i] - cells(cell)) + cell if i in right else pad(cell, sizes[i]) for i, cell in enumerate(row)
        ]
        out.append(cut("  ".join(parts).rstrip(), width))
    return out
