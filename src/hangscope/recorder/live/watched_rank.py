"""One rank of this node as the agent knows it: the process, its last answers, and how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hangscope.engine_roles import Role
from hangscope.processes import linux_process, process_facts, process_roles, target_rights
from hangscope.processes.file_waits import FileWaits
from hangscope.processes.linux_process import ProcessHandle
from hangscope.processes.process_activity import Activity
from hangscope.processes.target_rights import Rights
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.rank_position import RankPosition
from hangscope.recorder.live.unfinished_ops import RankProgress, rows
from hangscope.sources.call_sites.learn import CallSites
from hangscope.sources.distributed_state import DistributedState
from hangscope.sources.flight_recorder.outside import OutsideProcess

MOST_GROUPS = 4096
END_BYTES = 4096
_TEXTS = ("name", "desc", "backend")
RECORDERS = ("nccl", "gloo", "nccl2", "xccl")
ENDING_S = 20.0
"""So long a rank may take to end before that itself counts as a hang."""
STILL_S = 1.5
"""A rank whose counters have not moved for so long, over more than one poll, is still where it was then."""


@dataclass(slots=True)
class WatchedRank:
    """`last_active` is NCCL's last list of unfinished operations, `last_status` the other recorders' counters."""

    process: RankProcess
    handle: ProcessHandle
    progress: RankProgress = field(default_factory=RankProgress)
    groups: list[dict[str, Any]] = field(default_factory=list)
    pg_names: dict[tuple[str, str], str] = field(default_factory=dict)
    last_active: dict[str, Any] | None = None
    last_status: dict[str, Any] = field(default_factory=dict)
    failed_in: set[str] = field(default_factory=set)
    """The recorders of `stood_in` whose operation failed: a peer never launched it."""
    stood_in: dict[str, tuple[dict[str, Any], float]] = field(default_factory=dict)
    """The counters with which it had stood still, and when it was last seen so, where all that came after is that its
    operation ended: one that fails counts as completed (Gloo, torch 2.13), and a failed rank may take long to end."""
    last_full: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The whole ring of each recorder as it was when a rank of the job ended: nobody may be left to ask later."""
    last_stack: str = ""
    asked_at_failure: float = -1e9
    """When (monotonic) it was last asked because another rank had failed."""
    last_poll_at: float | None = None
    moved: bool | None = None
    """Whether it got anywhere between the two looks of a snapshot."""
    activity: Activity | None = None
    """What it used between the two samples of the last capture, beside its answers to us."""
    answering: bool = False
    """Whether it is still at work on the recorder with stacks that a capture asked for, in a thread for that."""
    init_since: float | None = None
    """Since when (monotonic) it has been seen inside init_process_group."""
    position: RankPosition = field(default_factory=RankPosition)
    ending_since: float | None = None
    """Since when (monotonic) it has been seen to end."""
    meets_at: str = ""
    """Where it looks for the others while it joins: host and port, or a file; empty where it did not say so."""
    wait_counters: dict[str, Any] = field(default_factory=dict)
    still_since: float = field(default_factory=time.monotonic)
    """Since when (monotonic) its counters have not moved."""
    quiet_since: float = field(default_factory=time.monotonic)
    """Since when (monotonic) neither its counters nor the kernel have shown it get anywhere."""
    server_answers: bool | None = None
    python_answers: bool | None = None
    exit_status: int | None = None
    ended_at: float | None = None
    visible_gpus: str | None = None
    error_file: Path | None = None
    memory_file: Path | None = None
    oom_before: int | None = None
    output: list[Path] = field(default_factory=list)
    output_before: dict[Path, bytes] = field(default_factory=dict)
    """Of a rank of a later attempt, the end that each of these files had when it was first seen: what was there already
    is of those before."""
    shares_store: bool = False
    """Whether torchrun keeps one store for all attempts, as it does from torch 2.5 on."""
    by_ray: bool = False
    """Whether it is an actor of Ray, which ends its actors with status 1 also when all went well."""
    role: Role | None = None
    """What it is for its engine, by its title."""
    rights: Rights = field(default_factory=Rights)
    """What it names is opened with its own rights."""
    call_sites: CallSites = field(default_factory=CallSites)
    has_symbols: bool = False
    """Whether a dump with stacks costs it no import."""
    outside: OutsideProcess | None = None
    """Its memory, from which its recorders are read where no companion answers in it."""
    distributed: DistributedState | None = None
    """What its torch.distributed knows, in its memory as well."""
    finalizing: bool = False
    """Whether its Python is being taken down, as its memory shows."""
    unread: tuple[str, str] | None = None
    """Why its memory cannot be read, and the cure; None where it can, or where nobody tried."""
    from_memory: set[str] = field(default_factory=set)
    """The recorders whose dumps were read out of its memory."""
    file_waits: FileWaits = field(default_factory=FileWaits)
    """The files that it is blocked on; looked at when a hang is captured."""
    seen_at: tuple[Any, ...] = ()
    """How far it was at the last turn."""
    moved_at: float | None = None
    """When (monotonic) it was last seen to get further."""

    @classmethod
    def of(cls, process: RankProcess) -> WatchedRank:
        handle = ProcessHandle(process.pid)
        memory = process_facts.memory_events(process.pid)
        environ = linux_process.environment(process.pid)
        error = environ.get("TORCHELASTIC_ERROR_FILE")
        theirs = target_rights.of(process.pid)
        if handle.ended() and theirs != Rights():
            # The number may be another process's by now: what this one named is not that one's.
            theirs = target_rights.NOBODY
        output = process_facts.redirected_output(process.pid, theirs)
        return cls(
            process=process,
            handle=handle,
            output_before=_ends_of(output, theirs) if process.restart else {},
            memory_file=memory,
            oom_before=process_facts.oom_kills(memory),
            visible_gpus=environ.get("CUDA_VISIBLE_DEVICES"),
            error_file=Path(error) if error else None,
            output=output,
            shares_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            by_ray=next(iter(linux_process.command_line(process.pid)), "").startswith("ray::"),
            role=process_roles.roles_of([process.pid]).get(process.pid),
            rights=theirs,
        )

    @property
    def number(self) -> int:
        assert self.process.rank is not None
        return self.process.rank

    @property
    def said(self) -> str:
        """``rank 2``, ``rank 2 (Worker_TP2)``."""
        return f"rank {self.number} ({self.role.label})" if self.role is not None else f"rank {self.number}"

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    @property
    def counted(self) -> bool:
        """Whether its operations are counted for us: by its companion, or read from outside."""
        return self.process.socket is not None or self.outside is not None

    def forget(self) -> None:
        """It is not watched any more."""
        self.handle.close()
        self.close_outside()

    def close_outside(self) -> None:
        if self.outside is not None:
            self.outside.close()
            self.outside = None
        if self.distributed is not None:
            self.distributed.close()
            self.distributed = None

    @property
    def ended_by_ray(self) -> bool:
        """Whether its status is the one that Ray ends all actors with: it says nothing about this one."""
        return self.by_ray and self.ended and self.exit_status == 1

    @property
    def starts(self) -> bool:
        """Whether it has not come past init_process_group."""
        return self.init_since is not None or self._waits_in_init

    def is_ending(self, now: float) -> bool:
        """Whether it is ending, and has been for a short time: how it ends will be known soon.

        The companion takes its socket away at exit; without one, its memory and the kernel's flags tell.
        """
        stat = None if self.ended else linux_process.stat(self.process.pid)
        if stat is None:
            return False
        out = self.process.socket is not None and not os.path.exists(self.process.socket)
        ends = self.distributed is not None and self.distributed.ends
        if not (out or stat.exiting or self.finalizing or ends):
            return False
        if self.ending_since is None:
            self.ending_since = now
        return now - self.ending_since < ENDING_S

    @property
    def may_find_old_addresses(self) -> bool:
        """Whether it is a rank of a later attempt that has not come past init_process_group, over a shared store.

        Its peers' addresses of the attempt before are still in there, and are read where a peer has not yet written its
        new one (torch 2.13: three in four second starts over Gloo failed or stuck so, with hangscope and without).
        """
        if not self.shares_store or not self.process.restart or self.groups:
            return False
        return self.process.asks_python or self._waits_in_init

    @property
    def _waits_in_init(self) -> bool:
        return self.position.wait is not None and self.position.wait.in_init

    def note_end(self) -> bool:
        """Look whether the process has ended; True the first time it has."""
        if self.ended or not self.handle.ended():
            return False
        self.exit_status = self.handle.status()
        self.ended_at = time.time()
        self.close_outside()
        return True

    def note_status(self) -> None:
        """Try again for a status that could not be seen at the moment of the end: its parent may reap it later."""
        if self.ended and self.exit_status is None:
            self.exit_status = self.handle.status()

    def oom_kills(self) -> int | None:
        now = process_facts.oom_kills(self.memory_file)
        return None if now is None else now - (self.oom_before or 0)

    def row(self, gpu: str | None) -> dict[str, Any]:
        """This rank's line of node.json, as things are now."""
        self.note_status()
        return {
            "rank": self.number,
            "local_rank": self.process.local_rank,
            "pid": self.process.pid,
            "gpu": gpu,
            **(
                process_facts.GONE
                if self.ended
                else process_facts.describe(self.process.pid, self.handle.started_ticks)
            ),
            "exit_status": None if self.ended_by_ray else self.exit_status,
            "ended_at": None if self.ended_by_ray else self.ended_at,
            "ended_by": "ray" if self.ended_by_ray else None,
            "server_answers": None if self.ended else self.server_answers,
            "python_answers": None if self.ended else self.python_answers,
            "last_poll_at": self.last_poll_at,
            **self._wait_fields(),
            "moved": self.moved,
            "read_from_memory": sorted(self.from_memory),
            **_activity(self.activity),
            "file_waits": [] if self.ended else self.file_waits.rows(),
            "oom_kills": self.oom_kills(),
        }

    def _wait_fields(self) -> dict[str, Any]:
        """What it waits in, empty where it waits in nothing, null where nobody looked twice."""
        position = self.position
        if not self.ended and self.init_since is not None and position.wait is None:
            # Rank 0 asks its own store again and again until all have come: to the kernel it works.
            return {"waits_in": "init_process_group", "stood_s": round(time.monotonic() - self.init_since, 1)}
        if self.ended or position.since is None or position.samples < 2:
            return {"waits_in": None, "stood_s": None}
        waits_in = "" if position.outside else None
        if position.wait is not None and not position.wait.on_gpu:
            waits_in = position.wait.call
        return {"waits_in": waits_in, "stood_s": round(time.monotonic() - position.since, 1)}

    # ---- answers -----------------------------------------------------------------------------------------------------

    def take_progress(self, answer: dict[str, Any], now: float) -> None:
        """An answer of the companion's own handler."""
        self.has_symbols = answer.get("symbols") is True
        self.take_groups(answer)
        if isinstance(answer.get("meets_at"), str):
            self.meets_at = answer["meets_at"][:200]
        status = answer.get("status")
        for source, counters in (status if isinstance(status, dict) else {}).items():
            if isinstance(counters, dict) and 0 < len(counters) <= MOST_GROUPS and source in RECORDERS:
                self.last_status[source] = counters
                self.progress.take_counters(source, counters, now, time.time_ns())

    def take_groups(self, answer: dict[str, Any]) -> bool:
        """The groups in such an answer, and whether they are others than before."""
        before = self.groups
        if isinstance(answer.get("groups"), list):
            self.groups = [_group(group) for group in answer["groups"][:MOST_GROUPS] if isinstance(group, dict)]
        return self.groups != before

    def take_wait_counters(self, counters: dict[str, Any], now: float) -> None:
        """PyTorch counts who is inside init_process_group; its recorder knows nothing before the first operation."""
        self.wait_counters = counters
        counter = counters.get("pytorch.wait_counter.c10d.init_process_group")
        count = counter.get("active_count") if isinstance(counter, dict) else None
        self.note_init(now, inside=isinstance(count, int) and count > 0)

    def note_init(self, now: float, *, inside: bool) -> None:
        """Whether it was seen inside init_process_group."""
        self.init_since = (self.init_since or now) if inside else None

    def take_active(self, dump: dict[str, Any]) -> None:
        self.last_active = dump
        self.progress.take_active(dump, time.monotonic(), time.time_ns())

    def take_full(self, source: str, dump: dict[str, Any]) -> None:
        for entry in rows(dump):
            names = entry.get("process_group")
            if isinstance(names, (list, tuple)) and names:
                self.pg_names[source, str(entry.get("pg_id"))] = str(names[0])
        self.progress.take_full(source, dump, time.time_ns())

    def last_rings(self) -> dict[str, str]:
        """The rings that were read when the job fell apart, as dumps, by recorder."""
        found = {}
        for source, dump in self.last_full.items():
            if dump.get("entries"):
                table = self.members(source) if source != "nccl" else dump.get("pg_config")
                dump = self.as_it_stood(source, dump)
                found[source] = json.dumps({**dump, "pg_config": table or dump.get("pg_config")})
        return found

    def group_label(self, source: str, number: str) -> str:
        """What people call the group with that number in that recorder."""
        name = self.pg_names.get((source, number))
        for group in self.groups:
            if name is not None and group.get("name") == name and group.get("desc") not in (None, "", "undefined"):
                return str(group["desc"])
        return name if name is not None else number

    def members(self, source: str) -> dict[str, dict[str, Any]]:
        """The groups as a dump's pg_config has them. Gloo's own is of no use: one line, with no name (2.8 to 2.15)."""
        numbers = {name: number for (known, number), name in self.pg_names.items() if known == source}
        order = [group for group in self.groups if source.rstrip("2") in str(group.get("backend", source))]
        table: dict[str, dict[str, Any]] = {}
        for index, group in enumerate(order):
            name = str(group.get("name", ""))
            number = numbers.get(name, str(index) if not numbers else None)
            table[name] = {
                "name": name,
                "desc": str(group.get("desc", "")),
                "ranks": str(group.get("ranks", [])),
                **({"pg_id": known} if (known := linux_process.whole_number(number or "")) is not None else {}),
            }
        return table

    def last_answer(self) -> str | None:
        """What the last polls said, in the form of a dump that lists the unfinished operations only.

        None of a rank that was moving: by the time it ended it was somewhere else.
        """
        source = "nccl2" if self.last_status.get("nccl2") else "gloo"
        status, polled_at = self.last_status.get(source, {}), self.last_poll_at
        if self.exit_status not in (None, 0) and source in self.stood_in:
            status, polled_at = self.stood_in[source]
        elif not self._stood_still_at_last_poll:
            return None
        if self.last_active is not None and (self.last_active.get("pg_status") or self.last_active.get("entries")):
            value = dict(self.last_active)
        elif self.last_status:
            value = {
                "version": "2.10",
                "comm_lib_version": "",
                "pg_config": self.members(source),
                "pg_status": status,
                "entries": [],
            }
        else:
            return None
        value["rank"] = self.number
        value["polled_at"] = polled_at
        return json.dumps(value)

    def note_counters(self, source: str, status: dict[str, Any]) -> None:
        """Counters that were read of its memory, which can be read until it has ended."""
        before = self.last_status.get(source)
        if before is not None and before != status:
            ended_only = _launched(before) == _launched(status)
            if ended_only and self._stood_still_at_last_poll and self.last_poll_at is not None:
                self.stood_in[source] = (before, self.last_poll_at)
            elif not ended_only:
                self.stood_in.pop(source, None)
                self.failed_in.discard(source)
        self.last_status[source] = status

    def note_failure(self, others: Iterable[WatchedRank]) -> None:
        """What it stood in has ended while another rank never launched it: it failed, as that rank did."""
        for source, (status, _) in self.stood_in.items():
            launched = [
                (_launched(other.last_status[source]), other) for other in others if source in other.last_status
            ]
            if any(
                each[group] < number and other.group_label(source, group) == self.group_label(source, group)
                for group, number in _launched(status).items()
                for each, other in launched
                if group in each
            ):
                self.failed_in.add(source)

    def as_it_stood(self, source: str, dump: dict[str, Any]) -> dict[str, Any]:
        """A ring as it was when the rank was last seen in an operation that has failed since: Gloo's recorder marks
        that one finished, like any other. The same ring where nothing failed."""
        if source not in self.failed_in:
            return dump
        status, polled_at = self.stood_in[source]
        done = {group: counters["last_completed_collective"] for group, counters in status.items()}
        entries = [
            {**entry, "retired": False}
            if entry.get("collective_seq_id", 0) > done.get(str(entry.get("pg_id")), 1 << 62)
            and not entry.get("is_p2p")
            else entry
            for entry in rows(dump)
        ]
        return {**dump, "pg_status": status, "entries": entries, "polled_at": polled_at}

    def stood_s(self, now: float) -> float:
        """Seconds (of the monotonic clock) since its counters moved, or since it was first seen."""
        return now - max((counter.since for counter in self.progress.counters.values()), default=self.still_since)

    @property
    def _stood_still_at_last_poll(self) -> bool:
        """By its counters: that a whole ring was read in between says more of a wait, and is no move."""
        ago_s = time.time() - self.last_poll_at if self.last_poll_at is not None else 0.0
        return self.stood_s(time.monotonic()) - ago_s >= STILL_S


def _launched(status: dict[str, Any]) -> dict[str, Any]:
    return {group: counters["last_enqueued_collective"] for group, counters in status.items()}


def _ends_of(files: list[Path], rights: Rights) -> dict[Path, bytes]:
    found = {}
    for file in files:
        with contextlib.suppress(OSError):
            found[file] = rights.read(file, END_BYTES, tail=True)
    return found


def _activity(seen: Activity | None) -> dict[str, Any]:
    if seen is None:
        return {"works": None, "polls": None, "cpu_share": None, "io_bytes_per_s": None}
    return {
        "works": seen.works,
        "polls": seen.polls,
        "cpu_share": round(seen.cpu_share, 3),
        "io_bytes_per_s": round(seen.bytes_per_s),
    }


def _group(said: dict[str, Any]) -> dict[str, Any]:
    """One group as a rank's own code described it: what is of another kind counts as not said."""
    kept: dict[str, Any] = {
        name: value[:500] for name, value in said.items() if name in _TEXTS and isinstance(value, str)
    }
    members = said.get("ranks")
    ranks = [each for each in members if isinstance(each, int)] if isinstance(members, list) else []
    return {**kept, "ranks": ranks}
