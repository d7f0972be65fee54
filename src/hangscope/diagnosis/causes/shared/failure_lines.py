"""Accusations that rest on lines of failure in logs: what they say about who, where and what, and how that is said."""

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hangscope.diagnosis.accusation import Accusation, Accused, Doubt, Grounds
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Words
from hangscope.diagnosis.causes.shared.advice import COLLECT, SWITCH_ON
from hangscope.diagnosis.causes.shared.port_steps import link_steps
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.findings import quoted
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind
from hangscope.model import Failure
from hangscope.text import numbered, sentence, short

_SHOWN = 4
MISSING_RANKS = ("missing_ranks", "never_seen", "elsewhere")
"""Failures that name ranks which did not come."""

_WHAT = {
    "cuda_error": "hit a CUDA error",
    "xid": "reports a GPU error{code}",
    "ecc": "reports a GPU memory error (ECC)",
    "gpu_lost": "lost a GPU, which its driver does not reach",
    "gpu_oom": "ran out of GPU memory",
    "host_oom": "ran out of host memory and got killed",
    "signal": "ended by {code}",
    "exit": "ended with {code}",
    "exception": "ended with an exception",
    "nccl_system_error": "got a system or network error from NCCL",
    "nccl_remote_error": "lost a peer: that one's process exited, or the network failed",
    "nccl_internal_error": "got an internal error from NCCL",
    "node_resource": "did not get shared memory, a queue or an interface from its node",
    "ib_error": "got an InfiniBand completion error{code}",
    "socket_error": "lost a network connection",
    "wait_timeout": "waited in vain for its peers",
    "store_timeout": "waited in vain for a key of the store",
    "store_unreachable": "could not connect to the store",
    "rendezvous_timeout": "waited in vain in the rendezvous",
    "init_timeout": "waited in vain for the other ranks to join{joined}",
    "heartbeat_stuck": "reports a watchdog that got stuck in a CUDA or NCCL call, or without the GIL",
    "mismatch": "called something else than the others",
    "missing_ranks": "did not come",
    "never_seen": "was never seen, and the others wait for it",
    "elsewhere": "looks elsewhere for the others, who wait for it",
    "launcher_kill": "got stopped by the launcher",
    "node_lost": "ended with its node",
    "other": "reports a failure",
}
_STEP = {
    "cuda_error": "run with CUDA_LAUNCH_BLOCKING=1 to see the failing call; nvidia-smi -q, dmesg | grep -i xid",
    "xid": "drain the node, then nvidia-smi -q, dmesg | grep -i xid and a GPU reset",
    "ecc": "drain the node, then nvidia-smi -q -d ECC,ROW_REMAPPER and a GPU reset",
    "gpu_lost": "drain the node, then nvidia-smi, dmesg | grep -i -E 'xid|nvrm' and a restart of the node",
    "gpu_oom": "lower the batch or the sequence on this rank; see whether its data is larger than the others'",
    "host_oom": "dmesg | grep -i oom on the node; lower its memory or its loaders' workers",
    "signal": "dmesg | grep -i -E 'oom|xid|segfault' on the node, the scheduler's log",
    "exit": "read its own log, up to its first error",
    "exception": "read its own log, up to its first error",
    "nccl_system_error": "NCCL_DEBUG=INFO names the interface; check that it is up and that peers reach it",
    "nccl_remote_error": "look for the rank that ended first: its log, its exit status, dmesg on its node",
    "node_resource": "df -h /dev/shm and ulimit -l, -n there; in containers --shm-size or --ipc=host",
    "ib_error": "ibstat, rdma statistic and the switch port's counters on both ends",
    "socket_error": "look for the peer that went away, then at the network between the two nodes",
    "store_unreachable": "see whether the process behind MASTER_ADDR runs, and whether this node reaches MASTER_PORT",
    "store_timeout": "see which rank never set the key: one that is late, or ended, before this point",
    "rendezvous_timeout": "see which node did not start, and whether all reach MASTER_ADDR and MASTER_PORT",
    "init_timeout": "see which rank or node did not start, and whether all reach MASTER_ADDR and MASTER_PORT",
    "mismatch": "compare the calls of the named ranks with the others'",
    "missing_ranks": "see what the named ranks do instead",
    "elsewhere": "give all ranks the same MASTER_ADDR and MASTER_PORT, or init_method",
    "never_seen": (
        "see why it was not started, or ended at once; or lower world_size (WORLD_SIZE, --ntasks) to what is started"
    ),
    "node_lost": "the scheduler's log and the node's health checks",
}
"""What to do next, by the failure."""


@dataclass(frozen=True, slots=True)
class FailureLines:
    """The lines, the one that it is about first; and each accused rank's own line, where there is one."""

    lines: tuple[Failure, ...]
    own: Mapping[int, Failure] = field(default_factory=dict)

    @property
    def first(self) -> Failure:
        return self.lines[0]


