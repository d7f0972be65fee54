"""What the ranks print when a job hangs: PyTorch's watchdog in the words of each version, and Python's tracebacks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np

from hangscope.simulate.files.dump_contents import DumpContents
from hangscope.simulate.files.dump_formats import NCCL_OF_TORCH
from hangscope.simulate.program.training_sites import Site, count
from hangscope.simulate.record.recorded_rows import INNER, RecordedCall
from hangscope.simulate.record.ring_contents import COMPLETED
from hangscope.simulate.spec.job_layout import GroupDef
from hangscope.simulate.spec.job_spec import Spec

_WATCHDOG_LINE = {
    2: 523,
    3: 563,
    4: 607,
    5: 616,
    6: 629,
    7: 632,
    8: 685,
    9: 683,
    10: 688,
    11: 689,
    12: 757,
    13: 730,
    14: 741,
    15: 738,
}
"""Line of ProcessGroupNCCL.cpp that prints "Watchdog caught" in the PyPI wheel of torch 2.x."""

_WORK_TYPES = {
    "all_reduce": "ALLREDUCE",
    "all_reduce_barrier": "ALLREDUCE",
    "broadcast": "BROADCAST",
    "reduce": "REDUCE",
    "_all_gather_base": "_ALLGATHER_BASE",
    "_reduce_scatter_base": "_REDUCE_SCATTER_BASE",
    "all_to_all": "ALLTOALL_BASE",
    "send": "SEND",
    "recv": "RECV",
    "coalesced": "COALESCED",
    "ALLGATHER_coalesced": "ALLGATHER",
    "REDUCE_SCATTER_coalesced": "REDUCE_SCATTER",
}

_CAUSE = (
    "This is most likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks, the order of "
    "collectives is not same for all ranks or the scheduled collective, for some reason, didn't run. Additionally, "
    "this can be caused by GIL deadlock or other reasons such as network errors or bugs in the communications library "
    "(e.g. NCCL), etc. "
)


@dataclass(frozen=True, slots=True)
class Membership:
    """A group as one of its ranks knows it: by its own number, and with its rank in it."""

    group: GroupDef
    pg_id: int
    group_rank: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """The oldest operation of one group that a rank waits for."""

    member: Membership
    site: Site
    seq: int
    created_ns: int
    enqueued: int
    completed: int

    def work(self, timeout_ms: int) -> str:
        kind = _WORK_TYPES.get(self.site.name, self.site.name.upper())
        return (
            f"WorkNCCL(SeqNum={self.seq}, OpType={kind}, NumelIn={count(self.site.inputs)}, "
            f"NumelOut={count(self.site.outputs)}, Timeout(ms)={timeout_ms})"
        )


def overdue(spec: Spec, dump: DumpContents, memberships: dict[int, Membership]) -> list[Overdue]:
    """What one rank waits for, oldest first. `memberships`: by role."""
    ring = dump.ring
    found: dict[int, Overdue] = {}
    parts = np.array([call.kind == INNER for call in ring.calls])[ring.call]
    for row in reversed(np.flatnonzero((ring.state != COMPLETED) & ~parts).tolist()):
        call = ring.calls[int(ring.call[row])]
        enqueued, _, completed = ring.status[call.role]
        found[call.role] = Overdue(
            member=memberships[call.role],
            site=call.site,
            seq=_work_number(spec, call, int(ring.seq[row]), int(ring.p2p_seq[row])),
            created_ns=int(ring.created_ns[row]),
            enqueued=enqueued,
            completed=completed,
        )
    return sorted(found.values(), key=lambda work: work.created_ns)


def _work_number(spec: Spec, call: RecordedCall, seq: int, p2p_seq: int) -> int:
    """The sequence number under which the watchdog speaks of an operation."""
    if spec.minor < 4:
        return seq + p2p_seq
    transfer = call.p2p or call.site.name == "coalesced"
    return p2p_seq if transfer else seq


class RankLog:
    """The lines of one rank, in order."""

    def __init__(self, spec: Spec, rank: int, first_group_rank: int) -> None:
        """`first_group_rank`: the rank's number in the group that it used first; PyTorch up to 2.13 puts that one
        into every line about an operation, whichever group it belongs to."""
        self.spec = spec
        self.rank = rank
        self._first_group_rank = first_group_rank
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def _log(self, at_ns: int, line: int, text: str, severity: str = "E") -> None:
        """A line of PyTorch's own: `line` is where in ProcessGroupNCCL.cpp it is printed."""
        stamp = " "
        if self.spec.minor >= 4:
            at = datetime.fromtimestamp(at_ns // 10**9, timezone.utc)
            stamp = f"{at.month * 100 + at.day} {at:%H:%M:%S}.{at_ns % 10**9:09d} "
        self.say(f"[rank{self.rank}]:[{severity}{stamp}ProcessGroupNCCL.cpp:{line}] {text}")

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    # ---- prefixes ----------------------------------------------------------------------------------------------------

    def _group_prefix(self, work: Overdue) -> str:
        name = work.member.group.name
        rank = work.member.group_rank
        desc = _shown(work.member.group)
        if self.spec.minor <= 2:
            return f"[Rank {rank}] "
        if self.spec.minor == 3:
            return f"[PG {name} Rank {rank}] "
        if self.spec.minor == 4:
            return f"[PG {name} {desc} Rank {rank}] " if desc else f"[PG {name} Rank {rank}] "
        return f"[PG ID {work.member.pg_id} PG GUID {name}{desc} Rank {rank}] "

    def _work_prefix(self, work: Overdue) -> str:
        if self.spec.minor < 14:
            return f"[Rank {self._first_group_rank}] "
        group = work.member.group
        return f"[PG GUID {group.name}{_shown(group)} Rank {work.member.group_rank}] "

    # ---- events ------------------------------------------------------------------------------------------------------

    def timed_out(self, work: Overdue, at_ns: int) -> None:
        spec = self.spec
        if spec.hooked:
            who = f"[TC][rank={self.rank}][name={work.member.group.name}] "
            why = "timeout - timeout watchdog detected operation timeout"
            self.say(f"{who}Aborting process on rank {self.rank} due to {why}")
            self.say(f"{who}Waiting 15000ms for health check and flight recorder dump before aborting")
            return
        line = _WATCHDOG_LINE[spec.minor]
        timeout_ms = int(spec.timeout_s * 1000)
        ran = (at_ns - work.created_ns) // 1_000_000
        self._log(
            at_ns,
            line,
            f"{self._work_prefix(work)}Watchdog caught collective operation timeout: "
            f"{work.work(timeout_ms)} ran for {ran} milliseconds before timing out.",
        )
        self._detected(work, at_ns + 170_000, line)

    def lost_peer(self, work: Overdue, at_ns: int, peer: str) -> None:
        """NCCL noticed that a process at the other end of a connection is gone."""
        spec = self.spec
        line = _WATCHDOG_LINE[spec.minor] - 77
        name = "NCCL error: remote process exited or there was a network error"
        self._log(
            at_ns,
            line,
            f"{self._work_prefix(work)}Collective {work.work(int(spec.timeout_s * 1000))} "
            f"raised the following async exception: {name}, NCCL version {NCCL_OF_TORCH[spec.minor]}",
        )
        self.say(
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
        )
        self.say("Last error:")
        self.say(f"socketProgress: Connection closed by remote peer {peer}")
        self._detected(work, at_ns + 900_000, line)

    def _detected(self, work: Overdue, at_ns: int, line: int) -> None:
        """The line with the group's counters, and from 2.6 on the stack of the call."""
        if self.spec.minor >= 6:
            self._failure_detected(work, at_ns, line)
            return
        if self.spec.minor < 3:
            return
        said = "Exception (either an error or timeout) detected by watchdog at work"
        if self.spec.minor == 3:
            said = "Timeout at NCCL work"
        self._log(
            at_ns,
            line + 1180,
            f"{self._group_prefix(work)}{said}: {work.seq}, last enqueued NCCL work: "
            f"{work.enqueued}, last completed NCCL work: {work.completed}.",
        )

    def _failure_detected(self, work: Overdue, at_ns: int, line: int) -> None:
        self._log(
            at_ns,
            line + 1614,
            f"{self._group_prefix(work)} failure detected by watchdog at work "
            f"sequence id: {work.seq} PG status: last enqueued work: {work.enqueued}, last completed work: "
            f"{work.completed}",
        )
        if self.spec.stacks:
            frames = "".join(
                f"#{number} {name} from {file}:{at}\n" for number, (name, file, at) in enumerate(work.site.frames)
            )
            self._log(at_ns, line + 44, f"Stack trace of the failed collective: \n{frames}")

    def dumps(self, own: Overdue, at_ns: int, signalled_by: int) -> None:
        """The monitor's lines while the dump is written. `own`: the default group's status on this rank."""
        minor = self.spec.minor
        if self.spec.hooked or minor < 3:
            return
        line = _WATCHDOG_LINE[minor] + 1160
        self._dump_signal(own, at_ns, signalled_by, line)
        options = ""
        if minor > 5:
            options = " Include stack trace: 1"
        if minor >= 10:
            options += ", only active collectives: 0"
        self._log(
            at_ns + 200_000,
            line - 221,
            f"{self._group_prefix(own)}ProcessGroupNCCL preparing to dump debug info.{options}",
        )

    def _dump_signal(self, own: Overdue, at_ns: int, signalled_by: int, line: int) -> None:
        """Who asked for the dump."""
        minor = self.spec.minor
        group = self._group_prefix(own)
        mine = signalled_by == self.rank
        counters = f"Last enqueued NCCL work: {own.enqueued}, last completed NCCL work: {own.completed}."
        if minor < 5:
            if minor == 3:
                source = "timeout signal from this local rank" if mine else "global timeout from another rank"
            else:
                source = "dump signal from this local rank" if mine else f"global dump signal from rank {signalled_by},"
            self._log(at_ns, line, f"{group}Received a {source} and will start to dump the debug info. {counters}")
            return
        if not mine:
            self._log(
                at_ns - 130_000,
                line,
                f"{group}Observed flight recorder dump signal from another rank via TCPStore.",
            )
        source = "this local rank" if mine else f" rank {signalled_by}"
        self._log(
            at_ns,
            line + 65,
            f"{group}Received a dump signal due to a collective timeout from "
            f"{source} and we will try our best to dump the debug info. {counters}{_CAUSE}",
        )

    def ends(self, own: Overdue, at_ns: int) -> None:
        """The watchdog takes the process down."""
        minor = self.spec.minor
        if self.spec.hooked:
            return
        if minor >= 5:
            group = self._group_prefix(own)
            self._log(
                at_ns,
                _WATCHDOG_LINE[minor] + 964,
                f"{group}{group}Terminating the process after "
                "attempting to dump debug info, due to collective timeout or exception.",
                severity="F",
            )
            return
        line = _WATCHDOG_LINE[minor] + 14
        self._log(
            at_ns,
            line,
            f"{self._work_prefix(own)}Some NCCL operations have failed or timed out. Due "
            "to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on "
            "corrupted/incomplete data.",
        )
        self._log(
            at_ns,
            line + 6,
            f"{self._work_prefix(own)}To avoid data inconsistency, we are taking the entire process down.",
        )

    def raised(self, site: Site, at_ns: int) -> None:
        """An uncaught exception on the way to a call: the traceback as torch prints it, with the rank in front."""
        frames = [frame for frame in reversed(site.frames) if frame[1].startswith("/workspace")]
        lines = ["Traceback (most recent call last):"]
        for name, file, line in frames:
            lines += [f'  File "{file}", line {line - 2}, in {name}', "    batch = next(batches)"]
        lines.append("ValueError: bad sample: index 1183 out of range")
        for text in lines:
            self.say(f"[rank{self.rank}]: {text}")
        self.left(at_ns)

    def left(self, at_ns: int) -> None:
        """The interpreter ended by itself."""
        if self.spec.minor >= 4:
            line = _WATCHDOG_LINE[self.spec.minor] + 886
            self._log(
                at_ns,
                line,
                "Warning: WARNING: destroy_process_group() was not called before "
                "program exit, which can leak resources. For more info, please see "
                "https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())",
                severity="W",
            )


def _shown(group: GroupDef) -> str:
    return "" if group.desc == "undefined" else f"({group.desc})"
