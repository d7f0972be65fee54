"""What families of slow inputs share: their names, and how a file of a wanted size is filled.

A family is a function that writes evidence of about `size` bytes into a folder, the same for the same seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

Family = Callable[[Path, random.Random, int], None]
Line = Callable[[int, random.Random], str]

FAMILIES: dict[str, Family] = {}


def family(make: Family) -> Family:
    """Register a family under its function's name."""
    FAMILIES[make.__name__] = make
    return make


def log(name: str, line: Line, file: str = "job.log") -> None:
    """Register a family of one log that has one line (or block) a number."""

    def write(folder: Path, rng: random.Random, size: int) -> None:
        (folder / file).write_text("".join(fill(size, rng, line)))

    FAMILIES[name] = write


def fill(size: int, rng: random.Random, line: Line) -> Iterator[str]:
    """Lines one after the other until there are `size` bytes."""
    written = 0
    number = 0
    while written < size:
        text = line(number, rng)
        written += len(text)
        number += 1
        yield text


def spread(folder: Path, rng: random.Random, size: int, name: str, make: Callable[[int], bytes]) -> None:
    """Files named by number until there are `size` bytes, at most a thousand."""
    del rng
    written = 0
    for number in range(1000):
        data = make(number)
        path = folder / name.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        written += len(data)
        if written >= size:
            break
