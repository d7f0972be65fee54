"""Where the doctor looks: this machine, or another one's files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from hangscope.processes.programs import find_program


@dataclass(frozen=True, slots=True)
class ExaminedNode:
    """Where to look. The defaults are this machine."""

    proc: Path = Path("/proc")
    kmsg: Path = Path("/dev/kmsg")
    shm: Path = Path("/dev/shm")
    path: str = field(default_factory=lambda: os.environ.get("PATH", os.defpath))
    try_out: bool = True
    """Read the stack of a process of our own to see whether that is allowed, rather than conclude it."""

    def tool(self, name: str) -> str | None:
        return find_program(name, self.path)
