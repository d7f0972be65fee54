"""What is known of this node and does not change while the job runs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hangscope.sources.gpu_state import nvidia_smi
from hangscope.sources.net_counters import capture as net_counters


@dataclass(slots=True)
class NodeFacts:
    name: str
    job: str
    attempt: str
    started_at: float
    gpus: list[dict[str, Any]] = field(default_factory=list)
    driver: str | None = None
    nics: list[dict[str, Any]] = field(default_factory=list)
    command: int | None = None
    """What was started here: the processes of an engine that are no ranks are below it."""
    programs: tuple[int, ...] = ()
    """Other programs that the job works with: a server, an engine, another job."""
    boxes: Path | None = None
    """Where the ranks' black boxes lie."""
    attempt_at: float = 0.0
    """When the launcher began the current attempt: what is older was left by those before."""
    earlier: frozenset[int] = frozenset()
    """The processes of the attempts before."""
    machine: str | None = None
    """Of a pod, the machine under it, empty where it is not known; None where the node is a machine."""

    def begin_attempt(self, earlier: Iterable[int]) -> None:
        self.attempt_at = time.time()
        self.earlier = frozenset(earlier)

    def look_up(self) -> None:
        """GPUs and ports: takes seconds where a driver is slow."""
        self.gpus, self.driver = nvidia_smi.inventory()
        self.nics = net_counters.ports()
