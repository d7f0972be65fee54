"""Which processes of this node are ranks: those that the companion registered, and others that only /proc shows."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from hangscope.engine_roles import numbers
from hangscope.processes import linux_process, process_roles, target_rights
from hangscope.safeio import bounded_json
from hangscope.safeio.safe_files import Refused, open_file

_MOST_BYTES = 1 << 20
_MOST_REGISTRATIONS = 4096
MOST = 1 << 22
"""Ranks that a job may have: a number beyond it is none."""


@dataclass(frozen=True, slots=True)
class RankProcess:
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
    by_box: bool = False
    """Known by its black box alone: it calls NCCL, and nothing of torch.distributed runs in it."""

    @property
    def asks_python(self) -> bool:
        """Its Python side tells the rank and the counters (torch 2.10 and newer)."""
        return "hangscope_progress" in self.handlers


@dataclass(slots=True)
class Registry:
    """Reads the registrations in `directory`, each once, and again only where its file changed."""

    directory: Path
    _seen: dict[str, tuple[int, RankProcess]] = field(default_factory=dict)

    def processes(self) -> list[RankProcess]:
        found: dict[str, tuple[int, RankProcess]] = {}
        try:
            with os.scandir(self.directory) as listing:
                named = (entry for entry in listing if entry.name.endswith(".json"))
                entries = list(islice(named, _MOST_REGISTRATIONS))
        except OSError:
            return []
        for entry in entries:
            try:
                changed = entry.stat(follow_symlinks=False).st_mtime_ns
                known = self._seen.get(entry.name)
                if known is not None and known[0] == changed:
                    found[entry.name] = known
                    continue
                raw, writer = _written(entry.path)
                # A registration speaks for processes of the user who wrote it, and for no other's.
                if (process := _parse(raw)) is not None and target_rights.owner_of(process.pid) in (None, writer):
                    found[entry.name] = (changed, _own_socket(process, writer))
            except OSError:
                continue
        self._seen = found
        return [process for _, process in found.values()]


def _written(path: str) -> tuple[bytes, int]:
    """What a file holds and who owns it, of one and the same file: a name may be given to another one meanwhile."""
    with open_file(path, follow=False) as stream:
        raw = stream.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise Refused(f"more than {_MOST_BYTES} bytes", path)
        return raw, os.fstat(stream.fileno()).st_uid


def _own_socket(process: RankProcess, writer: int) -> RankProcess:
    """The process, without a socket that is not its user's own: asking another's could do harm with our rights."""
    try:
        found = os.lstat(process.socket) if process.socket is not None else None
    except OSError:
        return process
    if found is not None and (not stat.S_ISSOCK(found.st_mode) or found.st_uid != writer):
        return replace(process, socket=None, errors=(*process.errors, "its socket belongs to another user"))
    return process


def _parse(raw: bytes) -> RankProcess | None:
    try:
        value = bounded_json.loads(raw)
    except ValueError:
        return None
    pid = _number(value, "pid", 1 << 30) if isinstance(value, dict) else None
    if pid is None or pid < 2:
        return None
    # A process that multiprocessing started inherits RANK from its parent: which rank it is, it must say itself.
    rank = None if value.get("spawned") else _number(value, "rank")
    return RankProcess(
        pid=pid,
        rank=rank,
        local_rank=None if value.get("spawned") else _number(value, "local_rank"),
        world_size=_number(value, "world_size"),
        local_world_size=_number(value, "local_world_size"),
        restart=_number(value, "restart"),
        socket=_path(value, "socket"),
        handlers=frozenset(name for name in _listed(value, "handlers") if isinstance(name, str)),
        torch=str(value.get("torch") or "")[:200],
        python=str(value.get("python") or "")[:200],
        stack_signal=_number(value, "stack_signal", 64),
        stack_file=_path(value, "stack_file"),
        stack_fd=_number(value, "stack_fd"),
        errors=tuple(str(error)[:1000] for error in _listed(value, "errors")),
        registered=True,
    )


def _listed(value: dict[str, Any], name: str) -> list[Any]:
    member = value.get(name)
    return member[:1000] if isinstance(member, list) else []


def _path(value: dict[str, Any], name: str) -> str | None:
    member = value.get(name)
    return member if isinstance(member, str) and member and "\0" not in member and len(member) < 4096 else None


def _number(value: dict[str, Any], name: str, most: int = MOST) -> int | None:
    member = value.get(name)
    return member if isinstance(member, int) and not isinstance(member, bool) and 0 <= member <= most else None


def ranks_below(pid: int, beside: int | None = None) -> list[RankProcess]:
    """Ranks below `pid` (and itself) by their environment alone: for processes in which no companion runs.

    Wrapper scripts and data loader processes carry RANK too: of one rank's processes the topmost Python is taken.
    `beside`: only those of the job that this rank is of. One shell may start several jobs, and each has a rank 0.
    """
    best: dict[int, RankProcess] = {}
    meets = meeting_point(linux_process.environment(beside)) if beside is not None else ""
    for each, _ in [(pid, 0), *linux_process.descendants(pid)]:
        environ = linux_process.environment(each)
        rank = _variable(environ, "RANK")
        if rank is None or rank in best or not is_python(each):
            continue
        if meets and meeting_point(environ) not in ("", meets):
            continue
        best[rank] = RankProcess(
            pid=each,
            rank=rank,
            local_rank=_variable(environ, "LOCAL_RANK"),
            world_size=_variable(environ, "WORLD_SIZE"),
            local_world_size=_variable(environ, "LOCAL_WORLD_SIZE"),
            restart=_variable(environ, "TORCHELASTIC_RESTART_COUNT"),
        )
    return [best[rank] for rank in sorted(best)]


def meeting_point(environ: dict[str, str]) -> str:
    """Where a rank meets the others of its job; empty where its environment does not say."""
    return " ".join(environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")).strip()


def ranks_by_title(pid: int) -> list[RankProcess]:
    """The workers of an engine below `pid`, and itself: ranks by the numbers in their titles, where these tell them
    apart."""
    found = numbers(process_roles.workers(process_roles.roles_below(pid)))
    ranks = [RankProcess(pid=each, rank=number) for each, number in found.items() if number <= MOST]
    return sorted(ranks, key=lambda process: process.rank or 0)


def ranks_of_slurm_job(job: str, but_step: str) -> list[RankProcess]:
    """This node's ranks of a Slurm job, by their environment, except the step `but_step`, which may be our own.

    A task is a rank by RANK, else by SLURM_PROCID where there are more tasks than nodes.
    """
    found = []
    for pid in linux_process.all_pids():
        environ = linux_process.environment(pid)
        if _is_of_slurm_job(environ, job) and environ.get("SLURM_STEP_ID") != but_step and is_python(pid):
            found += rank_of(pid, environ)
    return sorted(one_per_rank(found), key=lambda process: process.rank or 0)


def tasks_below(pid: int) -> list[RankProcess]:
    """The tasks of Slurm below `pid`, and itself, where each is a rank: more tasks than nodes, and no RANK."""
    below = [pid, *(each for each, _ in linux_process.descendants(pid))]
    found = [process for each in below if is_python(each) for process in rank_of(each, linux_process.environment(each))]
    return sorted(one_per_rank(found), key=lambda process: process.rank or 0)


def rank_of(pid: int, environ: dict[str, str]) -> list[RankProcess]:
    """The rank that a process is by RANK, else by Slurm's number of its task; empty where it is none."""
    rank = _variable(environ, "RANK")
    by_slurm = rank is None and _one_task_a_rank(environ)
    if by_slurm:
        rank = _variable(environ, "SLURM_PROCID")
    if rank is None:
        return []
    return [
        RankProcess(
            pid=pid,
            rank=rank,
            local_rank=_variable(environ, "SLURM_LOCALID" if by_slurm else "LOCAL_RANK"),
            world_size=_variable(environ, "SLURM_STEP_NUM_TASKS" if by_slurm else "WORLD_SIZE"),
            local_world_size=_variable(environ, "LOCAL_WORLD_SIZE"),
            restart=_variable(environ, "TORCHELASTIC_RESTART_COUNT"),
        )
    ]


