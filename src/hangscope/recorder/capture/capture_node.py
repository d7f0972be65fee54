"""One capture on this node: every source, the most perishable first, each with its own deadline, all ranks at once."""

from __future__ import annotations

import json
import platform
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hangscope.__about__ import __version__
from hangscope.incident.layout import NODE_FILE, NODE_SCHEMA
from hangscope.recorder.capture import (
    blackbox_copies,
    flight_recorder,
    kernel_messages,
    nvidia_smi,
    output_files,
    python_stacks,
    ras_question,
    sys_counters,
)
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.live.worker_server import ask
from hangscope.recorder.process import linux_process
from hangscope.recorder.process.target_rights import NOBODY, Rights
from hangscope.recorder.rundir.node_dir import NodeDir
from hangscope.recorder.setup.blackbox_library import FOLDER
from hangscope.safeio import bounded_json

BETWEEN_SAMPLES_S = 2.0
DEADLINE_S = 14.0
LAST_WORDS_S = 5.0
_DUMPS = (("nccl", "pickle"), ("gloo", "json"), ("nccl2", "json"))
_PREFIXES = ("TORCH_", "NCCL_", "GLOO_", "PYTORCH_", "CUDA_", "TORCHELASTIC_", "MASTER_", "HANGSCOPE_")


@dataclass(slots=True)
class NodeFacts:
    """What does not change while the job runs, looked up once."""

    name: str
    job: str
    attempt: str
    started_at: float
    gpus: list[dict[str, Any]] = field(default_factory=list)
    driver: str | None = None
    nics: list[dict[str, Any]] = field(default_factory=list)
    boxes: Path | None = None
    """Where the ranks' black boxes lie."""
    attempt_at: float = 0.0
    earlier: frozenset[int] = frozenset()
    """When the launcher began the current attempt, and the processes of those before: what they left is not of it."""

    def begin_attempt(self, earlier: Iterable[int]) -> None:
        self.attempt_at, self.earlier = time.time(), frozenset(earlier)

    def look_up(self) -> None:
        self.gpus, self.driver = nvidia_smi.inventory()
        self.nics = sys_counters.ports()


