"""The PyTorch jobs of this node, by their processes: whoever started them, and with nothing prepared.

A process is a rank by its environment, or by the title of an engine's worker, once it has loaded torch. Ranks are one
job where they have one launcher. A process is looked at once, and again while it may still load torch.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from hangscope.processes import linux_process, process_roles, target_rights
from hangscope.recorder.launch import find_job
from hangscope.recorder.launch.rank_sockets import OWNER
from hangscope.recorder.live import find_ranks
from hangscope.recorder.rundir.job_identity import identify

LOADS_S = 900.0
"""So long a process that may become a rank is looked at again: the import of torch takes minutes on a slow disk."""
OFF = "HANGSCOPE"
_SWITCHED_OFF = ("off", "0", "no", "false")
_TORCH = "/libtorch_"
_MOST_MAPS = 16 << 20

Name = tuple[int, int]
"""A process for ever: its pid, and when it was started."""


@dataclass(frozen=True, slots=True)
class NodeJob:
    """`launcher` is the process above all its ranks. `unreadable`: why no rank's memory can be read, empty where it
    can."""

    launcher: Name
    ranks: tuple[Name, ...]
    user: int
    job: str
    directory: str
    """The working directory of its ranks."""
    contained: bool
    """It lives in a container: what it names is elsewhere."""
    unreadable: str = ""


@dataclass(slots=True)
class _Seen:
    """A process that was looked at. `until` (monotonic) it may still become a rank; `launcher` is known of a rank."""

    name: Name
    until: float = 0.0
    launcher: int | None = None


@dataclass(slots=True)
class NodeJobs:
    """`find` as often as one likes: it costs what is new."""

    users: frozenset[int] | None = None
    """Only jobs of these users; None for all."""
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _known: dict[tuple[Name, ...], NodeJob] = field(default_factory=dict)

    def find(self) -> list[NodeJob]:
        """The jobs that run now, and that nobody else watches."""
        now = time.monotonic()
        pids = set(linux_process.all_pids())
        for gone in self._seen.keys() - pids:
            del self._seen[gone]
        for pid in pids:
            self._look(pid, now)
        by_launcher: dict[int, list[Name]] = {}
        for seen in self._seen.values():
            if seen.launcher is not None and is_alive(seen.name):
                by_launcher.setdefault(seen.launcher, []).append(seen.name)
        known = self._known
        self._known = {}
        for launcher, ranks in sorted(by_launcher.items()):
            key = tuple(sorted(ranks))
            job = known.get(key) or _job(launcher, key)
            if job is not None:
                self._known[key] = job
        return list(self._known.values())

    def _look(self, pid: int, now: float) -> None:
        seen = self._seen.get(pid)
        if seen is not None and seen.launcher is None and now > seen.until:
            return  # no rank, and it will be none; a number that was given anew is seen as another once it has gone
        name = name_of(pid)
        if name is None:
            self._seen.pop(pid, None)
            return
        if seen is None or seen.name != name:
            seen = _Seen(name, now + LOADS_S if self._may_be_a_rank(pid) else 0.0)
            self._seen[pid] = seen
        if seen.until and seen.launcher is None and _has_torch(pid):
            seen.launcher = find_job.launcher_of(pid)

    def _may_be_a_rank(self, pid: int) -> bool:
        if pid == os.getpid() or (self.users is not None and target_rights.owner_of(pid) not in self.users):
            return False
        if process_roles.roles_of([pid]):
            return True
        environ = linux_process.environment(pid)
        return find_ranks.is_python(pid) and bool(find_ranks.rank_of(pid, environ))


def name_of(pid: int) -> Name | None:
    found = linux_process.stat(pid)
    return None if found is None or not found.alive else (pid, found.started_ticks)


def is_alive(name: Name) -> bool:
    return name_of(name[0]) == name


def _job(launcher: int, ranks: tuple[Name, ...]) -> NodeJob | None:
    """None where it has ended meanwhile, is watched by the agent of its own run, or is not to be watched."""
    top = name_of(launcher)
    pid = ranks[0][0]
    user = target_rights.owner_of(pid)
    environ = linux_process.environment(pid)
    if top is None or user is None or environ.get(OFF, "").lower() in _SWITCHED_OFF or is_watched(pid, environ):
        return None
    identity = identify({**environ, "HANGSCOPE_NODE": "-"})
    return NodeJob(
        launcher=top,
        ranks=ranks,
        user=user,
        job=f"of process {launcher}" if identity.made else identity.job,
        directory=_directory(pid),
        contained=target_rights.is_contained(pid),
        unreadable=_unreadable(pid),
    )


def is_watched(pid: int, environ: dict[str, str]) -> bool:
    """Whether the job was started by `hangscope run`, whose agent lives."""
    sockets = environ.get("HANGSCOPE_SOCKETS")
    if not sockets:
        return False
    try:
        written = target_rights.of(pid).read(Path(sockets) / OWNER, 20)
    except OSError:
        return False
    agent = linux_process.whole_number(written.decode(errors="replace").strip())
    return agent is not None and name_of(agent) is not None


def _directory(pid: int) -> str:
    try:
        return os.readlink(linux_process.PROC / str(pid) / "cwd")
    except OSError:
        return ""


def _has_torch(pid: int) -> bool:
    try:
        with open(linux_process.PROC / str(pid) / "maps", errors="replace") as stream:
            return _TORCH in stream.read(_MOST_MAPS)
    except OSError:
        return False


def _unreadable(pid: int) -> str:
    """Why the memory of a process cannot be read by us, empty where it can."""
    try:
        with open(linux_process.PROC / str(pid) / "mem", "rb", buffering=0):
            return ""
    except PermissionError as error:
        return error.strerror or str(error)
    except OSError:
        return ""  # it has ended meanwhile
