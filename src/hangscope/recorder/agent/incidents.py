"""The incidents of one run, as this node's agent keeps them: capture, manifest, and verdict.

An incident is one hang. The first is kept in the run's own directory, a later one beside it; a second capture of the
same hang, when PyTorch's watchdog fires, adds to the first.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hangscope.errors import HangscopeError
from hangscope.incident import manifest
from hangscope.incident.layout import MANIFEST, VERDICT_JSON, VERDICT_PAGE, VERDICT_TEXT, as_bytes, as_json, file_entry
from hangscope.recorder.agent import on_hang
from hangscope.recorder.agent.diagnose_process import Verdict, draw
from hangscope.recorder.agent.never_seen import elsewhere, never_seen, still_starting
from hangscope.recorder.agent.on_hang import OnHang
from hangscope.recorder.capture import output_files
from hangscope.recorder.capture.capture_node import NodeCapture, NodeFacts
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.rundir import peer_files, run_directory
from hangscope.recorder.rundir.node_dir import NodeDir
from hangscope.safeio.safe_files import read_below, write_below

NODES_S = 12.0
VERDICT_S = 45.0
"""How long a node that does not diagnose itself waits for the verdict before it takes the evidence for safe."""
LIST_S = 20.0
"""For the checksums of what all nodes saved."""
QUIET = ("pause", "slow", "ok")
"""Outcomes that nothing needs to be done about."""
MAY_RECOVER = ("stall", "watchdog", "dump-file")
LAST_WORDS_S = 5.0
"""After a rank's end the job often ends too, and its last output says why: so long the diagnosis waits for it."""
SHARED_STORE = (
    "torchrun started these ranks anew, and its store still holds the addresses of those before: a start that sticks or"
    " fails in init_process_group is often theirs. TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 gives every start its own store"
)