@dataclass(slots=True)
class NodeCapture:
    """`ended` turns true when the command has: nothing is left then that could answer."""

    node_dir: NodeDir
    node: NodeFacts
    ranks: Sequence[WatchedRank]
    reason: str
    detail: str
    ended: threading.Event
    captured_at: str = field(default_factory=lambda: _iso(time.time()))
    _begun_at: float = field(default_factory=time.time)
    _settings: dict[str, str] = field(default_factory=dict)
    _rights: Rights = NOBODY
    """Those of the rank whose settings these are: what they name is opened with them."""
    _rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    _usage: dict[str, dict[str, float | None]] = field(default_factory=dict)
    _complete: bool = False

    def continue_from(self, before: NodeCapture) -> None:
        """This is another capture of the same hang: what the first one saw of a process stays."""
        self.reason, self.detail, self.captured_at = before.reason, before.detail, before.captured_at
        self._begun_at, self._settings, self._rows = before._begun_at, before._settings, before._rows
        self._usage, self._rights = before._usage, before._rights

    def take(self) -> None:
        """Everything, in at most DEADLINE_S. A source that does not come back in time is a gap."""
        begun = time.monotonic()
        number = python_stacks.next_number(self.node_dir)
        alive = [rank for rank in self.ranks if not rank.ended]
        # Threads that hang in a source must not keep us: the pool is left behind, its threads are daemons of this run.
        pool = _Pool(max(8, 3 * len(self.ranks) + 6))
        first = [pool.start(f"rank {rank.number}", self._rank, rank, number) for rank in alive]
        environ = self._environ(alive)
        rest = [
            pool.start("network counters", self._counters),
            pool.start("GPU state", self._gpu),
            pool.start("kernel messages", self._kernel),
            pool.start("RAS", self._ras, 1, environ),
            pool.start("files", self._files, environ),
            pool.start("black boxes", self._boxes, environ),
        ]
        self._last_answers()
        self._wait(first, begun + 5.0, report=False)
        self.write_node(environ)
        second = [pool.start(f"rank {rank.number}", self._again, rank, number + 1) for rank in alive]
        second.append(pool.start("RAS", self._ras, 2, environ))
        self._wait([*first, *rest, *second], begun + DEADLINE_S, report=True)
        self.write_node(environ)

    def _wait(self, jobs: Iterable[Future[None]], until: float, *, report: bool) -> None:
        done, late = wait(list(jobs), timeout=max(0.1, until - time.monotonic()))
        for job in done:
            error = job.exception()
            if error is not None:
                self.node_dir.gap(_Pool.name(job), f"{type(error).__name__}: {error}")
        if report:
            for job in late:
                self.node_dir.gap(_Pool.name(job), f"no end within {DEADLINE_S:g} s")

    # ---- one rank ----------------------------------------------------------------------------------------------------

    def _rank(self, rank: WatchedRank, number: int) -> None:
        process = rank.process
        stat = linux_process.stat(process.pid)
        frozen = stat is not None and stat.state in "Tt"
        if process.socket is not None:
            # A stopped process still accepts connections into its queue: asking it costs deadlines and tells nothing.
            rank.server_answers = False if frozen else ask(process.socket, "ping", 1.0).ok
        if rank.server_answers:
            for backend in flight_recorder.quick(self.node_dir, process):
                self._complete_groups(rank, backend)
        elif process.socket is not None:
            rank.python_answers = None
            self.node_dir.gap(
                f"recorder of rank {rank.number}",
                "the process is stopped" if frozen else "its worker server does not answer",
                rank.number,
            )
        else:
            why = "; ".join(process.errors) or "no companion runs in it"
            self.node_dir.gap(f"recorder of rank {rank.number}", why, rank.number)
        self._stacks(rank, number)
        if rank.server_answers:
            flight_recorder.with_stacks(self.node_dir, process)
        own = [file for file in rank.output if sum(file in other.output for other in self.ranks) == 1]
        if own:
            output_files.save_redirected(self.node_dir, f"rank_{rank.number}", own, dict.fromkeys(own, rank.rights))

    def _stacks(self, rank: WatchedRank, number: int) -> None:
        process = rank.process if rank.server_answers else _without_server(rank)
        answered = python_stacks.sample(self.node_dir, process, number)
        if rank.server_answers:
            rank.python_answers = answered

    def _again(self, rank: WatchedRank, number: int) -> None:
        if self.ended.wait(BETWEEN_SAMPLES_S) or rank.handle.ended():
            return
        if rank.python_answers is False:
            rank.server_answers = ask(rank.process.socket or "", "ping", 1.0).ok
            # The first question to its Python is still open.
            python_stacks.sample(self.node_dir, _without_server(rank), number, native=True)
        else:
            self._stacks(rank, number)
        python_stacks.children(self.node_dir, rank.process, number, {each.process.pid for each in self.ranks})

    def _complete_groups(self, rank: WatchedRank, backend: str) -> None:
        """Put the members of the groups into a dump whose recorder does not know them."""
        name = f"dumps/{backend}_rank_{rank.number}.json"
        table = rank.members(backend)
        if not table or not self.node_dir.has(name):
            return
        try:
            dump = bounded_json.loads(
                self.node_dir.read(name, flight_recorder.MOST_BYTES), most=flight_recorder.MOST_MEMORY
            )
        except (OSError, ValueError):
            return
        if not isinstance(dump, dict):
            return
        rank.take_full(backend, dump)
        dump["pg_config"] = rank.members(backend)
        self.node_dir.write(name, json.dumps(dump), rank=rank.number)

    def _last_answers(self) -> None:
        for rank in self.ranks:
            output_files.save_error_file(self.node_dir, rank.number, rank.error_file, rank.rights)
            learnt = None if self.node_dir.has(f"sites/rank_{rank.number}.json") else rank.call_sites.file(rank.number)
            if learnt is not None:
                self.node_dir.write_json(f"sites/rank_{rank.number}.json", learnt, rank=rank.number)
            lost = rank.ended or rank.server_answers is False
            if lost and rank.last_stack:
                python_stacks.keep(self.node_dir, rank.process, 1, rank.last_stack, "worker-server")
            if any(self.node_dir.has(f"dumps/{name}_rank_{rank.number}.{end}") for name, end in _DUMPS):
                continue
            rings = rank.last_rings() if lost else {}
            for source, ring in rings.items():
                self.node_dir.write(f"dumps/{source}_rank_{rank.number}.json", ring, rank=rank.number)
            text = rank.last_answer() if lost and not rings else None
            if rings:
                self.node_dir.filled(f"recorder of rank {rank.number}", rank.number)
            elif text is not None:
                self.node_dir.write(f"dumps/last_rank_{rank.number}.json", text, rank=rank.number)
            elif rank.ended:
                self.node_dir.gap(f"recorder of rank {rank.number}", "it ended before it was ever asked", rank.number)

    # ---- the node ----------------------------------------------------------------------------------------------------

    def _environ(self, alive: Sequence[WatchedRank]) -> dict[str, str]:
        for rank in alive:
            environ = linux_process.environment(rank.process.pid)
            if environ:
                self._rights = rank.rights
                return {name: value for name, value in sorted(environ.items()) if name.startswith(_PREFIXES)}
        return {}

    def _counters(self) -> None:
        self.node_dir.write_json("counters/stall.json", sys_counters.snapshot())

    def _gpu(self) -> None:
        if not self.node.gpus:
            return
        self._usage = self._usage or nvidia_smi.usage()
        text, why = nvidia_smi.report()
        if text is None:
            self.node_dir.gap("GPU state", why)
        else:
            self.node_dir.write("gpu/nvidia-smi.txt", text)

    def _kernel(self) -> None:
        text, why = kernel_messages.messages(self.node.started_at)
        if text is None:
            self.node_dir.gap("kernel messages", why)
        elif text:
            self.node_dir.write("kernel/messages.txt", text)

    def _ras(self, number: int, environ: dict[str, str]) -> None:
        if not any("dump_nccl_trace_pickle" in rank.process.handlers for rank in self.ranks):
            return  # no NCCL in this torch
        if self.ended.is_set() or (number > 1 and self.ended.wait(BETWEEN_SAMPLES_S)):
            return
        where = ras_question.address((environ or self._settings).get("NCCL_RAS_ADDR"))
        if not ras_question.is_here(where[0]):
            self.node_dir.gap("RAS", f"NCCL_RAS_ADDR names another machine ({where[0]}): it is not asked")
            return
        if not ras_question.listening(where[1]):
            self.node_dir.gap("RAS", f"nothing listens on port {where[1]} (NCCL before 2.24, or NCCL_RAS_ENABLE=0)")
            return
        answer, form, why = ras_question.status(where, 6.0)
        if answer is None:
            self.node_dir.gap("RAS", why)
        else:
            self.node_dir.write(f"ras/ras.{number}.{'json' if form == 'json' else 'txt'}", answer)

    def _files(self, environ: dict[str, str]) -> None:
        common: dict[Path, Rights] = {}
        for rank in self.ranks:
            for file in rank.output:
                if any(file in o.output for o in self.ranks if o is not rank):
                    common.setdefault(file, rank.rights)
        if common:
            output_files.save_redirected(self.node_dir, "launcher", sorted(common), common)
        numbers = [rank.number for rank in self.ranks]
        since = self.node.attempt_at, self.node.earlier
        output_files.save_elsewhere(self.node_dir, environ, numbers, platform.node(), self._rights, since)

    def _boxes(self, environ: dict[str, str]) -> None:
        """Of all ranks: a killed one leaves its file. Before the first communicator there is none."""
        named = environ.get(FOLDER) or self._settings.get(FOLDER)
        folder = Path(named) if named else self.node.boxes
        if folder is not None:
            pids = [rank.process.pid for rank in self.ranks]
            theirs = self._rights if named else Rights()
            blackbox_copies.save(self.node_dir, folder, pids, theirs, self.node.earlier)

    # ---- node.json ---------------------------------------------------------------------------------------------------

    def complete(self) -> None:
        """All is there. Also called when the job has ended: how each rank ended is known only then."""
        self._complete = True
        self.write_node()

    def write_node(self, environ: dict[str, str] | None = None) -> None:
        self._last_answers()
        using = nvidia_smi.users() if self.node.gpus and not self.ended.is_set() else {}
        torch = next((rank.process.torch for rank in self.ranks if rank.process.torch), None)
        python = next((rank.process.python for rank in self.ranks if rank.process.python), None)
        if environ:
            self._settings = environ
        self.node_dir.write_json(
            NODE_FILE,
            {
                "schema": NODE_SCHEMA,
                "node": self.node.name,
                "captured_at": self.captured_at,
                "reason": self.reason,
                "detail": self.detail,
                "job": self.node.job,
                "attempt": self.node.attempt,
                "versions": {
                    "hangscope": __version__,
                    "python": python,
                    "torch": torch,
                    "driver": self.node.driver,
                    "kernel": platform.release(),
                },
                "gpus": self.node.gpus,
                "nics": self.node.nics,
                "settings": self._settings,
                "ranks": [self._row(rank, self._gpu_of(rank, using)) for rank in self.ranks],
                "gaps": self.node_dir.gaps,
                "complete": self._complete,
            },
        )

    def _row(self, rank: WatchedRank, gpu_used: str | None) -> dict[str, Any]:
        """The rank as it was when its hang was captured. That it ended much later is a field of its own.

        A hang that somebody ends hours later with a signal must not look like a rank that died of one.
        """
        row = {**rank.row(gpu_used), **self._usage.get(gpu_used or "", {})}
        before = self._rows.get(rank.number)
        if before is None or (row["ended_at"] is None and not self._complete):
            self._rows[rank.number] = row
            return row
        end = {"exit_status": row["exit_status"], "ended_at": row["ended_at"]}
        if row["ended_at"] is None:
            return before
        if row["ended_at"] > self._begun_at + LAST_WORDS_S:
            return {**before, "later": end}
        gone = {"state": "gone", "wait_channel": None, "syscall": None, "syscall_file": None}
        return {**before, **end, **gone, "oom_kills": row["oom_kills"]}

    def _gpu_of(self, rank: WatchedRank, using: dict[int, str]) -> str | None:
        return using.get(rank.process.pid) or nvidia_smi.by_order(
            self.node.gpus, rank.visible_gpus, rank.process.local_rank
        )


def _without_server(rank: WatchedRank) -> RankProcess:
    return replace(rank.process, socket=None)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Pool:
    """Threads that nobody waits for at exit: a source may hang for good."""

    def __init__(self, size: int) -> None:
        self._slots = threading.Semaphore(size)

    def start(self, name: str, function: Callable[..., None], *arguments: Any) -> Future[None]:
        job: Future[None] = Future()
        job.name = name  # type: ignore[attr-defined]

        def work() -> None:
            with self._slots:
                try:
                    function(*arguments)
                except BaseException as error:
                    job.set_exception(error)
                else:
                    job.set_result(None)

        threading.Thread(target=work, name=name, daemon=True).start()
        return job

    @staticmethod
    def name(job: Future[None]) -> str:
        return str(getattr(job, "name", ""))