def _is_of_slurm_job(environ: dict[str, str], job: str) -> bool:
    """Whether a process belongs to a job. In a heterogeneous one all carry the first part's number, and list all."""
    numbers = (value for name, value in environ.items() if name.startswith("SLURM_JOB_ID"))
    return job in numbers


def _one_task_a_rank(environ: dict[str, str]) -> bool:
    tasks, nodes = (_variable(environ, f"SLURM_STEP_NUM_{what}") for what in ("TASKS", "NODES"))
    return tasks is not None and nodes is not None and tasks > nodes


def is_python(pid: int) -> bool:
    """By its command line; by what it runs, where it has set a title."""
    words = linux_process.command_line(pid)
    return bool(words) and "python" in os.path.basename(words[0] if ":" not in words[0] else linux_process.program(pid))


def _variable(environ: dict[str, str], name: str) -> int | None:
    return linux_process.whole_number(environ.get(name, ""), MOST)


def one_per_rank(processes: list[RankProcess]) -> list[RankProcess]:
    """Of several processes that claim one rank (its helpers inherit RANK), the one nearest to the launcher."""
    best: dict[int, tuple[int, RankProcess]] = {}
    for process in processes:
        if process.rank is None:
            continue
        depth = linux_process.depth(process.pid)
        if process.rank not in best or depth < best[process.rank][0]:
            best[process.rank] = (depth, process)
    return [process for _, process in best.values()]


def with_own_answer(process: RankProcess, answer: dict[str, Any]) -> RankProcess:
    """The process with what it said about itself over its socket."""
    rank = _number(answer, "rank")
    if rank is None:
        return process
    world_size = _number(answer, "world_size")
    return replace(process, rank=rank, world_size=world_size if world_size is not None else process.world_size)
