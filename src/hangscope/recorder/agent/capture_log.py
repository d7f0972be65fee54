"""What this node has captured so far, and what came of it: for the status, the metrics, and whoever decides."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hangscope.recorder.agent.diagnose_process import Verdict
from hangscope.recorder.rundir.peer_files import CaptureNote


@dataclass(slots=True)
class CaptureLog:
    captures: list[CaptureNote] = field(default_factory=list)
    """In the order of their time; a hang that was captured twice is there twice."""
    verdicts: dict[Path, Verdict] = field(default_factory=dict)
    """The verdicts that this node gave, by incident."""
    pauses: set[Path] = field(default_factory=set)
    """Incidents whose stall ended by itself."""

    def add(self, incident: Path, reason: str, detail: str) -> None:
        self.captures.append(CaptureNote(str(incident), reason, detail, time.time()))

    def times(self, incident: Path) -> int:
        """How often an incident was captured."""
        return sum(note.incident == str(incident) for note in self.captures)

    @property
    def hangs(self) -> int:
        """How many incidents are kept, without those that somebody asked for, or in which nothing hung."""
        return len({note.incident for note in self.captures if note.reason not in ("snapshot", "desync")})

    def reasons(self) -> Counter[str]:
        """How many captures there were, by what set them off."""
        return Counter(note.reason for note in self.captures)

    def kinds(self) -> Counter[tuple[str, str]]:
        """How many verdicts this node gave, by outcome and kind."""
        values = [verdict.value for verdict in self.verdicts.values()]
        return Counter((str(value.get("outcome") or ""), str(value.get("kind") or "")) for value in values)
