"""The incidents of one run, as this node's agent keeps them: capture, manifest, and verdict.

An incident is one hang. The first is kept in the run's own directory, a later one beside it; a second capture of the
same hang, when PyTorch's watchdog fires, adds to the first.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hangscope.incident import manifest
from hangscope.incident.layout import VERDICT_JSON, VERDICT_PAGE, VERDICT_TEXT, file_entry
from hangscope.recorder import shared
from hangscope.recorder.capture import logs
from hangscope.recorder.evidence import Capture, Node
from hangscope.recorder.part import Part
from hangscope.recorder.ranks import Rank
from hangscope.recorder.verdict import Verdict, draw

NODES_S = 12.0
LAST_WORDS_S = 5.0
"""After a rank's end the job often ends too, and its last output says why: so long the diagnosis waits for it."""


class Incidents:
    """`ended` is set once the command has ended. `publish` brings this node's status file up to date."""

    def __init__(
        self,
        *,
        root: Path,
        folder: Path,
        node: Node,
        ended: threading.Event,
        publish: Callable[[], None],
        say: Callable[[str], None],
        diagnose: Callable[[Path], Verdict] | None,
    ) -> None:
        self._root = root
        self._folder = folder
        self._node = node
        self._ended = ended
        self._publish = publish
        self._say = say
        self._diagnose = diagnose
        self._output = folder
        self._hang = 1
        self._snapshot = 1
        self._taken: dict[Path, Capture] = {}
        self._verdicts: dict[Path, Verdict] = {}
        self._working: threading.Thread | None = None
        self.log: list[dict[str, object]] = []
        """Every capture so far: incident, reason, detail and time."""

    @property
    def hang(self) -> Path:
        """Where the hang of now belongs."""
        return shared.incident(self._root, "hang", self._hang)

    @property
    def snapshot(self) -> Path:
        return shared.incident(self._root, "snapshot", self._snapshot)

    def next_hang(self) -> None:
        """Whatever stalls from now on is another incident."""
        if shared.marked(self.hang) is not None:
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

    # ---- capturing ---------------------------------------------------------------------------------------------------

    def capture(self, path: Path, reason: str, detail: str, ranks: Sequence[Rank]) -> None:
        """Capture on a thread of its own, and conclude there. The mark makes the other nodes capture too."""
        reason, detail = self._mark(path, reason, detail)
        before = self._taken.get(path)
        part = before.part if before is not None else Part(path, path / "nodes" / self._folder.name)
        taken = Capture(part, self._node, tuple(ranks), reason, detail, self._ended)
        if before is not None:
            taken.goes_on(before)
        self._taken[path] = taken
        self.log.append({"incident": str(path), "reason": reason, "detail": detail, "at": time.time()})
        self._say(f"{detail or reason}; saving what every rank is doing to {path}")
        self._working = threading.Thread(target=self._work, args=(path, taken), name="capture", daemon=True)
        self._working.start()

    def _mark(self, path: Path, reason: str, detail: str) -> tuple[str, str]:
        """The reason and detail of whoever marked it first: all nodes give the same."""
        try:
            if path in self._taken or shared.mark(path, node=self._node.name, reason=reason, detail=detail):
                return reason, detail
        except OSError as error:
            self._say(f"{path}: {error.strerror or error}; the other nodes cannot be told")
            return reason, detail
        asked = shared.marked(path)
        return (asked.reason or reason, asked.detail or detail) if asked is not None else (reason, detail)

    def _work(self, path: Path, taken: Capture) -> None:
        try:
            taken.take()
            self._copy_run_files(path)
            if taken.reason == "rank-exit":
                self._ended.wait(LAST_WORDS_S)
            taken.complete()
            if path == self.snapshot:
                self._snapshot += 1
            if not self._ended.is_set():  # otherwise `finish` concludes, with all that is known then
                self._conclude(path, taken)
        except Exception as error:
            self._say(f"the capture is not complete: {type(error).__name__}: {error}")

    def _copy_run_files(self, path: Path) -> None:
        """An incident beside the run's own directory gets a copy of the output and the counters so far."""
        part = Part(path, path / "nodes" / self._folder.name)
        wanted = [(self._output, file) for file in self._output.glob("logs/*.log")]
        wanted.append((self._folder, self._folder / "counters" / "start.json"))
        for place, source in wanted:
            if place == part.directory:
                continue
            with contextlib.suppress(OSError), source.open("rb") as stream:
                stream.seek(max(0, source.stat().st_size - logs.MAX_BYTES))
                part.write(str(source.relative_to(place)), stream.read(logs.MAX_BYTES))

    def finish(self, ranks: Sequence[Rank], failure: str | None) -> None:
        """The command has ended. `failure` says how, where that is worth an incident of its own."""
        if self._working is not None:
            self._working.join(timeout=20)
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
                self._refresh_manifest(each)  # the output has grown since
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

    def _conclude(self, path: Path, taken: Capture) -> None:
        """Once every node has captured, or has had its time: the manifest, and the verdict where it is ours to give."""
        self._publish()
        agents = self._await_others(path)
        leader = shared.leader(agents)
        if leader is not None and leader != self._folder:
            return
        sees_all = shared.sees_all(agents)
        given = manifest.Manifest(
            job=self._node.job,
            attempt=self._node.attempt,
            reason=taken.reason,
            detail=taken.detail,
            captured_at=taken.captured_at,
            nodes_expected=tuple(sorted({agent.node for agent in agents if agent.ranks})) if sees_all else None,
            world_size=max((agent.world_size for agent in agents if agent.world_size), default=None),
        )
        manifest.write(path, manifest.build(path, given))
        if not sees_all:
            self._say(
                f"this node's part is in {path}; the directory does not hold every node of the job,"
                " so bring the parts together with `hangscope collect` and diagnose them then"
            )
        elif self._diagnose is not None:
            self._give_verdict(path, self._diagnose)

    def _await_others(self, path: Path) -> list[shared.Neighbour]:
        until = time.monotonic() + NODES_S
        patience = time.monotonic() + LAST_WORDS_S
        while True:
            agents = shared.neighbours(self._root, self._folder)
            others = [agent for agent in agents if agent.fresh and agent.ranks and agent.folder != self._folder]
            captured = all(shared.captured(path, agent) for agent in others)
            # When our command has ended, so have the others' soon: their last words belong to the incident as well.
            over = not self._ended.is_set() or time.monotonic() > patience or all(agent.ended for agent in others)
            if (captured and over) or time.monotonic() > until:
                return agents
            time.sleep(0.2)

    def _give_verdict(self, path: Path, diagnose: Callable[[Path], Verdict]) -> None:
        verdict = diagnose(path)
        before = self._verdicts.get(path)
        if not verdict.value:
            self._say(f"no verdict on {path}: {verdict.problem}")
            return
        self._verdicts[path] = verdict
        self._list(path, VERDICT_JSON, VERDICT_TEXT)
        new = before is None or before.key != verdict.key
        if new:
            self._say(f"the verdict on {path}:\n{verdict.text.rstrip()}")
        page = draw(path)
        self._list(path, VERDICT_PAGE)
        if new and page is not None:
            self._say(f"the same to look at: {page}")

    def _list(self, path: Path, *names: str) -> None:
        """Name files of ours in the manifest, where there is one."""
        listed = manifest.read(path)
        if listed is not None:
            files = {name: file_entry(path / name) for name in names if (path / name).exists()}
            manifest.write(path, replace(listed, files={**listed.files, **files}))

    def _refresh_manifest(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            listed = manifest.read(path)
            if listed is not None:
                manifest.write(path, manifest.build(path, listed))