def naming_ranks(
    case: Case, grounds: Grounds, kind: CauseKind, lines: Sequence[Failure], named: Collection[tuple[int, ...]]
) -> Accusation[FailureLines]:
    """What PyTorch, or the agents, say by name; `named` are the sets of ranks that they name, accused if it is one."""
    ranks = next(iter(named)) if len(named) == 1 else ()
    first = lines[0]
    waits = [wait for wait in case.waits.all if wait.seq == first.seq] or case.waits.all
    wait = max(waits, key=lambda w: len(w.inside), default=None)
    operation = numbered(first.operation or "", first.seq)
    if not operation and wait is not None:
        operation = case.names.wait(wait)
    return Accusation(
        grounds,
        kind,
        FailureLines(tuple(lines)),
        [Accused(rank, kind, operation) for rank in ranks],
        wait,
        doubts=() if ranks else [Doubt.NO_RANK],
        explains=case.waits.all,
        hang=case.hang.says is Says.YES or kind is CauseKind.ABSENT,
    )


# ---- words -----------------------------------------------------------------------------------------------------------


def failure_words(case: Case, accusation: Accusation[FailureLines]) -> Words:
    failure = accusation.facts.first
    ranks = accusation.ranks
    who, what = _who_and_what(case, accusation)
    operation = (
        accusation.accused[0].operation if accusation.accused else numbered(failure.operation or "", failure.seq)
    )
    did = f"{what} in {operation}" if operation else what
    if failure.effect and accusation.kind is CauseKind.UNKNOWN:
        did += ": an effect, the cause is not in this evidence"
    text = f"{did}{_around(failure) if not ranks else ''}{_peer(failure)}"
    own = {rank: short(line.text, 120) for rank, line in accusation.facts.own.items()}
    return Words(
        headline=f"{ranks_text(ranks) if ranks else who} {text}",
        summary=f"{sentence(who)} {text}: {short(failure.text, 240)}",
        why=[quoted(line) for line in accusation.facts.lines[:_SHOWN]],
        each={rank: own.get(rank) or did for rank in ranks},
        steps=_steps(case, accusation, who),
        link=failure.text,
    )


def _who_and_what(case: Case, accusation: Accusation[FailureLines]) -> tuple[str, str]:
    failure = accusation.facts.first
    ranks = accusation.ranks
    if failure.kind == "mismatch" and not ranks:
        return ranks_text(failure.ranks) if len(failure.ranks) > 1 else "the ranks", "called different things"
    joined = f" ({failure.detail} did)" if failure.detail else ""
    what = _WHAT[failure.kind].format(code=_code(failure), joined=joined)
    return case.names.ranks(ranks) if ranks else _whose(case, failure), what


def _steps(case: Case, accusation: Accusation[FailureLines], who: str) -> list[str]:
    step = _STEP.get(accusation.facts.first.kind)
    steps = link_steps(case, accusation.way) or ([f"{who}: {step}"] if step else [])
    if not case.job.dumps and not case.job.under_run:
        return [SWITCH_ON, *steps] if accusation.kind is CauseKind.UNKNOWN else [*steps, SWITCH_ON]
    return steps or [COLLECT]


def _around(failure: Failure) -> str:
    one = len(failure.ranks) == 1 and failure.rank is None
    return f" (around rank {failure.ranks[0]})" if one else ""


def _peer(failure: Failure) -> str:
    peer = failure.peer_node
    if failure.peer_rank is not None and failure.peer_rank not in failure.ranks:
        peer = f"rank {failure.peer_rank}"
    return f" (peer {peer})" if peer is not None else ""


def _code(failure: Failure) -> str:
    """An exit status with the signal behind it; other numbers as they are."""
    code = failure.code
    if failure.kind not in ("signal", "exit"):
        return "" if code is None else f" {code}"
    if code is None:
        return "a signal" if failure.kind == "signal" else "a failure"
    number = -code if code < 0 else code - 128
    known = number in signal.valid_signals() and (code < 0 or code > 128)
    name = signal.Signals(number).name if known else ""
    if code < 0 and name:
        return name
    return f"exit status {code} ({name})" if name else f"exit status {code}"


def _whose(case: Case, failure: Failure) -> str:
    """Whose line it is, as far as it says."""
    node = f" on {failure.node}" if failure.node is not None else ""
    pid = f", pid {failure.pid}" if failure.pid is not None else ""
    if failure.rank is not None:
        return case.names.ranks([failure.rank]) + ("" if failure.rank in case.job.nodes else node) + pid
    if failure.local_rank is not None:
        return f"local rank {failure.local_rank}{node or ' of a node that the line does not name'}{pid}"
    if failure.pid is not None:
        return f"the process with pid {failure.pid}{node}"
    return f"a process{node}" if node else "a rank that the line does not name"
