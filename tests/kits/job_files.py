"""Small folders of evidence by hand: dumps, logs and answers of one job, as PyTorch, NCCL and launchers write them."""
# ruff: noqa: E501  (log lines are quoted whole)

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from kits.small_dumps import T0, as_json, entry, group, packed, top

Files = dict[str, bytes]


@dataclass(frozen=True)
class Call:
    """One call of one rank, `at` seconds after the job began. A pending one is "started" or "scheduled"."""

    at: float
    name: str = "all_reduce"
    group: str = "0"
    state: str = "completed"
    size: int = 1024
    line: int = 40


@dataclass
class Job:
    """What every rank recorded. `groups` is name → (description, members)."""

    world: int
    steps: int = 120
    name: str = "all_reduce"
    hung_s: float = 600.0
    groups: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    calls: dict[int, list[Call]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.groups = self.groups or {"0": ("default_pg", tuple(range(self.world)))}
        self.calls = self.calls or {rank: trained(self.steps, self.name) for rank in range(self.world)}

    @property
    def taken(self) -> float:
        """When the dumps were written."""
        return self.steps + self.hung_s

    def waits(self, ranks: Iterable[int], name: str = "", state: str = "started") -> Job:
        """These ranks go into one call more and stay there."""
        for rank in ranks:
            self.calls[rank].append(Call(self.steps + 0.001 * rank, name or self.name, state=state))
        return self

    def dump(self, rank: int, shift: float = 0.0, form: str = "pickle", status: bool = True) -> bytes:
        """One rank's dump; `shift` moves its clock."""
        made, seqs = [], dict.fromkeys(self.groups, 0)
        state: dict[str, dict[str, int]] = {}
        for record, call in enumerate(self.calls[rank]):
            seqs[call.group] += 1
            number = list(self.groups).index(call.group)
            created = T0 + round((call.at + shift) * 1e9)
            taken = T0 + round((self.taken + shift) * 1e9)
            done = call.state == "completed"
            made.append(
                entry(
                    record,
                    seqs[call.group],
                    f"nccl:{call.name}",
                    pg_id=number,
                    process_group=(call.group, self.groups[call.group][0]),
                    time_created_ns=created,
                    time_discovered_started_ns=None
                    if call.state == "scheduled"
                    else created + 10**6
                    if done
                    else taken,
                    time_discovered_completed_ns=created + 2 * 10**7 if done else None,
                    state=call.state,
                    retired=done,
                    input_sizes=[[call.size]],
                    output_sizes=[[call.size]],
                    thread_id=str(140_000_000_000_000 + rank * 4096),
                    frames=[{"name": "step", "filename": "/workspace/train.py", "line": call.line}],
                )
            )
            line = state.setdefault(str(number), _counters())
            line["last_enqueued_collective"] = seqs[call.group]
            if call.state != "scheduled":
                line["last_started_collective"] = seqs[call.group]
            if done:
                line["last_completed_collective"] = seqs[call.group]
        tables = [group(name, desc, *ranks) for name, (desc, ranks) in self.groups.items() if rank in ranks]
        value = top(made, *tables, pg_status=state if status else {})
        return as_json(value) if form == "json" else packed(value)

    def dumps(self, ranks: Iterable[int] | None = None, shift: Mapping[int, float] | None = None) -> Files:
        """The files that PyTorch would leave, of these ranks or all."""
        wanted = range(self.world) if ranks is None else ranks
        return {f"nccl_trace_rank_{rank}": self.dump(rank, (shift or {}).get(rank, 0.0)) for rank in wanted}


def _counters() -> dict[str, int]:
    return {"last_enqueued_collective": -1, "last_started_collective": -1, "last_completed_collective": -1}


def trained(steps: int, name: str = "all_reduce", group: str = "0", start: float = 0.0) -> list[Call]:
    """One completed call a second."""
    return [Call(start + step, name, group) for step in range(steps)]


def later(calls: Sequence[Call], seconds: float) -> list[Call]:
    return [replace(call, at=call.at + seconds) for call in calls]


# ---- logs ------------------------------------------------------------------------------------------------------------

_OPTYPES = {
    "all_reduce": "ALLREDUCE",
    "broadcast": "BROADCAST",
    "_all_gather_base": "_ALLGATHER_BASE",
    "_reduce_scatter_base": "_REDUCE_SCATTER_BASE",
    "all_to_all": "ALLTOALL_BASE",
}


def glog(level: str, at: float) -> str:
    """``E0921 13:43:20.123456789``, as c10 writes it."""
    moment = datetime.fromtimestamp(T0 / 1e9 + at, tz=timezone.utc)
    return f"{level}{moment:%m%d %H:%M:%S}.{moment.microsecond:06d}123"


def caught(rank: int, seq: int, at: float, *, name: str = "all_reduce", waited_s: float = 600.0) -> str:
    """The watchdog's line about a timeout."""
    work = f"WorkNCCL(SeqNum={seq}, OpType={_OPTYPES[name]}, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000)"
    return (
        f"[rank{rank}]:[{glog('E', at)} ProcessGroupNCCL.cpp:689] [Rank {rank}] Watchdog caught collective operation "
        f"timeout: {work} ran for {round(waited_s * 1000) + 64} milliseconds before timing out.\n"
    )


def _pg(rank: int) -> str:
    return f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"


def counted(rank: int, seq: int, at: float, enqueued: int, completed: int) -> str:
    """The line with the group's counters that follows a timeout."""
    return (
        f"[rank{rank}]:[{glog('E', at)} ProcessGroupNCCL.cpp:2303] {_pg(rank)}  failure detected by watchdog at work "
        f"sequence id: {seq} PG status: last enqueued work: {enqueued}, last completed work: {completed}\n"
    )


def recorder_off(rank: int, at: float) -> str:
    return (
        f"[rank{rank}]:[{glog('E', at)} ProcessGroupNCCL.cpp:736] Stack trace of the failed collective not found, "
        "potentially because FlightRecorder is disabled. You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a "
        "non-zero value.\n"
    )


def signalled(rank: int, source: int, at: float, enqueued: int, completed: int) -> str:
    """A rank that hears of another's timeout, and says how far it came itself."""
    return (
        f"[rank{rank}]:[{glog('E', at)} ProcessGroupNCCL.cpp:1849] {_pg(rank)} Observed flight recorder dump signal from "
        "another rank via TCPStore.\n"
        f"[rank{rank}]:[{glog('E', at + 0.001)} ProcessGroupNCCL.cpp:1914] {_pg(rank)} Received a dump signal due to a "
        f"collective timeout from  rank {source} and we will try our best to dump the debug info. Last enqueued NCCL "
        f"work: {enqueued}, last completed NCCL work: {completed}.This is most likely caused by incorrect usages of "
        "collectives, e.g., wrong sizes used across ranks, the order of collectives is not same for all ranks or the "
        "scheduled collective, for some reason, didn't run. Additionally, this can be caused by GIL deadlock or other "
        "reasons such as network errors or bugs in the communications library (e.g. NCCL), etc. \n"
    )


def preparing(rank: int, at: float) -> str:
    return (
        f"[rank{rank}]:[{glog('E', at)} ProcessGroupNCCL.cpp:1628] {_pg(rank)} ProcessGroupNCCL preparing to dump debug "
        "info. Include stack trace: 1, only active collectives: 0\n"
    )


def aborted(rank: int, at: float) -> str:
    """The last words of a process whose watchdog takes it down."""
    return (
        f"[rank{rank}]:[{glog('E', at)} ProcessGroupNCCL.cpp:750] [Rank {rank}] Some NCCL operations have failed or timed "
        "out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete "
        "data.\n"
        f"[rank{rank}]:[{glog('E', at + 0.001)} ProcessGroupNCCL.cpp:764] [Rank {rank}] To avoid data inconsistency, we "
        "are taking the entire process down.\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process group watchdog thread terminated with exception\n"
    )


def watchdog_ended(rank: int, at: float, why: str) -> str:
    """The watchdog's thread met an exception: from then on nobody notices what completes."""
    return (
        f"[rank{rank}]:[{glog('E', at)} ProcessGroupNCCL.cpp:2057] {_pg(rank)} Process group watchdog thread terminated "
        f"with exception: {why}\n"
    )


def watchdog_stuck(rank: int, at: float) -> str:
    """The heartbeat monitor about a watchdog that does not come back from a call."""
    return (
        f"[rank{rank}]:[{glog('E', at)} ProcessGroupNCCL.cpp:1790] {_pg(rank)} ProcessGroupNCCL's watchdog got stuck for "
        "480 seconds without making progress in monitoring enqueued collectives. This typically indicates a NCCL/CUDA API "
        "(e.g., CudaEventDestroy) hang blocking the watchdog, and could be triggered by another thread holding the GIL "
        "inside a CUDA api.\n"
    )


def timed_out(rank: int, seq: int, at: float, *, name: str = "all_reduce", ahead: int = 0) -> str:
    """Everything that a rank says whose collective times out."""
    lines = caught(rank, seq, at, name=name) + counted(rank, seq, at + 0.001, seq + ahead, seq - 1)
    return lines + preparing(rank, at + 1) + aborted(rank, at + 60)


def rank_logs(logs: Mapping[int, str]) -> Files:
    return {f"rank_{rank}.log": f"step 1 loss 2.31\n{text}".encode() for rank, text in logs.items()}


def together(logs: Mapping[int, str]) -> bytes:
    """One file for all ranks, as a launcher's output is."""
    return "".join(logs.values()).encode()


def prefixed(logs: Mapping[int, str]) -> bytes:
    """One file for all ranks, each line with the task in front, as `srun -l` does."""
    return "".join(f"{rank}: {line}\n" for rank, text in logs.items() for line in text.splitlines()).encode()


def roster(ends: Mapping[int, tuple[int | None, float | None]]) -> Files:
    """The launcher's record: rank → (exit status, seconds after the beginning)."""
    lines = [
        {
            "rank": rank,
            "host": f"gpu-{rank // 8:02d}",
            "local_rank": rank % 8,
            "pid": 4000 + rank,
            "exit": status,
            "ended_at": None if at is None else T0 / 1e9 + at,
        }
        for rank, (status, at) in sorted(ends.items())
    ]
    return {"roster.json": json.dumps(lines).encode()}


def ras(world: int, missing: Sequence[int]) -> Files:
    """NCCL's RAS as text, which has not heard of some ranks."""
    head = f"""\
SERVER PROTOCOL 2
NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          {world}            1         {world:2}       {world:2}

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         {world}        {world:2}        {world - len(missing):2}   RUNNING  {"INCOMPLETE" if missing else "OK"}

Errors
======

"""
    if missing:
        head += f"#0-0 (27a079b828ff1a75) INCOMPLETE\n  Missing communicator data from {len(missing)} ranks\n"
        head += "".join(f"  Rank {r} -- GPU {r % 8} managed by process {4000 + r} on node 10.0.0.1\n" for r in missing)
    return {"ras.txt": (head + "\nWarnings\n========\n\n").encode()}


def ras_json(world: int, missing: Sequence[int], launched: Mapping[int, int] | None = None) -> Files:
    """The same as JSON, with how many all_reduce each rank that it heard of has launched."""

    def row(rank: int) -> dict[str, object]:
        return {"rank": rank, "host": "10.0.0.1", "pid": 4000 + rank, "cuda_dev": rank % 8, "nvml_dev": rank % 8}

    state = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    heard = [
        row(rank) | {"status": state, "collective_counts": {"AllReduce": (launched or {}).get(rank, 121)}}
        for rank in range(world)
        if rank not in missing
    ]
    lost = [row(rank) | {"status": {"unresponsive": True, "considered_dead": False}} for rank in missing]
    comm = {
        "hash": "0x27a079b828ff1a75",
        "size": world,
        "ranks_count": len(heard),
        "missing_ranks_count": len(lost),
        "ranks": heard,
        "missing_ranks": lost,
    }
    answer = {
        "nccl_version": "2.28.9",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-09-21 14:25:00",
        "communicators_count": 1,
        "communicators": [comm],
        "ras": {"collection_time_sec": 0.004, "timeouts_count": len(lost)},
    }
    return {"ras.json": json.dumps(answer, indent=2).encode()}
