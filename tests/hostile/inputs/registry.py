"""What an input is, and the classes of inputs that there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

NOBODY = 65534


@dataclass
class Input:
    """What is handed over, and what is to be asked about it."""

    path: Path
    named: list[str] = field(default_factory=list)
    """Words that must be in a gap."""
    verbs: tuple[str, ...] = ()
    """The questions that it is for (see questions.py); any, where there are none."""
    uid: int = 0
    """Who asks; 0 for whoever runs this."""
    skips: bool = False
    """Whether a bundle of it must have as many gaps as things that were skipped."""


Maker = Callable[[Random, Path], Input]
CLASSES: dict[str, Maker] = {}
"""name → what writes one input of the class to a path that is not there yet."""


def input_class(make: Maker) -> Maker:
    CLASSES[make.__name__] = make
    return make
