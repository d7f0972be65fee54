"""Accusations that rest on lines of failure in logs: what they say about who, where and what, and how that is said."""

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hangscope.diagnosis.accusation import Accusation, Accused, Doubt, Grounds
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Words
from hangscope.diagnosis.causes.shared.advice import COLLECT, FIND_AGENT, SWITCH_ON
from hangscope.diagnosis.causes.shared.port_steps import link_steps
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.findings import quoted
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind
from hangscope.model import AFTER_HANG, CONTAINER, PREEMPTION, TIME_LIMIT, Failure
from hangscope.text import numbered, sentence, short

_SHOWN = 4
MISSING_RANKS = ("missing_ranks", "never_seen", "elsewhere")
"""Failures that name ranks which did not come."""
LEFT_RUNNING = "left_running"
"""A task that was still there when the others had given up."""
ENGINE = ("engine_waits", "engine_stuck", "kv_transfer", "jit_lock")
"""What an inference engine says of itself."""
OF_A_NODE = ("node_silent", "node_failed", "evicted")
"""Failures that every rank of a node, or of a pod, shares."""
TAKEN_TWICE = ("same_gpu", "same_rank")
"""Failures that name what two processes took, and only one can have."""

_WHAT = {
    "cuda_error": "hit a CUDA error",
    "xid": "reports a GPU error{code}",
    "ecc": "reports a GPU memory error (ECC)",
    "gpu_lost": "lost a GPU{gpu}: its driver cannot reach it",
    "gpu_oom": "ran out of GPU memory",
    "host_oom": "ran out of host memory and was killed",
    "signal": "ended by {code}",
    "exit": "ended with {code}",
    "exception": "ended with an exception",
    "nccl_system_error": "got a system or network error from NCCL",
    "nccl_remote_error": "lost a peer: its process exited, or the network failed",
    "nccl_internal_error": "got an internal error from NCCL",
    "node_resource": "could not get shared memory, a queue or an interface from its node",
    "ib_error": "got an InfiniBand completion error{code}",
    "socket_error": "lost a network connection",
    "wait_timeout": "timed out waiting for its peers",
    "store_timeout": "timed out waiting for a store key{store}",
    "store_unreachable": "could not connect to the store",
    "rendezvous_timeout": "timed out in the rendezvous",
    "init_timeout": "timed out waiting for the other ranks to join{joined}",
    "heartbeat_stuck": "reports a watchdog stuck in a CUDA or NCCL call, or waiting for the GIL",
    "mismatch": "made a different call than the others",
    "missing_ranks": "never joined",
    "never_seen": "was never seen; the others are waiting for it",
    "elsewhere": "looks for the others at a different address; they are waiting for it",
    "launcher_kill": "was stopped by the launcher",
    "launcher_signal": "received {code} and stopped its workers{sender}",
    "cancelled": "ended the job: {detail}",
    LEFT_RUNNING: "was still running when the others had exited",
    "not_started": "could not start its program ({detail})",
    "evicted": "was evicted by its node: {detail}",
    "pod_pending": "never started: {detail}",
    "pod_stopped": "was ended from outside: deleted, drained or preempted",
    "port_errors": "has counted errors: {detail}",
    "engine_waits": "waits for its workers ({detail})",
    "engine_stuck": "completed no step ({detail})",
    "kv_transfer": "lost or gave up a transfer of the KV cache ({detail})",
    "jit_lock": "waits for the lock of a JIT cache ({detail})",
    "gpu_core": "had a core of its GPU written, which ends what runs there",
    "actor_died": "died",
    "node_lost": "went down with its node",
    "node_failed": "failed, and the job with it",
    "node_silent": "ran on a node that has gone silent",
    "agent_silent": "stopped reporting ({detail})",
    "port_taken": "could not listen on {detail}: another process is using it",
    "heartbeat_lost": "stopped sending heartbeats{gpu}",
    "restarted": "restarted while the job ran",
    "coordinator_lost": "lost its connection to {detail}",
    "contact_lost": "can no longer be reached by {detail}",
    "gpu_hang": "hung a GPU{gpu}",
    "device_busy": "could not start its communication: an earlier process may still hold the device",
    "hang_reported": "reports a hang ({detail})",
    "memory_held": "held memory: {detail}",
    "node_not_ready": "is not ready{gpu}",
    "node_rebooted": "rebooted",
    "storage_lost": "lost {detail}",
    "other": "reports a failure",
}
_STEP = {
    "cuda_error": "run with CUDA_LAUNCH_BLOCKING=1 to see the failing call; nvidia-smi -q, dmesg | grep -i xid",
    "xid": "drain the node, then nvidia-smi -q, dmesg | grep -i xid and a GPU reset",
    "ecc": "drain the node, then nvidia-smi -q -d ECC,ROW_REMAPPER and a GPU reset",
    "gpu_lost": "drain the node, then nvidia-smi, dmesg | grep -i -E 'xid|nvrm' and a restart of the node",
    "gpu_oom": "reduce the batch or sequence length on this rank; check whether its data is larger than the others'",
    "host_oom": "dmesg | grep -i oom on the node; reduce its memory use or its data loader workers",
    "signal": "dmesg | grep -i -E 'oom|xid|segfault' on the node, the scheduler's log",
    "exit": "read its log up to the first error",
    "exception": "read its log up to the first error",
    "nccl_system_error": "NCCL_DEBUG=INFO names the interface; check that it is up and that peers can reach it",
    "nccl_remote_error": "find the rank that exited first: its log, its exit status, dmesg on its node",
    "node_resource": "df -h /dev/shm and ulimit -l, -n there; in containers --shm-size or --ipc=host",
    "ib_error": "ibstat, rdma statistic and the switch port's counters on both ends",
    "socket_error": "find the peer that went away, then check the network between the two nodes",
    "store_unreachable": "check that the process at MASTER_ADDR is running and that this node can reach MASTER_PORT",
    "store_timeout": "find the rank that never set the key: it is late, or exited, before this point",
    "rendezvous_timeout": "check which node did not start, and whether all can reach MASTER_ADDR and MASTER_PORT",
    "init_timeout": "check which rank or node did not start, and whether all can reach MASTER_ADDR and MASTER_PORT",
    "mismatch": "compare the calls of the named ranks with the others'",
    "missing_ranks": "find out what the named ranks are doing instead",
    "elsewhere": "give all ranks the same MASTER_ADDR and MASTER_PORT, or init_method",
    "never_seen": (
        "find out why it did not start or exited at once; or lower world_size (WORLD_SIZE, --ntasks) to what is started"
    ),
    "not_started": "install it there, or load the environment (module, conda, venv) in what each node runs",
    "pod_pending": "kubectl describe pod: too few nodes or GPUs, a quota, an image or a volume that cannot be had",
    "pod_stopped": "kubectl get events, and the nodes' (kubectl describe node): who deleted it, or drained its node?",
    "evicted": "kubectl describe pod; raise the request or limit that it exceeded, or write to a volume",
    "engine_waits": "is a worker still loading, compiling or tuning? If not, py-spy dump --pid of each worker",
    "engine_stuck": "py-spy dump --pid of each worker while it is stuck: the one not in a collective is holding it up",
    "kv_transfer": "look at the engine at the other end (its log, a restart) and at the network between the two",
    "jit_lock": (
        "find who builds on that node (ninja, nvcc, hipcc, cicc in ps): it holds the lock; if nobody does, the lock is "
        "left over from a build that was killed: delete the file"
    ),
    "actor_died": "read worker-*-PID.err and .out of it in Ray's session folder, and dmesg on its node",
    "same_gpu": (
        "give each rank a GPU of its own: CUDA_VISIBLE_DEVICES and torch.cuda.set_device(local_rank), or as many tasks "
        "per node as it has GPUs"
    ),
    "same_rank": "give each process a rank of its own: see RANK, NODE_RANK (--node-rank), and old processes",
    "port_errors": "reseat or swap the port's cable or transceiver; ibqueryerrors after perfquery -R shows new errors",
    "node_lost": "the scheduler's log and the node's health checks",
    "node_failed": "the scheduler's log and the node's health checks; exclude it from the next start (--exclude)",
    "node_silent": (
        "check whether the node is up (ping, the scheduler's log); exclude it from the next start (--exclude)"
    ),
    "agent_silent": FIND_AGENT,
    "port_taken": (
        "give each job a port of its own (--rdzv-endpoint HOST:PORT, MASTER_PORT), by its job id where nodes are "
        "shared; or kill processes left over from an earlier run"
    ),
    LEFT_RUNNING: "find out what it was doing: its stack (py-spy dump --pid), its own log",
    "heartbeat_lost": "its own log and exit status, dmesg on its node, the scheduler's events (preemption, eviction)",
    "restarted": "its log before the restart, and the scheduler's events: who restarted it alone?",
    "coordinator_lost": "read the log of process 0, and check that this node can reach it",
    "contact_lost": "check whether the node is up, dmesg there (out of memory), and the network to it",
    "gpu_hang": "dmesg and the driver's log on the node; reset the GPU or restart the node before it is used again",
    "device_busy": "end processes of earlier runs on that device (npu-smi info), wait ten seconds, and start again",
    "hang_reported": "read the report above and below the line: it lists what each worker was doing",
    "memory_held": "look at the processes that held the most memory, not only at the one that was killed",
    "node_not_ready": "kubectl describe node, and the logs of its kubelet and its container runtime",
    "node_rebooted": "find out why: journalctl -b -1 -e, ipmitool sel list; exclude it from the next start",
    "storage_lost": "check the file system's server and the network to it; processes that read or write there wait",
}
"""What to do next, by the failure."""
_NOT_RECORDED = (
    *ENGINE,
    "store_timeout",
    "store_unreachable",
    "rendezvous_timeout",
    "init_timeout",
    "not_started",
    "pod_pending",
    "pod_stopped",
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
    -2: ": someone pressed Ctrl-C",
    -15: ": a scheduler or a person ended the job",
}
"""Who sends the signal that a launcher got."""
_LAST_STEPS = {
    -1: "start it where no terminal is needed: tmux, setsid or a scheduler; nohup does not help: torchrun handles "
    "to SIGHUP itself",
    -2: "find out who or what sent it",
    -15: "ask the scheduler why it ended the job: its time limit, preemption, scancel, the pod's events",
}
_CANCELLED = {
    "": "scancel, or a rule of the scheduler",
    AFTER_HANG: "it hung (--on-hang kill)",
    TIME_LIMIT: "its time limit was reached",
    PREEMPTION: "it was preempted",
}
"""Why Slurm cancels a job, by its own word."""
_AFTER_TIME_LIMIT = (
    "check whether the job still made progress: if so, raise --time or checkpoint on #SBATCH --signal=B:USR1@120; "
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
        did += ": a symptom; cause unknown"
    text = f"{did}{_around(failure) if not ranks else ''}{_peer(failure, did)}"
    own = {rank: short(line.text, 120) for rank, line in accusation.facts.own.items()}
    return Words(
        headline=f"{ranks_text(ranks) if ranks and failure.kind not in OF_A_NODE else who} {text}",
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
        return ranks_text(failure.ranks) if len(failure.ranks) > 1 else "the ranks", "made different calls"
    if failure.kind in TAKEN_TWICE:
        return _taken_twice(accusation.facts.lines, failure.kind)
    if failure.kind in _GONE_WITH and (failure.kind == "node_silent" or ranks):
        return _gone_with(accusation.facts.lines, failure.kind)
    if failure.kind == "evicted" and ranks:
        return _whose(case, failure), f"{_what(failure)} ({ranks_text(ranks)} ran in it)"
    return case.names.ranks(ranks) if ranks else _whose(case, failure), _what(failure)


_GONE_WITH = {"node_silent": ("has gone silent", "have gone silent"), "node_failed": ("failed", "failed")}
"""What became of nodes, of one and of several, that took their ranks along."""


def _gone_with(lines: Sequence[Failure], kind: str) -> tuple[str, str]:
    """(which nodes, what became of them)."""
    gone = [line for line in lines if line.kind == kind]
    nodes = sorted({line.node for line in gone if line.node is not None})
    ranks = ranks_text(sorted({line.rank for line in gone if line.rank is not None}))
    one, several = _GONE_WITH[kind]
    if len(nodes) == 1:
        return f"node {nodes[0]}", f"{one}, and {ranks} with it"
    return f"nodes {', '.join(nodes[:_SHOWN])}", f"{several}, and {ranks} with them"


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
        return "several processes", f"registered as {ranks_text(ranks)}, and only one can"
    together: dict[tuple[str | None, str | None], set[int]] = {}
    for line in lines:
        if line.kind == kind:
            together.setdefault((line.node, line.detail), set()).update(line.ranks)
    who = " and ".join("/".join(map(str, sorted(ranks))) for ranks in list(together.values())[:_SHOWN])
    node = next((f" of {node}" for node, _ in together if node), "")
    return f"ranks {who}", f"share a GPU{node} that only one of them can use"


def _steps(case: Case, accusation: Accusation[FailureLines], who: str) -> list[str]:
    failure = accusation.facts.first
    if failure.kind == "cancelled" and failure.detail == TIME_LIMIT:
        return [_AFTER_TIME_LIMIT]
    if failure.detail == AFTER_HANG:
        return ["diagnose what was saved at the time: the log names the incident's directory"]
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
    if failure.kind in ("evicted", "pod_pending", "pod_stopped"):
        return f"the pod {failure.node}" if failure.node else "a pod"
    return _machine(failure) if failure.rank is None else None


_OF_A_MACHINE = ("node_failed", "contact_lost", "node_not_ready", "node_rebooted", "storage_lost")
"""Failures of a machine, whatever its ranks do."""


def _machine(failure: Failure) -> str | None:
    """The same of a line that names no rank."""
    if failure.kind == "agent_silent":
        return f"hangscope's agent{_on_node(failure)}"
    if failure.kind in _OF_A_MACHINE:
        return f"node {failure.node}" if failure.node else "a node"
    if failure.kind == "gpu_lost":
        return failure.node or "a node"
    if failure.kind == "xid" and failure.detail:
        return f"GPU {failure.detail}{_on_node(failure)}"
    return failure.detail if failure.detail == CONTAINER else _NOT_A_PROCESS.get(failure.kind)


_NOT_A_PROCESS = {
    "port_errors": "the fabric",
    "port_taken": "a process",
    "storage_lost": "a node",
    "contact_lost": "a node",
    "memory_held": "a process",
    "hang_reported": "the job's runtime",
    **dict.fromkeys(ENGINE, "the engine"),
}


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
    if failure.role is not None:
        return f"{failure.role.says}{node}{pid}"
    if failure.pid is not None:
        return f"the process with pid {failure.pid}{node}"
    return f"a process{node}" if node else "a rank that the line does not name"
