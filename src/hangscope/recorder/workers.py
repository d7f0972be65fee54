"""Which processes of this node are ranks: those that the companion registered, and others that only /proc shows."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hangscope.incident.touch import read_file
from hangscope.recorder import process, rights

_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that is, or may be, a rank. `rank` is None until it says which one it is."""

    pid: int
    rank: int | None
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    restart: int | None = None
    socket: str | None = None
    handlers: frozenset[str] = frozenset()
    torch: str = ""
    python: str = ""
    stack_signal: int | None = None
    stack_file: str | None = None
    stack_fd: int | None = None
    errors: tuple[str, ...] = ()
    registered: bool = False

    @property
    def asks_python(self) -> bool:
        """Its Python side tells the rank and the counters (torch 2.10 and newer)."""
        return "hangscope_progress" in self.handlers


@dataclass(slots=True)
class Registry:
    """Reads the registrations in `directory`, each once, and again only where its file changed."""

    directory: Path
    _seen: dict[str, tuple[int, Worker]] = field(default_factory=dict)

    def workers(self) -> list[Worker]:
        found: dict[str, tuple[int, Worker]] = {}
        try:
            entries = [entry for entry in os.scandir(self.directory) if entry.name.endswith(".json")]
        except OSError:
            return []
        for entry in entries:
            try:
                changed = entry.stat().st_mtime_ns
                known = self._seen.get(entry.name)
                if known is not None and known[0] == changed:
                    found[entry.name] = known
                elif (worker := _parse(read_file(entry.path, _MOST_BYTES, follow=False))) is not None:
                    # A registration speaks for processes of the user who wrote it, and for no other's.
                    writer = entry.stat(follow_symlinks=False).st_uid
                    if rights.owner_of(worker.pid) in (None, writer):
                        found[entry.name] = (changed, _own_socket(worker, writer))
            except OSError:
                continue
        self._seen = found
        return [worker for _, worker in found.values()]


def _own_socket(worker: Worker, writer: int) -> Worker:
    """The worker, without a socket that is not its user's own: asking another's could do harm with our rights."""
    try:
        found = os.lstat(worker.socket) if worker.socket is not None else None
    except OSError:
        return worker
    if found is not None and (not stat.S_ISSOCK(found.st_mode) or found.st_uid != writer):
        return replace(worker, socket=None, errors=(*worker.errors, "its socket belongs to somebody else"))
    return worker


def _parse(raw: bytes) -> Worker | None:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("pid"), int) or value["pid"] < 2:
        return None
    # A process that multiprocessing started inherits RANK from its parent: which rank it is, it must say itself.
    rank = None if value.get("spawned") else _number(value, "rank")
    return Worker(
        pid=value["pid"],
        rank=rank,
        local_rank=None if value.get("spawned") else _number(value, "local_rank"),
        world_size=_number(value, "world_size"),
        local_world_size=_number(value, "local_world_size"),
        restart=_number(value, "restart"),
        socket=value.get("socket") if isinstance(value.get("socket"), str) else None,
        handlers=frozenset(name for name in _listed(value, "handlers") if isinstance(name, str)),
        torch=str(value.get("torch") or ""),
        python=str(value.get("python") or ""),
        stack_signal=_number(value, "stack_signal"),
        stack_file=value.get("stack_file") if isinstance(value.get("stack_file"), str) else None,
        stack_fd=_number(value, "stack_fd"),
        errors=tuple(str(error)[:1000] for error in _listed(value, "errors")),
        registered=True,
    )


def _listed(value: dict[str, Any], name: str) -> list[Any]:
    member = value.get(name)
    return member[:1000] if isinstance(member, list) else []


def _number(value: dict[str, Any], name: str) -> int | None:
    member = value.get(name)
    return member if isinstance(member, int) and not isinstance(member, bool) else None


def below(pid: int) -> list[Worker]:
    """Ranks below `pid` (and itself) by their environment alone: for processes in which no companion runs.

    Wrapper scripts and data loader processes carry RANK too: of one rank's processes the topmost Python is taken.
    """
    best: dict[int, Worker] = {}
    for each, _ in [(pid, 0), *process.descendants(pid)]:
        environ = process.environment(each)
        rank = _variable(environ, "RANK")
        if rank is None or rank in best or not is_python(each):
            continue
        best[rank] = Worker(
            pid=each,
            rank=rank,
            local_rank=_variable(environ, "LOCAL_RANK"),
            world_size=_variable(environ, "WORLD_SIZE"),
            local_world_size=_variable(environ, "LOCAL_WORLD_SIZE"),
            restart=_variable(environ, "TORCHELASTIC_RESTART_COUNT"),
        )
    return [best[rank] for rank in sorted(best)]


def is_python(pid: int) -> bool:
    words = process.command_line(pid)
    return bool(words) and "python" in os.path.basename(words[0])


def _variable(environ: dict[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdigit() else None


def one_per_rank(workers: list[Worker]) -> list[Worker]:
    """Of several processes that claim one rank (its helpers inherit RANK), the one nearest to the launcher."""
    best: dict[int, tuple[int, Worker]] = {}
    for worker in workers:
        if worker.rank is None:
            continue
        depth = process.depth(worker.pid)
        if worker.rank not in best or depth < best[worker.rank][0]:
            best[worker.rank] = (depth, worker)
    return [worker for _, worker in best.values()]


def told(worker: Worker, rank: int | None, world_size: int | None) -> Worker:
    """The worker with what it said about itself over its socket."""
    if rank is None:
        return worker
    return replace(worker, rank=rank, world_size=world_size if world_size is not None else worker.world_size)
