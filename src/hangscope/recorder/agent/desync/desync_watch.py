"""Whether all ranks still call the same at the same number: each look at their rings is compared, beside the job.

The engine judges, in a process of its own and of the lowest priority, as it judges a hang; what it calls a desync in
two looks one after the other, with operations in between, is said and kept as an incident. Nothing is asked of the
ranks for it, and nothing is done to them. Where the nodes share a directory, each puts its rings there, and the one
that diagnoses hangs compares all.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from pathlib import Path

from hangscope.incident.layout import as_bytes, as_json
from hangscope.incident.node_dir import NodeDir
from hangscope.recorder.agent.diagnose_process import DiagnosisProcess, Verdict
from hangscope.recorder.agent.watcher import Trouble
from hangscope.recorder.capture.capture_node import NodeCapture
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.live.looks import Look
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.rundir import peer_files, run_directory
from hangscope.recorder.rundir.reasons import Reason
from hangscope.recorder.rundir.run_directory import PeerAgent, RunFolders
from hangscope.safeio.safe_files import make_folder, remove_tree, write_below

AGAIN_S = 20.0
"""A suspicion is looked at again so soon."""
LEAST_BETWEEN = 12
"""So many operations at least lie between two looks that confirm each other."""
OTHERS_S = 20.0
"""For the other nodes' rings of the same look."""
APART_S = 10.0
"""Looks of different nodes are one look where their times are no further apart."""
ASK_OTHERS_S = 5.0
CLOSE_S = 2.0
"""At the end, for the thread that compares to put its files away."""
MOST_RANKS = 2048
"""Of larger jobs each node compares its own ranks: their rings would be too much for a shared directory."""
FOLDER = "look-1"
LOOK = "look.json"
AGAIN = "again.json"


class DesyncWatch:
    """`ended` is set once the command has ended."""

    def __init__(self, polling: Polling, folders: RunFolders, node: NodeFacts, ended: threading.Event) -> None:
        self._polling = polling
        self._folders = folders
        self._node = node
        self._ended = ended
        self._working: threading.Thread | None = None
        self._comparing: DiagnosisProcess | None = None
        self._closed = False
        self._suspected: tuple[object, ...] = ()
        self._suspected_at = 0
        """How many operations had been launched in the look that raised the suspicion."""
        self._said: set[tuple[object, ...]] = set()
        self._found: tuple[Trouble, Look] | None = None
        self._shares = False
        self._next_ask = 0.0
        self._asked_again = 0.0

    def turn(self, now: float) -> None:
        """Compare a look that is finished, unless one is being compared; and look again where another node asks."""
        look = self._polling.looks.finished(now)
        busy = self._working is not None and self._working.is_alive()
        if look is not None and look.rings and not busy:
            self._working = threading.Thread(target=self._compare, args=(look,), name="look", daemon=True)
            self._working.start()
        if self._shares and now >= self._next_ask:
            self._next_ask = now + ASK_OTHERS_S
            self._heed_request()

    def take(self) -> tuple[Trouble, Look] | None:
        """What two looks have shown, with the later one; once."""
        found = self._found
        self._found = None
        return found

    def forget(self) -> None:
        """The ranks were started anew."""
        self._suspected = ()
        self._said.clear()
        self._found = None

    def close(self) -> None:
        """End the comparison that is under way: on a busy machine one of the lowest priority outlives the job."""
        self._closed = True
        comparing = self._comparing
        if comparing is not None:
            comparing.end()
        if self._working is not None:
            self._working.join(CLOSE_S)
        if self._shares:
            remove_tree(self._folders.root / FOLDER)

    # ---- one look ----------------------------------------------------------------------------------------------------

    def _compare(self, look: Look) -> None:
        """On a thread of its own. Whatever fails, the next look tries again."""
        with contextlib.suppress(OSError):
            verdict = self._verdict(look)
            if verdict is not None and verdict.value and not self._ended.is_set():
                self._weigh(look, verdict)

    def _verdict(self, look: Look) -> Verdict | None:
        """What the engine says of the rings of all nodes; None where that is another node's to ask."""
        agents = run_directory.peers(self._folders.root, self._folders.own)
        others = [agent for agent in agents if agent.ranks and agent.fresh and agent.folder != self._folders.own]
        ranks = sum(len(agent.ranks) for agent in agents)
        if others and ranks <= MOST_RANKS:
            self._shares = True
            place = self._folders.root / FOLDER
            self._write(look, place)
            leads = run_directory.leader(agents) == self._folders.own
            return self._diagnosed(place) if leads and self._await(look, others) else None
        with tempfile.TemporaryDirectory(prefix="hangscope-look-") as folder:
            self._write(look, Path(folder))
            return self._diagnosed(Path(folder))

    def _write(self, look: Look, place: Path) -> None:
        own = place / "nodes" / self._folders.own.name
        remove_tree(own)
        node_dir = NodeDir(place, own)
        ranks = tuple(self._polling)
        capture = NodeCapture(node_dir, self._node, ranks, Reason.DESYNC, "", self._ended, look=look)
        capture.take_look()
        node_dir.write_json(LOOK, {"at": look.at})

    def _await(self, look: Look, others: list[PeerAgent]) -> bool:
        """Wait for the rings of the other nodes; True where enough came to be compared. A node that does not look at
        the same time is not compared: its old rings say nothing of now."""
        until = time.monotonic() + OTHERS_S
        place = self._folders.root / FOLDER
        while not self._ended.is_set():
            late = [agent for agent in others if not self._has_looked(place, agent, look)]
            if not late:
                return True
            if time.monotonic() > until:
                for agent in late:
                    remove_tree(place / "nodes" / agent.folder.name)
                return True
            self._ended.wait(0.5)
        return False

    def _has_looked(self, place: Path, agent: PeerAgent, look: Look) -> bool:
        at = peer_files.time_in(place, f"nodes/{agent.folder.name}/{LOOK}")
        return at is not None and abs(at - look.at) < APART_S

    def _diagnosed(self, place: Path) -> Verdict:
        if self._closed:
            return Verdict("", {}, "the command has ended")
        with DiagnosisProcess(place, page=False, gently=True) as process:
            self._comparing = process
            if self._closed:
                process.end()
            try:
                return process.verdict(keep=False)
            finally:
                self._comparing = None

    # ---- two looks ---------------------------------------------------------------------------------------------------

    def _weigh(self, look: Look, verdict: Verdict) -> None:
        key = verdict.key
        if verdict.value.get("outcome") != "desync":
            self._suspected = ()
        elif key in self._said:
            pass
        elif key == self._suspected:
            if look.launched - self._suspected_at < LEAST_BETWEEN:
                self._look_again()
                return
            self._said.add(key)
            headline = str(verdict.value.get("headline") or "")
            self._found = Trouble(Reason.DESYNC, f"the ranks have come apart: {headline}"), look
        else:
            self._suspected = key
            self._suspected_at = look.launched
            self._look_again()

    def _look_again(self) -> None:
        self._polling.looks.bring_forward(AGAIN_S)
        if self._shares:
            with contextlib.suppress(OSError):
                place = self._folders.root / FOLDER
                make_folder(place)
                write_below(place, AGAIN, as_bytes(as_json({"at": time.time() + AGAIN_S})), wary=True)

    def _heed_request(self) -> None:
        """Another node's agent, which compares all, asks for a look at a time by the clock."""
        at = peer_files.time_in(self._folders.root / FOLDER, AGAIN)
        if at is not None and at != self._asked_again and 0 < at - time.time() <= AGAIN_S:
            self._asked_again = at
            self._polling.looks.bring_forward(at - time.time())
