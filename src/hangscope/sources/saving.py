"""What a slice's capture is given: what is known of a node's job and its ranks, and where to put what it finds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hangscope.incident.node_dir import NodeDir
from hangscope.processes.target_rights import NOBODY, Rights
from hangscope.sources.ranks import RankSeen


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
    gap_of: Callable[[str, str], None]
    """The same of a part of it, by name."""
    node: str = ""
    command: int | None = None
    """The process that started the job here."""
    has_gpus: bool = False
    ranks: Mapping[int, int] = field(default_factory=dict)
    """pid → rank, of those that live."""
    pids: frozenset[int] = frozenset()
    """Of all ranks, those that have ended too."""
    earlier: frozenset[int] = frozenset()
    """The processes of the attempts before."""
    rights: Rights = NOBODY
    """What a setting names is opened with these: they are those of the rank whose settings they are."""
    made: Mapping[str, str] = field(default_factory=dict)
    """Setting → what the run itself made for it: what no rank may have set."""
    programs: tuple[int, ...] = ()
    """Other programs that the job works with, as whoever asked named them."""


class SavingOfRanks(Protocol):
    """What a slice's `begin` makes where it has something to save of each rank: it lives as long as the hang."""

    def take(self, node_dir: NodeDir, rank: RankSeen, sample: int) -> None:
        """After the stacks of a sample of a rank were saved."""

    def write(self, node_dir: NodeDir) -> None:
        """Before each writing of node.json: save what there is by now."""