class Incidents:
    """`ended` is set once the command has ended. `publish` brings this node's status file up to date, `spare` makes a
    directory for what the run's own takes no more, `paused_for` says for how long the job stood still, once it goes on.
    """

    def __init__(
        self,
        *,
        root: Path,
        folder: Path,
        node: NodeFacts,
        ended: threading.Event,
        publish: Callable[[], None],
        say: Callable[[str], None],
        diagnose: Callable[[Path], Verdict] | None,
        on_hang: OnHang | None = None,
        spare: Callable[[], Path] | None = None,
        paused_for: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._root = root
        self._folder = folder
        self._node = node
        self._ended = ended
        self._publish = publish
        self._say = say
        self._diagnose = diagnose
        self._output = folder
        self._on_hang = on_hang or OnHang()
        self._spare = spare
        self._paused_for = paused_for
        self._done: dict[Path, float] = {}
        self._paused: set[Path] = set()
        self._parted: set[Path] = set()
        """Incidents of which it was said that only this node's part is here."""
        self._hang = 1
        self._snapshot = 1
        self._taken: dict[Path, NodeCapture] = {}
        self._verdicts: dict[Path, Verdict] = {}
        self._working: threading.Thread | None = None
        self._correcting: threading.Thread | None = None
        self.log: list[dict[str, object]] = []
        """Every capture so far: incident, reason, detail and time."""

    @property
    def hang(self) -> Path:
        """Where the hang of now belongs."""
        return run_directory.incident(self._root, "hang", self._hang)

    @property
    def snapshot(self) -> Path:
        return run_directory.incident(self._root, "snapshot", self._snapshot)

    def next_hang(self) -> None:
        """Whatever stalls from now on is another incident."""
        if run_directory.marked(self.hang) is not None:
            self._hang += 1

    def next_attempt(self) -> Path | None:
        """The launcher has started the ranks anew. Where the logs belong from now on, None where they stay.

        What an earlier attempt printed would accuse ranks that are innocent this time.
        """
        before = self.hang
        self.next_hang()
        if self.hang == before:
            return None
        self._output = self.hang / "nodes" / self._folder.name
        return self._output / "logs"

    @property
    def working(self) -> bool:
        return self._working is not None and self._working.is_alive()

    def captured_twice(self, path: Path) -> bool:
        return sum(each["incident"] == str(path) for each in self.log) > 1

    def reason(self, path: Path) -> str | None:
        """Why `path` was captured, None where it was not."""
        taken = self._taken.get(path)
        return None if taken is None else taken.reason

    def home(self, path: Path) -> Path:
        """Where what was captured for `path` lies: there, or where it went when that took no more."""
        taken = self._taken.get(path)
        return path if taken is None else taken.node_dir.incident

    def safe(self, path: Path) -> bool:
        """Whether all that can be had of the hang is saved, and told where that is this node's to do."""
        done = self._done.get(path)
        if done is None or self.working:
            return False
        told = path in self._verdicts or (self.home(path) / VERDICT_JSON).exists()
        return told or self._diagnose is None or time.monotonic() > done + VERDICT_S

    def outcome(self, path: Path) -> str:
        """The verdict's first word, as this node or the one that diagnosed has it; empty where there is none."""
        verdict = self._verdicts.get(path)
        value = verdict.value if verdict is not None else peer_files.verdict(self.home(path), VERDICT_JSON)
        return str(value.get("outcome") or "")

    @property
    def pauses(self) -> int:
        return len(self._paused)

    @property
    def verdicts(self) -> Counter[tuple[str, str]]:
        """How many verdicts this node gave, by outcome and kind."""
        values = [verdict.value for verdict in self._verdicts.values()]
        return Counter((str(value.get("outcome") or ""), str(value.get("kind") or "")) for value in values)

    # ---- capturing ---------------------------------------------------------------------------------------------------

    def capture(self, path: Path, reason: str, detail: str, ranks: Sequence[WatchedRank]) -> None:
        """Capture on a thread of its own, and conclude there. The mark makes the other nodes capture too."""
        reason, detail = self._mark(path, reason, detail)
        before = self._taken.get(path)
        node_dir = (
            before.node_dir if before is not None else NodeDir(path, path / "nodes" / self._folder.name, self._spare)
        )
        taken = NodeCapture(node_dir, self._node, tuple(ranks), reason, detail, self._ended)
        if before is not None:
            taken.continue_from(before)
        self._taken[path] = taken
        self.log.append({"incident": str(path), "reason": reason, "detail": detail, "at": time.time()})
        self._say(f"{detail or reason}; saving what every rank is doing to {path}")
        if reason != "snapshot" and any(rank.may_find_the_dead for rank in ranks):
            self._say(SHARED_STORE)
        self._working = threading.Thread(target=self._work, args=(path, taken), name="capture", daemon=True)
        self._working.start()

    def _mark(self, path: Path, reason: str, detail: str) -> tuple[str, str]:
        """The reason and detail of whoever marked it first: all nodes give the same."""
        try:
            if path in self._taken or run_directory.mark(path, node=self._node.name, reason=reason, detail=detail):
                return reason, detail
        except OSError as error:
            self._say(f"{path}: {error.strerror or error}; the other nodes cannot be told")
            return reason, detail
        asked = run_directory.marked(path)
        return (asked.reason or reason, asked.detail or detail) if asked is not None else (reason, detail)

    def _work(self, path: Path, taken: NodeCapture) -> None:
        try:
            taken.take()
            self._copy_run_files(taken)
            if taken.reason == "rank-exit":
                self._ended.wait(LAST_WORDS_S)
            taken.complete()
            if path == self.snapshot:
                self._snapshot += 1
            if not self._ended.is_set():  # otherwise `finish` concludes, with all that is known then
                self._conclude(path, taken)
        except Exception as error:
            self._say(f"the capture is not complete: {type(error).__name__}: {error}")
        self._done[path] = time.monotonic()

    def _copy_run_files(self, taken: NodeCapture) -> None:
        """An incident beside the run's own directory gets a copy of the output and the counters so far."""
        wanted = [(self._output, file) for file in self._output.glob("logs/*.log")]
        wanted.append((self._folder, self._folder / "counters" / "start.json"))
        for place, source in wanted:
            if place == taken.node_dir.directory:
                continue
            name = source.relative_to(place).as_posix()
            with contextlib.suppress(OSError):
                taken.node_dir.write(name, read_below(place, name, output_files.MAX_BYTES, tail=True))

    def finish(self, ranks: Sequence[WatchedRank], failure: str | None) -> None:
        """The command has ended. `failure` says how, where that is worth an incident of its own."""
        for thread in (self._working, self._correcting):
            if thread is not None:
                thread.join(timeout=20)
        path = self.hang
        if path not in self._taken and failure is not None:
            self.capture(path, "rank-exit", failure, ranks)
            assert self._working is not None
            self._working.join(timeout=20)
        if path not in self._taken:
            self._forget_output()
        for each, taken in self._taken.items():
            taken.complete()
            if each in self._verdicts:
                self._refresh_manifest(taken.node_dir.incident)  # the output has grown since
            else:
                self._conclude(each, taken)

    def _forget_output(self) -> None:
        """An attempt that went well leaves no incident, so that the copy of its output has no reader."""
        if self._output != self._folder:
            shutil.rmtree(self._output, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._output.parent.rmdir()
                self._output.parent.parent.rmdir()

    # ---- concluding --------------------------------------------------------------------------------------------------

    def _conclude(self, path: Path, taken: NodeCapture) -> None:
        """Once every node has captured, or has had its time: the manifest, and the verdict where it is ours to give."""
        self._publish()
        agents, home = self._await_others(path), taken.node_dir.incident
        if taken.node_dir.moved:
            self._say(f"warning: {path}: {taken.node_dir.moved}; what this node saves goes to {home} instead")
            agents = [agent for agent in agents if agent.folder == self._folder]
        leader = run_directory.leader(agents)
        if leader is not None and leader != self._folder:
            return
        sees_all = run_directory.sees_all(agents)
        world_size = max((agent.world_size for agent in agents if agent.world_size), default=None)
        everywhere = {rank for agent in agents for rank in agent.ranks}
        missing = never_seen(taken.ranks, everywhere, world_size) if sees_all else {}
        given = manifest.Manifest(
            job=self._node.job,
            attempt=self._node.attempt,
            reason=taken.reason,
            detail=taken.detail,
            captured_at=taken.captured_at,
            nodes_expected=tuple(sorted({agent.node for agent in agents if agent.ranks})) if sees_all else None,
            world_size=world_size,
            extra=_of_the_start(self._node.name, never_seen=missing, elsewhere=elsewhere(agents)),
        )
        try:
            _write_manifest(home, manifest.build(home, given, seconds=LIST_S))
        except OSError as error:
            self._say(f"{home}: {error.strerror or error}; the incident has no manifest")
        if not sees_all and path in self._parted:
            return
        if not sees_all:
            self._parted.add(path)
            self._say(
                f"this node's part is in {home}; the directory does not hold every node of the job"
                f" ({len(everywhere)} of {world_size} ranks are here{still_starting(agents)}),"
                " so bring the parts together with `hangscope collect` and diagnose them then"
            )
            self._tell(home, None)
        elif self._diagnose is not None:
            self._give_verdict(path, home, self._diagnose)
        else:
            self._tell(home, None)

    def _await_others(self, path: Path) -> list[run_directory.PeerAgent]:
        until = time.monotonic() + NODES_S
        patience = time.monotonic() + LAST_WORDS_S
        while True:
            agents = run_directory.peers(self._root, self._folder)
            others = [agent for agent in agents if agent.fresh and agent.ranks and agent.folder != self._folder]
            captured = all(time.monotonic() < until and run_directory.captured(path, agent) for agent in others)
            # When our command has ended, so have the others' soon: their last words belong to the incident as well.
            over = not self._ended.is_set() or time.monotonic() > patience or all(agent.ended for agent in others)
            if (captured and over) or time.monotonic() > until:
                return agents
            time.sleep(0.2)

    def _give_verdict(self, path: Path, home: Path, diagnose: Callable[[Path], Verdict]) -> None:
        went_on = self._paused_for() if path == self.hang and self.reason(path) in MAY_RECOVER else None
        if went_on is not None:
            self._note_pause(path, went_on)
        verdict = diagnose(home)
        before = self._verdicts.get(path)
        if not verdict.value:
            self._say(f"no verdict on {home}: {verdict.problem}")
            self._tell(home, None)
            return
        self._verdicts[path] = verdict
        self._list(home, VERDICT_JSON, VERDICT_TEXT)
        new = before is None or before.key != verdict.key
        if went_on is not None:
            what = verdict.value.get("headline") or verdict.value.get("summary")
            self._say(f"PAUSE, not a hang: {what}; what was saved is in {home}")
        elif new:
            self._say(f"the verdict on {home}:\n{verdict.text.rstrip()}")
            self._tell(home, verdict)
        page = draw(home)
        self._list(home, VERDICT_PAGE)
        if new and went_on is None and page is not None:
            self._say(f"the same to look at: {page}")

    def _tell(self, home: Path, verdict: Verdict | None) -> None:
        """The user's commands, one after the other, unless there is nothing to do about it."""
        value = verdict.value if verdict is not None else {}
        if value.get("outcome") in QUIET or not self._on_hang.commands:
            return
        file = home / VERDICT_JSON if verdict is not None and (home / VERDICT_JSON).exists() else None
        for command in self._on_hang.commands:
            problem = on_hang.tell(command, home, file, value)
            if problem:
                self._say(f"warning: --on-hang {command!r}: {problem}")

    # ---- a job that goes on ------------------------------------------------------------------------------------------

    def recovered(self, path: Path, seconds: float) -> None:
        """The stall of `path` ended by itself: it was a pause, and what was written about it says so from now on."""
        if path in self._paused:
            return
        self._note_pause(path, seconds)
        self._say(f"the job goes on after {seconds:.0f} s: PAUSE, not a hang; what was saved is in {self.home(path)}")
        if path in self._verdicts and self._diagnose is not None:
            # Beside the watch: what stalls next must be noticed meanwhile.
            self._correcting = threading.Thread(target=self._correct, args=(path, self._diagnose), daemon=True)
            self._correcting.start()

    def _note_pause(self, path: Path, seconds: float) -> None:
        self._paused.add(path)
        with contextlib.suppress(OSError, HangscopeError):
            listed = manifest.read(self.home(path))
            if listed is not None:
                extra = {**listed.extra, "recovered": {"at": manifest.now(), "after_s": round(seconds, 1)}}
                _write_manifest(self.home(path), replace(listed, extra=extra))

    def _correct(self, path: Path, diagnose: Callable[[Path], Verdict]) -> None:
        try:
            verdict = diagnose(self.home(path))
            if verdict.value:
                self._verdicts[path] = verdict
                draw(self.home(path))
                self._list(self.home(path), VERDICT_JSON, VERDICT_TEXT, VERDICT_PAGE)
        except Exception as error:
            self._say(f"the verdict on {self.home(path)} was not corrected: {type(error).__name__}: {error}")

    def _list(self, path: Path, *names: str) -> None:
        """Name files of ours in the manifest, where there is one."""
        with contextlib.suppress(OSError, HangscopeError):
            listed = manifest.read(path)
            if listed is not None:
                files = {name: file_entry(path / name) for name in names if (path / name).exists()}
                _write_manifest(path, replace(listed, files={**listed.files, **files}))

    def _refresh_manifest(self, path: Path) -> None:
        with contextlib.suppress(OSError, HangscopeError):
            listed = manifest.read(path)
            if listed is not None:
                _write_manifest(path, manifest.build(path, listed, seconds=LIST_S))


def _of_the_start(by: str, **found: Mapping[str, Any]) -> dict[str, Any]:
    """What this node has to say of ranks that did not come together, for the manifest."""
    return {name: {**said, "by": by} for name, said in found.items() if said}


def _write_manifest(home: Path, given: manifest.Manifest) -> None:
    write_below(home, MANIFEST, as_bytes(as_json(given.to_json())), wary=True)
