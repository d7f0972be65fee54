"""The incidents of one run, as this node saves them.

An incident is one hang. The first is kept in the run's own directory, a later one beside it; a second capture of the
same hang, when PyTorch's watchdog fires, adds to the first. A capture runs on a thread of its own, so that the end of a
rank is noticed meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hangscope.incident.layout import VERDICT_JSON
from hangscope.incident.node_dir import NodeDir
from hangscope.recorder.agent import incident_manifest
from hangscope.recorder.agent.conclusions import Conclusions
from hangscope.recorder.agent.incidents import Incident, Incidents, Stage
from hangscope.recorder.agent.watcher import Trouble
from hangscope.recorder.capture import output_files
from hangscope.recorder.capture.capture_node import NodeCapture
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.live.looks import Look
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.rundir import peer_files, run_directory
from hangscope.recorder.rundir.reasons import Reason
from hangscope.recorder.rundir.run_directory import RunFolders
from hangscope.safeio.safe_files import read_below, remove_empty, remove_tree

VERDICT_S = 45.0
"""How long a node that does not diagnose itself waits for the verdict before it takes the evidence for safe."""
LAST_OUTPUT_S = 5.0
"""After a rank's end the job often ends too, and its last output says why: so long the diagnosis waits for it."""
AT_END_S = 20.0
"""For a capture that is under way when the command ends."""
SHARED_STORE = (
    "torchrun restarted these ranks, and its store still holds the addresses of the previous ones, which is often"
    " why init_process_group hangs or fails after a restart. TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 gives every start its"
    " own store"
)


