"""Evidence as text on a page: nothing in it can turn, hide or break what stands around it, and nothing is endless."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hangscope.model import Frame, Source
from hangscope.report.safe_text import safe

SHORT = 48
LINE = 240
LONG = 1500
"""A name in a chart, a line in a list, a quoted line of a log."""


def shown(text: object, limit: int = LINE) -> str:
    """`text` without characters that reorder or hide others, cut in the middle: both ends of a name tell it apart."""
    whole = str(text)
    if len(whole) > 4 * limit:  # before each character is looked at
        whole = whole[: 2 * limit] + whole[-2 * limit :]
        return middle(safe(whole), limit)
    return middle(safe(whole), limit)


def middle(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head = (limit - 1 + 1) // 2
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def code_line(frame: Frame) -> str:
    """``/workspace/train.py:72``."""
    return f"{shown(frame.filename, 160)}:{frame.line}"


def source_text(source: Source, inputs: Sequence[str]) -> str:
    """The source without the path that the user typed."""
    for given in inputs:
        lead = given.rstrip("/") + "/"
        if source.file.startswith(lead):
            return shown(Source(source.file[len(lead) :], source.place))
    return shown(source)


def runs(ranks: Iterable[int]) -> list[list[int]]:
    """Ranks as [first, last, step]: how the script finds the row of a rank."""
    ordered = sorted(set(ranks))
    found: list[list[int]] = []
    at = 0
    while at < len(ordered):
        step = ordered[at + 1] - ordered[at] if at + 1 < len(ordered) else 1
        end = at + 1
        while end < len(ordered) and ordered[end] - ordered[end - 1] == step:
            end += 1
        found.append([ordered[at], ordered[end - 1], step])
        at = end
    return found
