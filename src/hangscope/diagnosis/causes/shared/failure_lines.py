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
from hangscope.model import AFTER_HANG, CONTAINER, Failure
from hangscope.text import numbered, sentence, short

_SHOWN = 4
MISSING_RANKS = ("missing_ranks", "never_seen", "elsewhere")
"""Failures that name ranks which did not come."""
LEFT_RUNNING = "left_running"
"""A task that was still there when the others had given up."""
ENGINE = ("engine_waits", "engine_stuck")
"""What an inference engine says of itself."""
TAKEN_TWICE = ("same_gpu", "same_rank")
"""Failures that name what two processes took, and only one can have."""

_WHAT = {
    "cuda_error": "hit a CUDA error",
    "xid": "reports a GPU error{code}",
    "ecc": "reports a GPU memory error (ECC)",
    "gpu_lost": "lost a GPU{gpu}, which its driver does not reach",
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
    "store_timeout": "waited in vain for a key of the store{store}",
    "store_unreachable": "could not connect to the store",
    "rendezvous_timeout": "waited in vain in the rendezvous",
    "init_timeout": "waited in vain for the other ranks to join{joined}",
    "heartbeat_stuck": "reports a watchdog that got stuck in a CUDA or NCCL call, or without the GIL",
    "mismatch": "called something else than the others",
    "missing_ranks": "did not come",
    "never_seen": "was never seen, and the others wait for it",
    "elsewhere": "looks elsewhere for the others, who wait for it",
    "launcher_kill": "got stopped by the launcher",
    "launcher_signal": "got {code} and ended its workers{sender}",
    "cancelled": "ended the job: {detail}",
    LEFT_RUNNING: "was still running when the others had exited",
    "not_started": "could not start its program ({detail})",
    "evicted": "got evicted by its node: {detail}",
    "port_errors": "has counted errors: {detail}",
    "engine_waits": "waits for its workers ({detail})",
    "engine_stuck": "got no step done ({detail})",
    "actor_died": "died",
    "node_lost": "ended with its node",
    "node_failed": "failed, and the job with it",
    "port_taken": "could not listen on {detail}: another process has it",
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
    "not_started": "install it there, or load the environment (module, conda, venv) in what each node runs",
    "evicted": "kubectl describe pod; raise the request or limit that it went beyond, or write to a volume",
    "engine_waits": "see whether a worker still loads, compiles or tunes; if not, py-spy dump --pid of each worker",
    "engine_stuck": "py-spy dump --pid of each worker, while it stands: who is outside of all collectives holds it up",
    "actor_died": "read worker-*-PID.err and .out of it in Ray's session folder, and dmesg on its node",
    "same_gpu": (
        "give each rank a GPU of its own: CUDA_VISIBLE_DEVICES and torch.cuda.set_device(local_rank), or as many tasks "
        "a node as it has GPUs"
    ),
    "same_rank": "give each process a rank of its own: see RANK, NODE_RANK (--node-rank), and what an old start left",
    "port_errors": "reseat or change the cable or transceiver of the port; ibqueryerrors after perfquery -R shows news",
    "node_lost": "the scheduler's log and the node's health checks",
    "node_failed": "the scheduler's log and the node's health checks; leave it out of the next start (--exclude)",
    "port_taken": (
        "give each job a port of its own (--rdzv-endpoint HOST:PORT, MASTER_PORT), by its job id where nodes are "
        "shared; or end what an old start left"
    ),
    LEFT_RUNNING: "see what it was doing: its stack (py-spy dump --pid), its own log",
}
"""What to do next, by the failure."""
_NOT_RECORDED = (
    *ENGINE,
    "store_timeout",
    "store_unreachable",
    "rendezvous_timeout",
    "init_timeout",
    "not_started",
    "port_taken",
)
"""Failures before the first collective, or around those of an engine, which no recorder sees: a recording has nothing
to add."""


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


_SENDERS = {
    -1: ": its terminal or ssh session was closed",
    -2: ": somebody pressed Ctrl-C",
    -15: ": a scheduler or a person ended the job",
}
"""Who sends the signal that a launcher got."""
_LAST_STEPS = {
    -1: "start it where no terminal is needed: tmux, setsid or a scheduler; nohup does not help, as torchrun listens "
    "to SIGHUP itself",
    -2: "see who or what sent it",
    -15: "ask the scheduler why it ended the job: its time limit, preemption, scancel, the pod's events",
}
_CANCELLED = {
    "": "scancel, or a rule of the scheduler",
    AFTER_HANG: "it hung (--on-hang kill)",
    "time limit": "its time limit was reached",
    "preemption": "it was preempted",
}
"""Why Slurm cancels a job, by its own word."""
_AFTER_TIME_LIMIT = (
    "see whether the job still made progress: if so, raise --time or checkpoint on #SBATCH --signal=B:USR1@120; "
    "if not, it hung"
)


def was_signalled(failure: Failure) -> bool:
    """Whether somebody outside ended the job: the scheduler, or a signal that the launcher got or passes on."""
    return failure.kind in ("launcher_signal", "cancelled") or _passes_signal_on(failure)


def _passes_signal_on(failure: Failure) -> bool:
    """Whether a launcher sends what it only gets from outside."""
    return failure.kind == "launcher_kill" and failure.code in (-1, -2)


def failure_words(case: Case, accusation: Accusation[FailureLines]) -> Words:
    failure = accusation.facts.first
    ranks = accusation.ranks
    who, what = _who_and_what(case, accusation)
    operation = (
        accusation.accused[0].operation if accusation.accused else numbered(failure.operation or "", failure.seq)
    )
    did = f"{what} in {operation}" if operation else what
    if failure.effect and accusation.kind is CauseKind.UNKNOWN and not was_signalled(failure):
        did += ": an effect, the cause is not in this evidence"
    text = f"{did}{_around(failure) if not ranks else ''}{_peer(failure, did)}"
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
    if failure.kind in TAKEN_TWICE:
        return _taken_twice(accusation.facts.lines, failure.kind)
    return case.names.ranks(ranks) if ranks else _whose(case, failure), _what(failure)


