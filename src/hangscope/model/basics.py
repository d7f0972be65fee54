"""Where a fact was read, what is missing, a frame of a stack: the small values that everything else is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

UNKNOWN = -1
"""In integer columns: the file does not say."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a fact was read: a file, as the user named it, and a place in it (``line 12``, ``entries[17]``)."""

    file: str
    place: str = ""

    def __str__(self) -> str:
        return f"{self.file} {self.place}".strip()

    @property
    def line(self) -> int | None:
        """The number of the line, where the place is one."""
        word, _, number = self.place.partition(" ")
        return int(number) if word == "line" and number.isdigit() else None


@dataclass(frozen=True, slots=True)
class Gap:
    """Evidence that should be there and is not, or that cannot be trusted. Never an accusation by itself."""

    what: str
    why: str = ""
    rank: int | None = None
    node: str | None = None
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a Python (or C++) stack."""

    name: str
    filename: str
    line: int

    def __str__(self) -> str:
        return f"{self.filename}:{self.line} {self.name}"
