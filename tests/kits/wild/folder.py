"""How a folder that misleads is written down, with the truth that an expert would state.

The truth is reasoned from how a folder was made, never taken from what hangscope answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType

from kits.job_files import Files

HOUR = 3600.0
ANY = frozenset({"absent", "dead", "frozen", "gpu", "mismatch", "deadlock", "network", "slow", "unknown", "none"})
FINE = frozenset({"none", "unknown"})


@dataclass(frozen=True)
class Folder:
    """Files, and what may be said about them."""

    name: str
    files: Files
    culprits: tuple[tuple[int, ...], ...]
    """Every set of ranks that is a right answer; the empty one where naming nobody is right."""
    kinds: frozenset[str] = ANY
    outcomes: frozenset[str] = frozenset({"hang"})
    exits: frozenset[int] = frozenset({1})
    at_most: str = "high"
    says: tuple[str, ...] = ()
    """Patterns that must be somewhere in the verdict."""
    never: tuple[str, ...] = ()
    """Patterns that must be nowhere in what the verdict says."""
    first_step: str = ""
    """A pattern for the first of the next steps."""
    gap_of: tuple[int, ...] = ()
    """Ranks whose evidence must be listed as missing or set aside."""
    operation: str | None = None
    """The group of the operation at the root, where it matters."""
    not_ruled_out: tuple[str, ...] = ()
    """Kinds that this evidence cannot exclude."""


Scene = Callable[[], Iterable[Folder]]


def scene(made: Scene) -> Scene:
    """Marks a function that makes folders."""
    made.scene = True  # type: ignore[attr-defined]
    return made


def scenes(module: ModuleType) -> list[Scene]:
    return [made for made in vars(module).values() if getattr(made, "scene", False)]


def hang(name: str, files: Files, *culprits: tuple[int, ...], **more: object) -> Folder:
    """A hang with a cause that the evidence names."""
    return Folder(name, files, culprits, **more)  # type: ignore[arg-type]


def unclear(name: str, files: Files, *also: tuple[int, ...], **more: object) -> Folder:
    """A failure whose cause the evidence does not name: nobody is accused, or one of these sets without being sure."""
    given: dict[str, object] = {"exits": frozenset({1, 3}) if also else frozenset({3}), "at_most": "medium"}
    given["outcomes"] = frozenset({"hang", "unknown"})
    return Folder(name, files, ((), *also), **{**given, **more})  # type: ignore[arg-type]


def fine(name: str, files: Files, *, sure: bool = False, **more: object) -> Folder:
    """A job in which nothing is wrong; `sure` where every rank is seen to be done, and "cannot tell" is too little."""
    outcomes = frozenset({"ok"}) if sure else frozenset({"ok", "unknown"})
    exits = frozenset({0}) if sure else frozenset({0, 3})
    return Folder(name, files, ((),), FINE, outcomes, exits, **more)  # type: ignore[arg-type]


NOT_FINE = (r"[Nn]o hang", r"\bOK\b")
GONE = frozenset({"absent", "dead", "frozen"})
