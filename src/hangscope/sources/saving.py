"""What a slice's `save` is given: what is known of a node's job, and where to put what it finds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Saving:
    """One slice's part of one capture of a node.

    `settings` are those in force for the ranks, by their names' prefixes (NCCL_, TORCH_ …), `handlers` what the ranks'
    debug servers answer. `write` takes a name below the node's folder; a `gap` says why there is nothing. `ended` turns
    true when the job has: nothing is left then that could answer.
    """

    settings: Mapping[str, str]
    handlers: frozenset[str]
    started_at: float
    ended: threading.Event
    write: Callable[[str, bytes | str], object]
    gap: Callable[[str], None]
    node: str = ""
    command: int | None = None
    """The process that started the job here."""
    ranks: Mapping[int, int] = field(default_factory=dict)
    """pid → rank, of those that live."""