class Captures:
    """`ended` is set once the command has ended, `asked_at` says when it was asked to. `spare` makes a directory for
    what the run's own takes no more."""

    def __init__(
        self,
        folders: RunFolders,
        node: NodeFacts,
        ended: threading.Event,
        log: Incidents,
        conclusions: Conclusions,
        asked_at: Callable[[], float | None] = lambda: None,
        *,
        say: Callable[[str], None],
        spare: Callable[[], Path] | None = None,
    ) -> None:
        self._folders = folders
        self._node = node
        self._ended = ended
        self._log = log
        self._conclusions = conclusions
        self._asked_at = asked_at
        self._say = say
        self._spare = spare
        self._output = folders.own
        """The node's folder in which the copy of the output grows."""
        self._hang = 1
        self._snapshot = 1
        self._desync = 1
        self._working: threading.Thread | None = None
        self._correcting: threading.Thread | None = None

    # ---- which incident ----------------------------------------------------------------------------------------------

    @property
    def hang(self) -> Path:
        """Where the hang of now belongs."""
        return run_directory.incident(self._folders.root, "hang", self._hang)

    @property
    def snapshot(self) -> Path:
        return run_directory.incident(self._folders.root, "snapshot", self._snapshot)

    @property
    def desync(self) -> Path:
        """Where the next finding belongs that the ranks have come apart, while nothing hangs."""
        return run_directory.incident(self._folders.root, "desync", self._desync)

    def next_hang(self) -> None:
        """Whatever stalls from now on is another incident."""
        if run_directory.marked(self.hang) is not None:
            self._hang += 1

    def next_attempt(self) -> Path | None:
        """The launcher has started the ranks anew. Where the logs belong from now on, None where they stay.

        What an earlier attempt printed would accuse ranks that are innocent this time.
        """
        before = self.hang
        self._log.end_attempt()
        self.next_hang()
        if self.hang == before:
            return None
        self._output = self.hang / "nodes" / self._folders.own.name
        return self._output / "logs"

    # ---- how far it is -----------------------------------------------------------------------------------------------

    @property
    def working(self) -> bool:
        return self._working is not None and self._working.is_alive()

    def is_saved(self, incident: Path) -> bool:
        """Whether this node's part of an incident is all there."""
        return self._log.of(incident).is_saved

    def reason(self, incident: Path) -> str | None:
        """Why an incident was captured, None where it was not."""
        return self._log.of(incident).reason

    def home(self, incident: Path) -> Path:
        """Where what was captured for an incident lies: there, or where it went when that took no more."""
        return self._log.of(incident).home

    def is_safe(self, incident: Path) -> bool:
        """Whether all that can be had of the hang is saved, and its verdict given where that is this node's to do."""
        found = self._log.of(incident)
        done = found.concluded_at
        if done is None or self.working:
            return False
        if found.verdict is not None or (found.home / VERDICT_JSON).exists():
            return True
        nobody_will = not self._conclusions.diagnoses or self._conclusions.is_only_a_part(incident)
        return nobody_will or time.monotonic() > done + VERDICT_S

    def done_for_s(self, incident: Path) -> float:
        """For how long the work on an incident has been done; 0 where it is not."""
        done = self._log.of(incident).concluded_at
        return 0.0 if done is None else time.monotonic() - done

    def verdict(self, incident: Path) -> Mapping[str, Any]:
        """The verdict's JSON, as this node or the one that diagnosed has it; empty where there is none."""
        found = self._log.of(incident)
        given = found.verdict
        return given.value if given is not None else peer_files.verdict(found.home, VERDICT_JSON)

    # ---- capturing ---------------------------------------------------------------------------------------------------

    def capture(self, incident: Path, trouble: Trouble, ranks: Sequence[WatchedRank], look: Look | None = None) -> None:
        """Capture and conclude, on a thread of its own. The mark makes the other nodes capture too.

        With a `look`, its rings are saved, and nothing is asked of the ranks.
        """
        reason, detail = self._mark(incident, trouble)
        found = self._log.of(incident)
        before = found.capture
        if before is not None:
            capture = before.again(ranks, look)
        else:
            node_dir = NodeDir(incident, incident / "nodes" / self._folders.own.name, self._spare)
            capture = NodeCapture(node_dir, self._node, tuple(ranks), reason, detail, self._ended, self._asked_at, look)
        found.begin(capture)
        self._log.note_capture(incident, reason, detail)
        what = "what every rank is doing" if look is None else "the ranks' recordings"
        self._say(f"{detail or reason}; saving {what} to {incident}")
        if look is None and reason != Reason.SNAPSHOT and any(rank.may_find_old_addresses for rank in ranks):
            self._say(SHARED_STORE)
        self._working = threading.Thread(target=self._work, args=(found, capture), name="capture", daemon=True)
        self._working.start()

    def _mark(self, incident: Path, trouble: Trouble) -> Trouble:
        """The reason and detail of whoever marked it first: all nodes give the same."""
        if self._log.of(incident).capture is not None:
            return trouble
        try:
            first = run_directory.mark(incident, node=self._node.name, reason=trouble.reason, detail=trouble.detail)
        except OSError as error:
            self._say(f"{incident}: {error.strerror or error}; the other nodes could not be notified")
            return trouble
        asked = None if first else run_directory.marked(incident)
        if asked is None:
            return trouble
        return Trouble(asked.reason or trouble.reason, asked.detail or trouble.detail)

    def _work(self, incident: Incident, capture: NodeCapture) -> None:
        try:
            if capture.look is None:
                capture.take()
            else:
                capture.take_look()
            self._copy_run_files(capture)
            if capture.reason == Reason.RANK_EXIT:
                self._ended.wait(LAST_OUTPUT_S)
            capture.complete()
            incident.save()
            if incident.path == self.snapshot:
                self._snapshot += 1
            elif incident.path == self.desync:
                self._desync += 1
            if not self._ended.is_set():  # otherwise `finish` concludes, with all that is known then
                incident.begin_conclusion()
                self._conclusions.conclude(incident.path, capture)
        except Exception as error:
            self._say(f"the capture is not complete: {type(error).__name__}: {error}")
        incident.conclude()

    def _copy_run_files(self, capture: NodeCapture) -> None:
        """An incident beside the run's own directory gets a copy of the output and the counters so far."""
        wanted = [(self._output, file) for file in self._output.glob("logs/*.log")]
        wanted.append((self._folders.own, self._folders.own / "counters" / "start.json"))
        for place, source in wanted:
            if place == capture.node_dir.directory:
                continue
            name = source.relative_to(place).as_posix()
            with contextlib.suppress(OSError):
                capture.node_dir.write(name, read_below(place, name, output_files.MAX_BYTES, tail=True))

    def gpus_asked(self) -> bool:
        """Whether `snapshot --gpu` has asked the GPUs of any node: what fails after that is its doing."""
        captured = self._log.captured()
        snapshots = [
            each.path for each in captured if each.reason == Reason.SNAPSHOT and not each.is_of_an_earlier_attempt
        ]
        agents = run_directory.peers(self._folders.root, self._folders.own) if snapshots else []
        folders = {self._folders.own, *(agent.folder for agent in agents)}
        return any(run_directory.asked_gpus(path, folder) for path in snapshots for folder in folders)

    def note_recovery(self, incident: Path, seconds: float) -> None:
        """The captured stall ended by itself, after so long."""
        correcting = self._conclusions.note_recovery(incident, self.home(incident), seconds)
        self._correcting = correcting or self._correcting

    def ask_gpus(self, launcher: int) -> None:
        """The ranks are about to be ended: what runs on their GPUs is added to the hang's evidence, and its verdict
        given again."""
        capture = self._log.of(self.hang).capture
        if capture is None or not capture.can_ask_gpus():
            return
        self._say("asking the GPUs which kernels they run, which ends what runs there")
        if capture.take_gpu_cores(launcher):
            correcting = self._conclusions.reconsider(self.hang, capture)
            self._correcting = correcting or self._correcting

    # ---- the end -----------------------------------------------------------------------------------------------------

    def finish(self, ranks: Sequence[WatchedRank], trouble: Trouble | None) -> None:
        """The command has ended. `trouble` says how, where that is worth an incident of its own."""
        for thread in (self._working, self._correcting):
            if thread is not None:
                thread.join(timeout=AT_END_S)
        self._correct_at_end()
        if self._log.of(self.hang).capture is None and trouble is not None:
            self.capture(self.hang, trouble, ranks)
            assert self._working is not None
            self._working.join(timeout=AT_END_S)
        if self._log.of(self.hang).capture is None:
            self._forget_output()
        for incident in self._log.captured():
            capture = incident.capture
            assert capture is not None
            capture.complete()
            if incident.stage is Stage.CONCLUDING and self._working is not None:
                self._working.join()  # its diagnosis is under way, and ends at its own deadline
            if incident.verdict is not None:
                incident_manifest.refresh(incident.home)  # the output has grown since
            else:
                self._conclusions.conclude(incident.path, capture)

    def _correct_at_end(self) -> None:
        """A stall that ended by itself shortly before the job did is a pause as well."""
        lasted = self._conclusions.went_on_after(self.hang, self.reason(self.hang))
        if lasted is None or self._log.of(self.hang).verdict is None:
            return  # what has no verdict yet gets the right one
        self.note_recovery(self.hang, lasted)
        if self._correcting is not None:
            self._correcting.join(timeout=AT_END_S)

    def _forget_output(self) -> None:
        """An attempt that went well leaves no incident, so that the copy of its output has no reader."""
        if self._output != self._folders.own:
            remove_tree(self._output)
            with contextlib.suppress(OSError):
                remove_empty(self._output.parent)
                remove_empty(self._output.parent.parent)
