"""The incidents of one run as this node saves them: how far each is, and what came of it.

The agent's loop, a capture, a diagnosis, its correction, and whoever asks for the status or the metrics are threads of
their own: one lock guards all that is kept here, and nothing slow is done while it is held.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from enum import Enum
from pathlib import Path

from hangscope.recorder.agent.diagnose_process import Verdict
from hangscope.recorder.capture.capture_node import NodeCapture
from hangscope.recorder.rundir.peer_files import CaptureNote
from hangscope.recorder.rundir.reasons import Reason


class Stage(Enum):
    """How far the work on an incident is. A second capture of the same hang goes through it again."""

    MARKED = "marked"
    """The nodes know of it, or may come to; nothing of it was saved here."""
    CAPTURING = "capturing"
    SAVED = "saved"
    """This node's part is all there."""
    CONCLUDING = "concluding"
    """The other nodes are awaited, the manifest is written, the verdict is given where that is ours to do."""
    CONCLUDED = "concluded"
    """All of that is done, or was given up."""


class Incident:
    """One hang, or what somebody asked for. It changes by its methods alone, each under the run's one lock."""

    def __init__(self, path: Path, lock: threading.RLock) -> None:
        self.path = path
        self._lock = lock
        self._stage = Stage.MARKED
        self._capture: NodeCapture | None = None
        self._earlier = False
        self._saved = False
        self._concluded_at: float | None = None
        self._verdict: Verdict | None = None
        self._recovered = False

    # ---- how far it is -----------------------------------------------------------------------------------------------

    @property
    def stage(self) -> Stage:
        with self._lock:
            return self._stage

    @property
    def capture(self) -> NodeCapture | None:
        """The last one of it; None where this node has saved nothing."""
        with self._lock:
            return self._capture

    @property
    def reason(self) -> str | None:
        """Why it was captured; None where it was not."""
        capture = self.capture
        return None if capture is None else capture.reason

    @property
    def home(self) -> Path:
        """Where what was captured lies: there, or where it went when that took no more."""
        capture = self.capture
        return self.path if capture is None else capture.node_dir.incident

    @property
    def is_of_an_earlier_attempt(self) -> bool:
        with self._lock:
            return self._earlier

    @property
    def is_saved(self) -> bool:
        """Whether this node's part was all there once; its verdict may be under way."""
        with self._lock:
            return self._saved

    @property
    def concluded_at(self) -> float | None:
        """When (monotonic) the work on it was done last."""
        with self._lock:
            return self._concluded_at

    @property
    def verdict(self) -> Verdict | None:
        """The one that this node gave last."""
        with self._lock:
            return self._verdict

    @property
    def recovered(self) -> bool:
        """Whether its stall ended by itself."""
        with self._lock:
            return self._recovered

    # ---- what happens to it ------------------------------------------------------------------------------------------

    def begin(self, capture: NodeCapture) -> None:
        """A capture of it begins."""
        with self._lock:
            self._capture = capture
            self._stage = Stage.CAPTURING

    def save(self) -> None:
        with self._lock:
            self._saved = True
            self._stage = Stage.SAVED

    def begin_conclusion(self) -> None:
        with self._lock:
            self._stage = Stage.CONCLUDING

    def conclude(self) -> None:
        with self._lock:
            self._stage = Stage.CONCLUDED
            self._concluded_at = time.monotonic()

    def give(self, verdict: Verdict) -> Verdict | None:
        """The verdict, or a corrected one. Returns the one before."""
        with self._lock:
            before = self._verdict
            self._verdict = verdict
            return before

    def recover(self) -> bool:
        """Its stall ended by itself. False where that was known."""
        with self._lock:
            known = self._recovered
            self._recovered = True
            return not known

    def outlive_attempt(self) -> None:
        """The ranks have been started anew."""
        with self._lock:
            self._earlier = True


class Incidents:
    """All of a run, for the status, the metrics, and whoever decides."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._by_path: dict[Path, Incident] = {}
        self._captures: list[CaptureNote] = []

    def of(self, path: Path) -> Incident:
        with self._lock:
            return self._by_path.setdefault(path, Incident(path, self._lock))

    def captured(self) -> list[Incident]:
        """Those of which something was saved here, in the order in which they were first spoken of."""
        with self._lock:
            return [each for each in self._by_path.values() if each.capture is not None]

    def note_capture(self, path: Path, reason: str, detail: str) -> None:
        with self._lock:
            self._captures.append(CaptureNote(str(path), str(reason), detail, time.time()))

    def end_attempt(self) -> None:
        for incident in self.captured():
            incident.outlive_attempt()

    @property
    def captures(self) -> list[CaptureNote]:
        """In the order of their time; a hang that was captured twice is there twice."""
        with self._lock:
            return list(self._captures)

    def times(self, path: Path) -> int:
        """How often an incident was captured."""
        return sum(note.incident == str(path) for note in self.captures)

    @property
    def hangs(self) -> int:
        """How many incidents are kept, without those that somebody asked for, or in which nothing hung."""
        return len({note.incident for note in self.captures if note.reason not in (Reason.SNAPSHOT, Reason.DESYNC)})

    def reasons(self) -> Counter[str]:
        """How many captures there were, by what set them off."""
        return Counter(note.reason for note in self.captures)

    def kinds(self) -> Counter[tuple[str, str]]:
        """How many verdicts this node gave, by outcome and kind."""
        values = [found.value for each in self.captured() if (found := each.verdict) is not None]
        return Counter((str(value.get("outcome") or ""), str(value.get("kind") or "")) for value in values)

    @property
    def pauses(self) -> int:
        """How many of them went on by themselves."""
        return sum(each.recovered for each in self.captured())
