"""Evidence as text on a page: nothing in it can turn, hide or break what stands around it, and nothing is endless."""

from __future__ import annotations

from collections.abc import Iterable

from hangscope.model import Frame
from hangscope.report.safe_text import safe
from hangscope.report.text_layout import shorten

SHORT = 48
LINE = 240
LONG = 1500
"""A name in a chart, a line in a list, a quoted line of a log."""


def shown(text: object, limit: int = LINE) -> str:
    """`text` without characters that reorder or hide others, cut in the middle: both ends of a name tell it apart."""
    whole = str(text)
    if len(whole) > 4 * limit:  # before each character is looked at
        whole = whole[: 2 * limit] + whole[-2 * limit :]
    return shorten(safe(whole), limit)


def code_line(frame: Frame) -> str:
    """``/workspace/train.py:72``."""
    return f"{shown(frame.filename, 160)}:{frame.line}"


def rank_runs(ranks: Iterable[int]) -> list[list[int]]:
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
