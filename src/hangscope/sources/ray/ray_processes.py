"""Which processes of this node belong to a Ray job: the raylet's workers, and the drivers that the cluster knows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from hangscope.processes import linux_process
from hangscope.sources.ray.process_memory import current_environment

MOST = 512
IDLE = "ray::IDLE"
_NOT_WORKERS = ("Agent", "ray::IDLE_SpillWorker", "ray::IDLE_RestoreWorker", "ray::SpillWorker", "ray::RestoreWorker")
_KEPT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RAY_JOB_ID")


@dataclass(frozen=True, slots=True)
class RayProcess:
    """A worker or a driver; `environ` are the variables that say which rank it is, as they are now."""

    pid: int
    kind: str
    title: str
    environ: dict[str, str]

    @property
    def idle(self) -> bool:
        return self.title.startswith(IDLE)

    def row(self) -> dict[str, Any]:
        return {"pid": self.pid, "kind": self.kind, "title": self.title, "environ": self.environ}


def find(raylet: int, drivers: Collection[int], without: Collection[int]) -> list[RayProcess]:
    """The workers below a raylet and the drivers that run here, except `without`: our own."""
    found = []
    for pid in linux_process.children(raylet):
        title = (linux_process.command_line(pid) or [""])[0][:300]
        if pid not in without and title.startswith("ray::") and not title.endswith(_NOT_WORKERS):
            found.append(RayProcess(pid, "worker", title, _environ(pid)))
    for pid in drivers:
        words = linux_process.command_line(pid)
        if words and pid not in without:
            found.append(RayProcess(pid, "driver", " ".join(words)[:300], _environ(pid)))
    return found[:MOST]


def _environ(pid: int) -> dict[str, str]:
    begun_with = linux_process.environment(pid)
    now = current_environment(pid) or begun_with
    return {name: now[name][:200] for name in _KEPT if name in now}
