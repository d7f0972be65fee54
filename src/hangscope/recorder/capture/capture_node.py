"""One capture on this node: every source, the most perishable first, each with its own deadline, all ranks at once."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from hangscope import engine_roles
from hangscope.__about__ import __version__
from hangscope.engine_roles import Role
from hangscope.errors import contained
from hangscope.incident import manifest
from hangscope.incident.layout import GPUS_ASKED_FILE, NODE_FILE, NODE_SCHEMA
from hangscope.incident.node_dir import NodeDir
from hangscope.processes import linux_process, process_facts, process_roles
from hangscope.processes.target_rights import NOBODY, Rights
from hangscope.recorder.capture import capture_rank, look_files, output_files, python_stacks
from hangscope.recorder.capture.engine_processes import EngineProcesses
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.capture.source_pool import SourcePool
from hangscope.recorder.live.looks import Look
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.rundir import peer_files
from hangscope.recorder.setup.blackbox_library import FOLDER
from hangscope.sources import slices
from hangscope.sources.gpu_core import ask as gpu_cores
from hangscope.sources.gpu_state import nvidia_smi
from hangscope.sources.saving import Saving, SavingOfRanks

T = TypeVar("T")
slices.found("capture", "save")  # imported now: while a job hangs, the file system with our code may too

FIRST_S = 5.0
"""For the first sample of all ranks; the second begins then."""
DEADLINE_S = 14.0
ENDS_WITH_IT_S = 5.0
"""A rank that ends so soon after its hang was captured ended of it."""
AS_ASKED_S = 0.5
"""Some schedulers signal all processes at once: a rank may end before the signal has come here."""
SECRET = ("HANGSCOPE_TOKEN",)
"""Opens the server that incidents go to: kept nowhere."""
_PREFIXES = ("TORCH_", "NCCL_", "GLOO_", "PYTORCH_", "CUDA_", "TORCHELASTIC_", "MASTER_", "HANGSCOPE_")


def _begin_slices() -> dict[str, SavingOfRanks]:
    return {slice_.WHAT: slice_.begin() for slice_ in slices.found("capture", "begin")}


@dataclass(slots=True)
class NodeCapture:
    """`ended` turns true when the command has: nothing is left then that could answer."""

    node_dir: NodeDir
    node: NodeFacts
    ranks: Sequence[WatchedRank]
    reason: str
    detail: str
    ended: threading.Event
    asked_at: Callable[[], float | None] = lambda: None
    """When the job was asked to end, by a signal that was handed on: ranks that end from then on did not die of it."""
    look: Look | None = None
    """The rings that are saved where nothing is asked of the ranks."""
    between_s: float = capture_rank.BETWEEN_SAMPLES_S
    """From the first sample of each source to the second."""
    captured_at: str = field(default_factory=manifest.now)
    begun: float = field(default_factory=time.monotonic)
    _begun_at: float = field(default_factory=time.time)
    _settings: dict[str, str] = field(default_factory=dict)
    _rights: Rights = NOBODY
    """Those of the rank whose settings these are: what they name is opened with them."""
    _rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    _usage: dict[str, dict[str, float | None]] = field(default_factory=dict)
    _of_ranks: dict[str, SavingOfRanks] = field(default_factory=_begin_slices)
    """Source → what it keeps of each sample of each rank."""
    _role_of: dict[int, Role] = field(default_factory=dict)
    _complete: bool = False
    _sources: dict[str, list[str]] = field(default_factory=dict)
    """Source → the files that it saved."""
    _cores: gpu_cores.CoresTaken | None = None
    _others: EngineProcesses = field(default_factory=lambda: EngineProcesses(None, ()))

    def again(self, ranks: Sequence[WatchedRank], look: Look | None) -> NodeCapture:
        """Another capture of the same hang: what this one saw of a process stays."""
        return replace(self, ranks=tuple(ranks), look=look, _complete=False)

    def __post_init__(self) -> None:
        if not self._others.looked:
            self._others = EngineProcesses(self.node.command, frozenset(rank.process.pid for rank in self.ranks))

    def take(self) -> None:
        """Everything, in at most DEADLINE_S. A source that does not come back in time is a gap."""
        begun = time.monotonic()
        number = python_stacks.next_number(self.node_dir)
        alive = [rank for rank in self.ranks if not rank.ended]
        # Threads that hang in a source must not keep us: the pool is left behind, its threads are daemons of this run.
        pool = SourcePool(max(8, 3 * len(self.ranks) + 6))
        first = [pool.start(f"rank {rank.number}", self._first_sample, rank, number) for rank in alive]
        environ = self._environ(alive)
        sources = slices.found("capture", "save")
        rest = [
            pool.start("use of the GPUs", self._use_of_gpus),
            *(pool.start(source.WHAT, self._save, source, 1, environ) for source in sources),
            pool.start("files", self._files, environ),
            pool.start("other processes of the engine", self._others.save_stacks, self.node_dir, number),
        ]
        self._save_last_answers()
        pool.wait(first, begun + FIRST_S, self.node_dir)
        self.write_node(environ)
        second = [pool.start(f"rank {rank.number}", self._second_sample, rank, number + 1) for rank in alive]
        second += [
            pool.start(source.WHAT, self._save, source, 2, environ)
            for source in sources
            if getattr(source, "SAMPLES", 1) > 1
        ]
        late = f"not finished within {DEADLINE_S:g} s"
        pool.wait([*first, *rest, *second], begun + DEADLINE_S, self.node_dir, late=late)
        self.write_node(environ)

    def take_look(self) -> None:
        """The rings that the ranks gave at a look, while they moved, and nothing else."""
        if self.look is not None:
            look_files.write_rings(self.node_dir, self.look, self.ranks)
        self.write_node(self._environ([rank for rank in self.ranks if not rank.ended]))

    def _first_sample(self, rank: WatchedRank, number: int) -> None:
        capture_rank.first_sample(self.node_dir, rank, number, self.ranks)
        self._take_slices(rank, number)

    def _second_sample(self, rank: WatchedRank, number: int) -> None:
        capture_rank.second_sample(self.node_dir, rank, number, self.ranks, self.ended, self.between_s)
        self._take_slices(rank, number)

    def _take_slices(self, rank: WatchedRank, number: int) -> None:
        for slice_ in self._of_ranks.values():
            slice_.take(self.node_dir, rank, number)

    def _save_last_answers(self) -> None:
        if self.look is not None:
            return
        for rank in self.ranks:
            self._part(f"last answers of rank {rank.number}", None, partial(self._save_last_answer, rank))

    def _save_last_answer(self, rank: WatchedRank) -> None:
        capture_rank.save_last_answers(self.node_dir, rank)

    def _part(self, what: str, otherwise: T, make: Callable[[], T]) -> T:
        """A part of the node's file. One that fails is a gap, and the rest is written."""
        try:
            return make()
        except Exception as error:
            self.node_dir.gap(what, str(error) if isinstance(error, OSError) else contained(error))
            return otherwise

    # ---- the node ----------------------------------------------------------------------------------------------------

    def _environ(self, alive: Sequence[WatchedRank]) -> dict[str, str]:
        for rank in alive:
            environ = linux_process.environment(rank.process.pid)
            if environ:
                self._rights = rank.rights
                names = sorted(name for name in environ if name.startswith(_PREFIXES) and name not in SECRET)
                return {name: environ[name] for name in names}
        return {}

    def _save(self, source: ModuleType, sample: int, environ: dict[str, str]) -> None:
        """One source's part. A second sample is taken a moment after the first."""
        if sample > 1 and self.ended.wait(capture_rank.BETWEEN_SAMPLES_S):
            return
        wrote = self._sources.setdefault(slices.name_of(source), [])

        def write(name: str, data: bytes | str) -> None:
            if self.node_dir.write(name, data) and name not in wrote:
                wrote.append(name)

        handlers = frozenset(handler for rank in self.ranks for handler in rank.process.handlers)
        saving = Saving(
            settings=environ or self._settings,
            handlers=handlers,
            started_at=self.node.started_at,
            ended=self.ended,
            write=write,
            gap=partial(self.node_dir.gap, source.WHAT),
            gap_of=self.node_dir.gap,
            node=self.node.name,
            command=self.node.command,
            has_gpus=bool(self.node.gpus),
            ranks={rank.process.pid: rank.number for rank in self.ranks if not rank.ended},
            pids=frozenset(rank.process.pid for rank in self.ranks),
            programs=self.node.programs,
            earlier=self.node.earlier,
            rights=self._rights,
            made={} if self.node.boxes is None else {FOLDER: str(self.node.boxes)},
        )
        source.save(saving, sample)

    def _use_of_gpus(self) -> None:
        if self.node.gpus:
            self._usage = self._usage or nvidia_smi.usage()

    def _files(self, environ: dict[str, str]) -> None:
        common: dict[Path, Rights] = {}
        earlier: dict[Path, bytes] = {}
        for rank in self.ranks:
            for file in rank.output:
                if any(file in o.output for o in self.ranks if o is not rank):
                    common.setdefault(file, rank.rights)
                    earlier.update(rank.output_before)
        if common:
            output_files.save_redirected(self.node_dir, "launcher", sorted(common), common, earlier)
        numbers = [rank.number for rank in self.ranks]
        since = self.node.attempt_at, self.node.earlier
        output_files.save_elsewhere(self.node_dir, environ, numbers, platform.node(), self._rights, since)

    def can_ask_gpus(self) -> bool:
        """Whether a GPU of this node can be asked what it runs, and none has been."""
        return self._cores is None and gpu_cores.can_be_asked(self.ranks)

    def take_gpu_cores(self, launcher: int | None) -> bool:
        """Ask the GPUs, of ranks that are ended next; whether any of them answered. Who cannot be asked is a gap."""
        living = [rank for rank in self.ranks if not rank.handle.ended()]
        self._cores = gpu_cores.take(self.node_dir, living, launcher)
        self.write_node()
        return self._cores is not None and bool(self._cores.ranks)

    # ---- node.json ---------------------------------------------------------------------------------------------------

    def complete(self) -> None:
        """All is there. Also called when the job has ended: how each rank ended is known only then."""
        self._complete = True
        self.write_node()

    def write_node(self, environ: dict[str, str] | None = None) -> None:
        self._save_last_answers()
        for what, slice_ in self._of_ranks.items():
            self._part(what, None, partial(slice_.write, self.node_dir))
        no_users: dict[int, str] = {}
        no_rows: list[dict[str, Any]] = []
        using = self._part("processes on the GPUs", no_users, self._using)
        torch = next((rank.process.torch for rank in self.ranks if rank.process.torch), None)
        python = next((rank.process.python for rank in self.ranks if rank.process.python), None)
        if environ:
            self._settings = environ
        roles = self._part("roles of processes", self._role_of, self._roles)
        rows = [self._part(f"rank {rank.number}", None, partial(self._row, rank, using, roles)) for rank in self.ranks]
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
                "ranks": [row for row in rows if row is not None],
                "sources": {name: list(files) for name, files in sorted(self._sources.items())},
                "others": self._part("other processes of the engine", no_rows, self._others.rows),
                "gaps": self.node_dir.gaps,
                "complete": self._complete,
                **self._gpus_asked(),
            },
        )

    def _using(self) -> dict[int, str]:
        return nvidia_smi.users() if self.node.gpus and not self.ended.is_set() else {}

    def _roles(self) -> dict[int, Role]:
        """By process, what the ranks are for their engine. Of one that has ended, what it was."""
        self._role_of.update(process_roles.roles_of(rank.process.pid for rank in self.ranks if not rank.ended))
        return self._role_of

    def _gpus_asked(self) -> dict[str, Any]:
        """When the GPUs were asked what they run, by us or by hand."""
        if self._cores is not None:
            return {"gpu_cores": self._cores.to_json()}
        name = (self.node_dir.directory / GPUS_ASKED_FILE).relative_to(self.node_dir.incident).as_posix()
        by_hand = peer_files.gpus_asked(self.node_dir.incident, name)
        return {"gpu_cores": by_hand} if by_hand is not None else {}

    def _row(self, rank: WatchedRank, using: dict[int, str], roles: Mapping[int, Role]) -> dict[str, Any]:
        """The rank as it was when its hang was captured. That it ended much later is a field of its own.

        A hang that somebody ends hours later with a signal must not look like a rank that died of one.
        """
        gpu_used = self._gpu_of(rank, using)
        row = {**rank.row(gpu_used), **self._usage.get(gpu_used or "", {})}
        if self.look is not None and rank.number in self.look.rings:
            row["moved"] = True
        row["role"] = engine_roles.to_value(roles.get(rank.process.pid))
        before = self._rows.get(rank.number)
        if self._ended_as_asked(row):
            end = {"exit_status": row["exit_status"], "ended_at": row["ended_at"]}
            unknown = {"state": None, "exit_status": None, "ended_at": None}  # what it did then, nobody saw
            before = self._rows.setdefault(rank.number, {**row, **unknown})
            return {**before, "later": end}
        if before is None or (row["ended_at"] is None and not self._complete):
            self._rows[rank.number] = row
            return row
        end = {"exit_status": row["exit_status"], "ended_at": row["ended_at"]}
        if row["ended_at"] is None:
            return before
        if row["ended_at"] > self._begun_at + ENDS_WITH_IT_S:
            return {**before, "later": end}
        return {**before, **end, **process_facts.GONE, "oom_kills": row["oom_kills"]}

    def _ended_as_asked(self, row: dict[str, Any]) -> bool:
        asked = self.asked_at()
        return asked is not None and row["ended_at"] is not None and row["ended_at"] > asked - AS_ASKED_S

    def _gpu_of(self, rank: WatchedRank, using: dict[int, str]) -> str | None:
        return using.get(rank.process.pid) or nvidia_smi.by_order(
            self.node.gpus, rank.visible_gpus, rank.process.local_rank
        )