def _what(failure: Failure) -> str:
    joined = f" ({failure.detail} did)" if failure.detail else ""
    store = f" at {failure.detail}" if failure.detail and failure.peer_node else ""
    gpu = f" ({failure.detail})" if failure.detail else ""
    detail = _why_cancelled(failure) if failure.kind == "cancelled" else failure.detail or short(failure.text, 120)
    sender = _SENDERS.get(failure.code or 0, "")
    kind = "launcher_signal" if _passes_signal_on(failure) else failure.kind
    return _WHAT[kind].format(code=_code(failure), joined=joined, store=store, detail=detail, sender=sender, gpu=gpu)


def _why_cancelled(failure: Failure) -> str:
    reason = failure.detail or ""
    return _CANCELLED.get(reason, reason)


def _taken_twice(lines: Sequence[Failure], kind: str) -> tuple[str, str]:
    """(which ranks, what they took twice); each set of ranks on one GPU together."""
    if kind == "same_rank":
        ranks = sorted({rank for line in lines if line.kind == kind for rank in line.ranks})
        return "several processes", f"came as {ranks_text(ranks)}, and only one can be"
    together: dict[tuple[str | None, str | None], set[int]] = {}
    for line in lines:
        if line.kind == kind:
            together.setdefault((line.node, line.detail), set()).update(line.ranks)
    who = " and ".join("/".join(map(str, sorted(ranks))) for ranks in list(together.values())[:_SHOWN])
    node = next((f" of {node}" for node, _ in together if node), "")
    return f"ranks {who}", f"share a GPU{node} that only one of them can use"


def _steps(case: Case, accusation: Accusation[FailureLines], who: str) -> list[str]:
    failure = accusation.facts.first
    if failure.kind == "cancelled" and failure.detail == "time limit":
        return [_AFTER_TIME_LIMIT]
    if failure.detail == AFTER_HANG:
        return ["diagnose what was saved then: the log names the incident's directory"]
    if was_signalled(failure):
        return [_LAST_STEPS.get(failure.code or 0, _LAST_STEPS[-15])]
    step = _STEP.get(failure.kind)
    steps = link_steps(case, accusation.way) or ([f"{who}: {step}"] if step else [])
    if failure.kind in _NOT_RECORDED and steps:
        return steps
    if not case.job.dumps and not case.job.under_run:
        return [SWITCH_ON, *steps] if accusation.kind is CauseKind.UNKNOWN else [*steps, SWITCH_ON]
    return steps or [COLLECT]


def _around(failure: Failure) -> str:
    one = len(failure.ranks) == 1 and failure.rank is None
    return f" (around rank {failure.ranks[0]})" if one else ""


def _peer(failure: Failure, said: str) -> str:
    peer = failure.peer_node
    if failure.peer_rank is not None and failure.peer_rank not in failure.ranks:
        peer = f"rank {failure.peer_rank}"
    return f" (peer {peer})" if peer is not None and peer not in said else ""


def _code(failure: Failure) -> str:
    """An exit status with the signal behind it; other numbers as they are."""
    code = failure.code
    if failure.kind not in ("signal", "exit", "launcher_signal", "launcher_kill"):
        return "" if code is None else f" {code}"
    if code is None:
        return "a failure" if failure.kind == "exit" else "a signal"
    number = -code if code < 0 else code - 128
    known = number in signal.valid_signals() and (code < 0 or code > 128)
    name = signal.Signals(number).name if known else ""
    if code < 0 and name:
        return name
    return f"exit status {code} ({name})" if name else f"exit status {code}"


def _device(failure: Failure) -> str | None:
    """What a line is about that is no process: a scheduler, a launcher, a GPU, an actor, a pod."""
    if failure.kind == "cancelled":
        return "hangscope" if failure.detail == AFTER_HANG else "Slurm"
    if was_signalled(failure):
        return "the launcher"
    if failure.kind == "actor_died":
        return f"the Ray actor {failure.detail} (pid {failure.pid}){_on_node(failure)}"
    if failure.kind == "evicted":
        return f"the pod {failure.node}" if failure.node else "a pod"
    if failure.rank is not None:
        return None
    if failure.kind == "node_failed":
        return f"node {failure.node}" if failure.node else "a node"
    if failure.kind == "gpu_lost":
        return failure.node or "a node"
    if failure.kind == "xid" and failure.detail:
        return f"GPU {failure.detail}{_on_node(failure)}"
    return failure.detail if failure.detail == CONTAINER else _NOT_A_PROCESS.get(failure.kind)


_NOT_A_PROCESS = {"port_errors": "the fabric", "port_taken": "a process", **dict.fromkeys(ENGINE, "the engine")}


def _on_node(failure: Failure) -> str:
    return f" on {failure.node}" if failure.node is not None else ""


def _whose(case: Case, failure: Failure) -> str:
    """Whose line it is, as far as it says."""
    node = _on_node(failure)
    pid = f", pid {failure.pid}" if failure.pid is not None else ""
    if (device := _device(failure)) is not None:
        return device
    if failure.rank is not None:
        return case.names.ranks([failure.rank]) + ("" if failure.rank in case.job.nodes else node) + pid
    if failure.local_rank is not None:
        return f"local rank {failure.local_rank}{node or ' of a node that the line does not name'}{pid}"
    if failure.pid is not None:
        return f"the process with pid {failure.pid}{node}"
    return f"a process{node}" if node else "a rank that the line does not name"
