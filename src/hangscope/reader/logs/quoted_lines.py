"""The lines of a log that facts may come from, kept as they are, so that a verdict can show them.

What a reader makes of a line is less than the line: a peer's address, an error code, two sizes. Of a flood of such
lines the first and the last are kept.
"""

from __future__ import annotations

KEPT_AT_EACH_END = 2_000
LONGEST = 600
_CUT = " … "
_KEPT_OF_ITS_END = 200
"""Characters: what differs, or the error's code, often stands last."""


class QuotedLines:
    """Lines by their numbers, in bounded memory."""

    def __init__(self) -> None:
        self._first: dict[int, str] = {}
        self._last: dict[int, str] = {}

    def add(self, number: int, text: str) -> None:
        kept = _shortened(text.strip())
        if len(self._first) < KEPT_AT_EACH_END:
            self._first[number] = kept
            return
        self._last[number] = kept
        if len(self._last) > KEPT_AT_EACH_END:
            del self._last[next(iter(self._last))]

    def line(self, number: int | None) -> str | None:
        """The line with that number, where it was kept."""
        if number is None:
            return None
        return self._first.get(number) or self._last.get(number)


def _shortened(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return text[: LONGEST - _KEPT_OF_ITS_END] + _CUT + text[-_KEPT_OF_ITS_END:]
