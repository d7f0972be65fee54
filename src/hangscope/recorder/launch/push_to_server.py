"""`run --server`: the job's roster at its start, its end, and each incident, sent by processes of their own.

Here nothing waits for the network: rosters and ends are written into the spool on this node's disk, incidents are
bundled and spooled by `hangscope push`, and that sends what it can. Where the server does not answer, all of it stays
there, and the next push of this user on this node sends it.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hangscope.__about__ import __version__
from hangscope.processes.isolated_python import clean_environment, hangscope_command
from hangscope.push.spool import END, ROSTER, Spool
from hangscope.recorder.capture.node_facts import NodeFacts

LOOK_S = 2.0
ROSTER_S = 30.0
"""So long the first rank is waited for that has not all its neighbours yet, and the list of GPUs."""
LAST_S = 10.0
"""After the command has ended: what is being sent has so long, then it is left to itself."""
GIT_S = 5.0
MOST_SAID = 20
"""Addresses of incidents that one push says: what waited on this node for long may be many."""
_IMAGES = ("HANGSCOPE_IMAGE", "SLURM_CONTAINER", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "CONTAINER_IMAGE")
Ranks = Callable[[], tuple[list[int], int | None]]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where to, and by whose token; `spool` is where it waits."""

    url: str
    spool: Path
    token_file: Path | None = None


@dataclass(slots=True)
class ServerPush:
    """Sends what belongs to one run. Nothing in here raises, and nothing waits but on threads of its own."""

    options: ServerOptions
    node: NodeFacts
    environ: Mapping[str, str]
    say: Callable[[str], None]
    _ended: threading.Event = field(default_factory=threading.Event)
    _roster: threading.Thread | None = None
    _pushes: list[threading.Thread] = field(default_factory=list)
    _complained: bool = False

    def start(self, ranks: Ranks) -> None:
        """The command has started: `ranks` says which of its ranks are seen here."""
        self._roster = threading.Thread(target=self._send_roster, args=(ranks,), name="roster", daemon=True)
        self._roster.start()

    def incident(self, incident: Path) -> None:
        """All that is to be written about an incident is there."""
        self._push(str(incident), "--source", self.node.name)

    def finish(self, status: int | None, *, ended: bool = True) -> None:
        """The command has ended, where `ended`: its end goes out, and what is being sent has a few seconds."""
        until = time.monotonic() + LAST_S
        self._ended.set()
        if self._roster is not None:
            self._roster.join(max(0.0, until - time.monotonic()))
        if ended:
            known = {} if status is None else {"exit_status": status & 0xFFFF}
            self._spool(END, {**self._job(), **known, "ended_at": time.time()})
        self._push()
        for push in list(self._pushes):
            push.join(max(0.0, until - time.monotonic()))

    def _job(self) -> dict[str, Any]:
        cluster = self.environ.get("HANGSCOPE_CLUSTER") or self.environ.get("SLURM_CLUSTER_NAME") or ""
        return {"cluster": cluster, "job": self.node.job, "attempt": self.node.attempt}

    def _send_roster(self, ranks: Ranks) -> None:
        until = time.monotonic() + ROSTER_S
        seen: list[int] = []
        world_size = None
        while not self._ended.wait(LOOK_S):
            try:
                before = seen
                seen, world_size = ranks()
            except RuntimeError:  # the list changed while we read it
                continue
            is_complete = bool(seen) and seen == before and bool(self.node.gpus or self.node.nics)
            if is_complete or (seen and time.monotonic() > until):
                break
        if not seen:
            return
        self._spool(ROSTER, self._described(seen, world_size))
        self._push()

    def _described(self, ranks: list[int], world_size: int | None) -> dict[str, Any]:
        gpus = [{name: gpu.get(name) for name in ("uuid", "pci")} for gpu in self.node.gpus]
        nics = [{"name": nic.get("name") or nic.get("device")} for nic in self.node.nics]
        here: dict[str, Any] = {"node": self.node.name, "ranks": ranks, "gpus": gpus, "nics": nics}
        leaf = self.environ.get("HANGSCOPE_LEAF") or _leaf(self.environ.get("SLURM_TOPOLOGY_ADDR", ""))
        versions = {"hangscope": __version__, "driver": self.node.driver or ""}
        return {
            **self._job(),
            "world_size": world_size,
            "started_at": self.node.started_at,
            "image": next((self.environ[name] for name in _IMAGES if self.environ.get(name)), ""),
            "commit": self.environ.get("HANGSCOPE_COMMIT") or _commit(),
            "versions": {name: version for name, version in versions.items() if version},
            "nodes": [{**here, "leaf": leaf} if leaf else here],
        }

    def _spool(self, kind: str, value: dict[str, Any]) -> None:
        try:
            Spool(self.options.spool).add(kind, value, server=self.options.url.rstrip("/"))
        except OSError as error:
            self._complain(f"{self.options.spool}: {error.strerror or error}")

    def _push(self, *words: str) -> None:
        thread = threading.Thread(target=self._run, args=(words,), name="push", daemon=True)
        thread.start()
        self._pushes.append(thread)

    def _run(self, words: tuple[str, ...]) -> None:
        """`hangscope push`, which outlives us where it must: whatever it has in its spool is safe."""
        token = () if self.options.token_file is None else ("--token-file", str(self.options.token_file))
        place = ("--server", self.options.url, "--spool", str(self.options.spool))
        cluster = ("--cluster", self._job()["cluster"])
        try:
            pushed = subprocess.Popen(
                hangscope_command("push", *place, *cluster, *token, *words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=clean_environment(os.environ),
                start_new_session=True,
            )
            addresses, said = pushed.communicate()
        except OSError as error:
            self._complain(error.strerror or str(error))
            return
        for address in addresses.decode(errors="replace").split()[:MOST_SAID]:
            self.say(f"on the server: {address}")
        if pushed.returncode != 0:
            lines = said.decode(errors="replace").strip().splitlines()
            self._complain(lines[-1] if lines else f"status {pushed.returncode}")

    def _complain(self, problem: str) -> None:
        """Said once: a server that is away may be away for the whole run."""
        if not self._complained:
            self._complained = True
            self.say(f"warning: --server {self.options.url}: {problem}; the training continues")


def _leaf(address: str) -> str:
    """The switch next to the node, of Slurm's ``core.leaf.node``."""
    parts = address.split(".")
    return parts[-2] if len(parts) > 2 else ""


def _commit() -> str:
    """The commit of the code in the working directory, where git knows one."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--verify", "HEAD"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_S,
            text=True,
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return found.stdout.strip()[:64] if found.returncode == 0 else ""
