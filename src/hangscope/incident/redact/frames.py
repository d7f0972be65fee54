"""Lines of a log that is full of secrets, told by all of them but the secret.

Where a name gave the one value of a line away, the next line that differs in that value alone has it at the same place.
And the same environment, printed by each rank, is looked at once.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from hangscope.incident.redact import patterns
from hangscope.incident.redact.handlers import Edit
from hangscope.incident.redact.view import may_differ

BY_NAME = frozenset(("password", "secret", "token", "api-key"))
"""Kinds that a name gives."""

_VALUE = re.compile(
    rb"(?<![\w+!@#^*~.-])(?!0x|\d{4}-\d\d-\d\dT)(?=[0-9+_!@#^*~-]*[A-Za-z])"
    rb"(?=[A-Za-z+_!@#^*~-]*\d|(?:[A-Za-z+_!@#^*~-]*?[a-z][A-Z]){3})[A-Za-z0-9+_!@#^*~-]{8,200}(?![\w.])"
)
"""A word of letters and digits, or of letters of both cases: behind a secret's name it is the value, whatever it is."""
_SURELY = 20
"""From this length on no name asks for a longer value."""
_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)
_SAYS_ITSELF = frozenset(needle[:4] for pattern in patterns.TOKENS for needle in pattern.needles if not pattern.back)
"""How values begin that say themselves what they are: those are looked at."""


class Frame(NamedTuple):
    at: int
    least: int
    """How long a value must be."""
    before: int
    behind: int
    """How far the edit reaches beyond the value."""
    kind: str
    text: bytes
    last: bool
    """Whether the edit ends the line, and might go on in the next one."""


class Frames:
    """Remembers lines by their frames, and whole lines with what follows them."""

    def __init__(self) -> None:
        self._known: dict[bytes, Frame] = {}
        self._twins: dict[tuple[bytes, bytes], list[Edit]] = {}

    def clear(self) -> None:
        self._known.clear()
        self._twins.clear()

    @staticmethod
    def of(data: bytes) -> list[bytes]:
        """The frames of all lines: values left out, digits made equal."""
        return _VALUE.sub(b"\1", data).translate(_DIGITS).split(b"\n")

    def edit(self, frames: list[bytes], number: int, line: bytes) -> tuple[Edit, bool] | None:
        """The one edit of a line whose frame is known, and whether it might go on in the next one; None of others."""
        frame = frames[number]
        known = self._known.get(frame)
        if known is None:
            return None
        at, least, before, behind, kind, text, last = known
        size = len(line) - len(frame) + 1
        if size < least or line[at : at + 4].lower() in _SAYS_ITSELF or line[at : at + 3].lower() in _SAYS_ITSELF:
            return None
        if kind == "api-key" and line[at : at + size].isalpha():
            return None  # a name that ends in `key` asks for a digit
        if last:
            following = self._known.get(frames[number + 1]) if number + 1 < len(frames) else None
            last = following is None or not following.at
        return Edit(at - before, at + size + behind, kind, text), last

    def learn(self, line: bytes, edits: list[Edit]) -> int:
        """Remember the frame of a line with one value; how many bytes that took."""
        only = edits[0]
        if len(edits) > 1 or only.kind not in BY_NAME or may_differ(line):
            return 0
        frame, count = _VALUE.subn(b"\1", line)
        at, size = frame.find(1), len(line) - len(frame) + 1
        if count != 1 or only.start > at or only.end < at + size:
            return 0
        frame = frame.translate(_DIGITS)
        least = min(size, _SURELY, self._known[frame].least if frame in self._known else _SURELY)
        last = only.end > len(line) - 4
        self._known[frame] = Frame(at, least, at - only.start, only.end - at - size, only.kind, only.text, last)
        return len(frame)

    def twin(self, line: bytes, following: bytes) -> list[Edit] | None:
        """The edits of the same line with the same one behind it."""
        return self._twins.get((line, following))

    def learn_twin(self, line: bytes, following: bytes, edits: list[Edit]) -> int:
        self._twins[line, following] = edits
        return len(line) + len(following)
