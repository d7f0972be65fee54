"""Every kind of failure that a line can tell of: one row each, with all that follows from the kind.

A kind is added by its row here and by what finds it (a wording, a source): its accusation, its sentence and its next
step are read from the row by everything else. Whether one line is only an effect of another failure is the line's
(`Failure.effect`), not the kind's.
"""

from __future__ import annotations

from enum import Flag, auto

from hangscope.verdict_words import CauseKind, Word


class Trait(Flag):
    """What is true of some kinds."""

    NONE = 0
    MISSING = auto()
    """Names ranks that did not come."""
    TAKEN_TWICE = auto()
    """Names what two processes took, and only one can have."""
    OF_NODE = auto()
    """Shared by all ranks of a node, or of a pod."""
    ENGINE = auto()
    """What an inference engine says of itself."""
    WAITED = auto()
    """Tells of a wait without an end."""
    END = auto()
    """How a process ends; as an effect it explains nothing."""
    TAKEN_AWAY = auto()
    """Why a process is gone that did nothing wrong itself."""
    WARNING = auto()
    """May be a warning, which a job outlives. A process that ended did end, whatever others print later."""
    BEFORE_RECORDING = auto()
    """Happens before the first collective, where no recorder sees it."""
    OPEN_END = auto()
    """Does not say what became of the job: a launcher that stopped ranks may have done so because the job hung."""
    MACHINE = auto()
    """Of a machine, whatever its ranks do."""
    BROKEN_NODE = auto()
    """The machine is suspect, whoever ran there."""


class FailureKind(Word):
    """`accuses` is what its writer is accused of, UNKNOWN where the line only says that something is wrong. `says` is
    what the accused did, with the line's own `{code}`, `{detail}` and so on. `step` is what to do next, if anything.
    `speaker` is what a line is about that names no rank."""

    accuses: CauseKind
    says: str
    step: str
    traits: Trait
    speaker: str

    def __new__(
        cls, value: str, accuses: CauseKind, says: str, step: str, traits: Trait = Trait.NONE, speaker: str = ""
    ) -> FailureKind:
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.accuses = accuses
        kind.says = says
        kind.step = step
        kind.traits = traits
        kind.speaker = speaker or ("the engine" if Trait.ENGINE in traits else "")
        return kind

    def is_of(self, traits: Trait) -> bool:
        """Whether it has any of these traits."""
        return bool(self.traits & traits)

    CUDA_ERROR = (
        "cuda_error",
        CauseKind.GPU,
        "hit a CUDA error",
        "run with CUDA_LAUNCH_BLOCKING=1 to see the failing call; nvidia-smi -q, dmesg | grep -i xid",
        Trait.END,
    )
    XID = (
        "xid",
        CauseKind.GPU,
        "reports a GPU error{code}",
        "drain the node, then nvidia-smi -q, dmesg | grep -i xid and a GPU reset",
        Trait.WARNING,
    )
    ECC = (
        "ecc",
        CauseKind.GPU,
        "reports a GPU memory error (ECC)",
        "drain the node, then nvidia-smi -q -d ECC,ROW_REMAPPER and a GPU reset",
        Trait.BROKEN_NODE,
    )
    GPU_LOST = (
        "gpu_lost",
        CauseKind.GPU,
        "lost a GPU{gpu}: its driver cannot reach it",
        "drain the node, then nvidia-smi, dmesg | grep -i -E 'xid|nvrm' and a restart of the node",
        Trait.BROKEN_NODE,
    )
    GPU_OOM = (
        "gpu_oom",
        CauseKind.DEAD,
        "ran out of GPU memory",
        "reduce the batch or sequence length on this rank; check whether its data is larger than the others'",
    )
    HOST_OOM = (
        "host_oom",
        CauseKind.DEAD,
        "ran out of host memory and was killed",
        "dmesg | grep -i oom on the node; reduce its memory use or its data loader workers",
        Trait.TAKEN_AWAY,
    )
    SIGNAL = (
        "signal",
        CauseKind.DEAD,
        "ended by {code}",
        "dmesg | grep -i -E 'oom|xid|segfault' on the node, the scheduler's log",
        Trait.END,
    )
    EXIT = (
        "exit",
        CauseKind.DEAD,
        "ended with {code}",
        "read its log up to the first error",
        Trait.END,
    )
    """A non-zero status in a launcher's words."""
    EXCEPTION = (
        "exception",
        CauseKind.DEAD,
        "ended with an exception",
        "read its log up to the first error",
        Trait.END,
    )
    """A death notice without a traceback."""
    PROCESS_DIED = (
        "process_died",
        CauseKind.DEAD,
        "died",
        "read its log up to the end, and dmesg on its node: what ended it is not in the line",
        Trait.END,
    )
    """A process that is gone, by those who watched it, who do not know how it ended."""
    NCCL_SYSTEM_ERROR = (
        "nccl_system_error",
        CauseKind.NETWORK,
        "got a system or network error from NCCL",
        "NCCL_DEBUG=INFO names the interface; check that it is up and that peers can reach it",
        Trait.WARNING,
    )
    NCCL_REMOTE_ERROR = (
        "nccl_remote_error",
        CauseKind.UNKNOWN,
        "lost a peer: its process exited, or the network failed",
        "find the rank that exited first: its log, its exit status, dmesg on its node",
    )
    NCCL_INTERNAL_ERROR = (
        "nccl_internal_error",
        CauseKind.UNKNOWN,
        "got an internal error from NCCL",
        "",
        Trait.WARNING,
    )
    NODE_RESOURCE = (
        "node_resource",
        CauseKind.DEAD,
        "could not get shared memory, a queue or an interface from its node",
        "df -h /dev/shm and ulimit -l, -n there; in containers --shm-size or --ipc=host",
        Trait.WARNING,
    )
    """Memory, queues or interfaces that a node did not give."""
    IB_ERROR = (
        "ib_error",
        CauseKind.NETWORK,
        "got an InfiniBand completion error{code}",
        "ibstat, rdma statistic and the switch port's counters on both ends",
        Trait.WARNING,
    )
    SOCKET_ERROR = (
        "socket_error",
        CauseKind.NETWORK,
        "lost a network connection",
        "find the peer that went away, then check the network between the two nodes",
        Trait.WARNING,
    )
    WAIT_TIMEOUT = (
        "wait_timeout",
        CauseKind.UNKNOWN,
        "timed out waiting for its peers",
        "find the rank that did not come: the other ranks' logs, and stacks (py-spy dump --pid)",
        Trait.WAITED | Trait.WARNING,
    )
    STORE_TIMEOUT = (
        "store_timeout",
        CauseKind.UNKNOWN,
        "timed out waiting for a store key{store}",
        "find the rank that never set the key: it is late, or exited, before this point",
        Trait.WAITED | Trait.WARNING | Trait.BEFORE_RECORDING,
    )
    STORE_UNREACHABLE = (
        "store_unreachable",
        CauseKind.UNKNOWN,
        "could not connect to the store",
        "check that the process at MASTER_ADDR is running and that this node can reach MASTER_PORT",
        Trait.BEFORE_RECORDING,
    )
    RENDEZVOUS_TIMEOUT = (
        "rendezvous_timeout",
        CauseKind.UNKNOWN,
        "timed out in the rendezvous",
        "check which node did not start, and whether all can reach MASTER_ADDR and MASTER_PORT",
        Trait.BEFORE_RECORDING,
    )
    INIT_TIMEOUT = (
        "init_timeout",
        CauseKind.UNKNOWN,
        "timed out waiting for the other ranks to join{joined}",
        "check which rank or node did not start, and whether all can reach MASTER_ADDR and MASTER_PORT",
        Trait.WAITED | Trait.WARNING | Trait.BEFORE_RECORDING,
    )
    """A job that never got together ("clients joined 1/3")."""
    HEARTBEAT_STUCK = (
        "heartbeat_stuck",
        CauseKind.UNKNOWN,
        "reports a watchdog stuck in a CUDA or NCCL call, or waiting for the GIL",
        "",
        Trait.WAITED | Trait.WARNING,
    )
    MISMATCH = (
        "mismatch",
        CauseKind.MISMATCH,
        "made a different call than the others",
        "compare the calls of the named ranks with the others'",
    )
    """What PyTorch itself reported: a fingerprint, the desync report."""
    SAME_GPU = (
        "same_gpu",
        CauseKind.MISMATCH,
        "share a GPU{node} that only one of them can use",
        (
            "give each rank a GPU of its own: CUDA_VISIBLE_DEVICES and torch.cuda.set_device(local_rank), or as many "
            "tasks per node as it has GPUs"
        ),
        Trait.TAKEN_TWICE,
    )
    """What two processes took that one can have (`ranks`: in NCCL's own numbering)."""
    SAME_RANK = (
        "same_rank",
        CauseKind.MISMATCH,
        "registered as {ranks}, and only one can",
        "give each process a rank of its own: see RANK, NODE_RANK (--node-rank), and old processes",
        Trait.TAKEN_TWICE,
    )
    """What two processes took that one can have (`ranks`: in NCCL's own numbering)."""
    MISSING_RANKS = (
        "missing_ranks",
        CauseKind.ABSENT,
        "never joined",
        "find out what the named ranks are doing instead",
        Trait.MISSING | Trait.WAITED,
    )
    """What PyTorch itself reported: the desync report, a monitored barrier."""
    NEVER_SEEN = (
        "never_seen",
        CauseKind.ABSENT,
        "was never seen; the others are waiting for it",
        (
            "find out why it did not start or exited at once; or lower world_size (WORLD_SIZE, --ntasks) to what is "
            "started"
        ),
        Trait.MISSING | Trait.WAITED,
    )
    """By all nodes' agents: ranks of which no process was seen."""
    ELSEWHERE = (
        "elsewhere",
        CauseKind.ABSENT,
        "looks for the others at a different address; they are waiting for it",
        "give all ranks the same MASTER_ADDR and MASTER_PORT, or init_method",
        Trait.MISSING | Trait.WAITED,
    )
    """By all nodes' agents: ranks that wait at another address."""
    LAUNCHER_KILL = (
        "launcher_kill",
        CauseKind.UNKNOWN,
        "was stopped by the launcher",
        "",
        Trait.OPEN_END,
    )
    LAUNCHER_SIGNAL = (
        "launcher_signal",
        CauseKind.UNKNOWN,
        "received {code} and stopped its workers{sender}",
        "",
        Trait.OPEN_END,
    )
    """A launcher that got a signal (`code`: minus its number)."""
    CANCELLED = (
        "cancelled",
        CauseKind.UNKNOWN,
        "ended the job: {detail}",
        "",
        Trait.OPEN_END,
    )
    """A job that the scheduler ended (`detail`: why)."""
    LEFT_RUNNING = (
        "left_running",
        CauseKind.ABSENT,
        "was still running when the others had exited",
        "find out what it was doing: its stack (py-spy dump --pid), its own log",
        Trait.WAITED,
    )
    """A task that was still there when the others had given up."""
    NOT_STARTED = (
        "not_started",
        CauseKind.DEAD,
        "could not start its program ({detail})",
        "install it there, or load the environment (module, conda, venv) in what each node runs",
        Trait.BEFORE_RECORDING,
    )
    """A program that a launcher did not find."""
    EVICTED = (
        "evicted",
        CauseKind.DEAD,
        "was evicted by its node: {detail}",
        "kubectl describe pod; raise the request or limit that it exceeded, or write to a volume",
        Trait.OF_NODE | Trait.TAKEN_AWAY,
    )
    """A pod that its node no longer wanted."""
    POD_PENDING = (
        "pod_pending",
        CauseKind.DEAD,
        "never started: {detail}",
        "kubectl describe pod: too few nodes or GPUs, a quota, an image or a volume that cannot be had",
        Trait.BEFORE_RECORDING,
    )
    """A pod that never started."""
    POD_STOPPED = (
        "pod_stopped",
        CauseKind.DEAD,
        "was ended from outside: deleted, drained or preempted",
        "kubectl get events, and the nodes' (kubectl describe node): who deleted it, or drained its node?",
        Trait.TAKEN_AWAY | Trait.BEFORE_RECORDING,
    )
    """A pod that was deleted or drained."""
    ENGINE_WAITS = (
        "engine_waits",
        CauseKind.UNKNOWN,
        "waits for its workers ({detail})",
        "is a worker still loading, compiling or tuning? If not, py-spy dump --pid of each worker",
        Trait.ENGINE | Trait.WARNING | Trait.OPEN_END,
    )
    """What an inference engine says of itself."""
    ENGINE_STUCK = (
        "engine_stuck",
        CauseKind.UNKNOWN,
        "completed no step ({detail})",
        "py-spy dump --pid of each worker while it is stuck: the one not in a collective is holding it up",
        Trait.ENGINE | Trait.WAITED,
    )
    """What an inference engine says of itself."""
    KV_TRANSFER = (
        "kv_transfer",
        CauseKind.UNKNOWN,
        "lost or gave up a transfer of the KV cache ({detail})",
        "look at the engine at the other end (its log, a restart) and at the network between the two",
        Trait.ENGINE | Trait.WARNING | Trait.OPEN_END,
    )
    JIT_LOCK = (
        "jit_lock",
        CauseKind.UNKNOWN,
        "waits for the lock of a JIT cache ({detail})",
        (
            "find who builds on that node (ninja, nvcc, hipcc, cicc in ps): it holds the lock; if nobody does, the "
            "lock is left over from a build that was killed: delete the file"
        ),
        Trait.ENGINE | Trait.WARNING | Trait.OPEN_END,
    )
    GPU_CORE = (
        "gpu_core",
        CauseKind.UNKNOWN,
        "had a core of its GPU written, which ends what runs there",
        "",
        Trait.WARNING | Trait.OPEN_END,
    )
    ACTOR_DIED = (
        "actor_died",
        CauseKind.DEAD,
        "died",
        "read worker-*-PID.err and .out of it in Ray's session folder, and dmesg on its node",
    )
    """An actor of Ray's."""
    PORT_ERRORS = (
        "port_errors",
        CauseKind.NETWORK,
        "has counted errors: {detail}",
        "reseat or swap the port's cable or transceiver; ibqueryerrors after perfquery -R shows new errors",
        Trait.OPEN_END,
        "the fabric",
    )
    """What ports of the fabric have counted."""
    NODE_LOST = (
        "node_lost",
        CauseKind.DEAD,
        "went down with its node",
        "the scheduler's log and the node's health checks",
        Trait.BROKEN_NODE,
    )
    NODE_FAILED = (
        "node_failed",
        CauseKind.DEAD,
        "failed, and the job with it",
        "the scheduler's log and the node's health checks; exclude it from the next start (--exclude)",
        Trait.OF_NODE | Trait.BROKEN_NODE | Trait.MACHINE,
    )
    """A whole node, by the scheduler's word."""
    NODE_SILENT = (
        "node_silent",
        CauseKind.DEAD,
        "ran on a node that has gone silent",
        "check whether the node is up (ping, the scheduler's log); exclude it from the next start (--exclude)",
        Trait.OF_NODE | Trait.BROKEN_NODE,
    )
    """A node whose agent stopped writing and whose machine does not answer, by the other nodes' agents."""
    AGENT_SILENT = (
        "agent_silent",
        CauseKind.UNKNOWN,
        "stopped reporting ({detail})",
        "find out what became of `hangscope run` there (killed, stopped, no file system) and of its ranks",
    )
    """The same where the machine answers, or could not be asked: only the agent is known to be gone."""
    PORT_TAKEN = (
        "port_taken",
        CauseKind.DEAD,
        "could not listen on {detail}: another process is using it",
        (
            "give each job a port of its own (--rdzv-endpoint HOST:PORT, MASTER_PORT), by its job id where nodes are "
            "shared; or kill processes left over from an earlier run"
        ),
        Trait.BEFORE_RECORDING,
        "a process",
    )
    """A port on which another process listens."""
    HEARTBEAT_LOST = (
        "heartbeat_lost",
        CauseKind.DEAD,
        "stopped sending heartbeats{gpu}",
        "its own log and exit status, dmesg on its node, the scheduler's events (preemption, eviction)",
    )
    RESTARTED = (
        "restarted",
        CauseKind.DEAD,
        "restarted while the job ran",
        "its log before the restart, and the scheduler's events: who restarted it alone?",
    )
    COORDINATOR_LOST = (
        "coordinator_lost",
        CauseKind.UNKNOWN,
        "lost its connection to {detail}",
        "read the log of process 0, and check that this node can reach it",
    )
    CONTACT_LOST = (
        "contact_lost",
        CauseKind.UNKNOWN,
        "can no longer be reached by {detail}",
        "check whether the node is up, dmesg there (out of memory), and the network to it",
        Trait.MACHINE,
    )
    GPU_HANG = (
        "gpu_hang",
        CauseKind.GPU,
        "hung a GPU{gpu}",
        "dmesg and the driver's log on the node; reset the GPU or restart the node before it is used again",
    )
    DEVICE_BUSY = (
        "device_busy",
        CauseKind.DEAD,
        "could not start its communication: an earlier process may still hold the device",
        "end processes of earlier runs on that device (npu-smi info), wait ten seconds, and start again",
    )
    HANG_REPORTED = (
        "hang_reported",
        CauseKind.UNKNOWN,
        "reports a hang ({detail})",
        "read the report above and below the line: it lists what each worker was doing",
        Trait.WAITED | Trait.WARNING,
        "the job's runtime",
    )
    MEMORY_HELD = (
        "memory_held",
        CauseKind.UNKNOWN,
        "held memory: {detail}",
        "look at the processes that held the most memory, not only at the one that was killed",
        Trait.WARNING | Trait.OPEN_END,
        "a process",
    )
    NODE_NOT_READY = (
        "node_not_ready",
        CauseKind.UNKNOWN,
        "is not ready{gpu}",
        "kubectl describe node, and the logs of its kubelet and its container runtime",
        Trait.MACHINE | Trait.WARNING | Trait.OPEN_END,
    )
    NODE_REBOOTED = (
        "node_rebooted",
        CauseKind.DEAD,
        "rebooted",
        "find out why: journalctl -b -1 -e, ipmitool sel list; exclude it from the next start",
        Trait.MACHINE,
    )
    STORAGE_LOST = (
        "storage_lost",
        CauseKind.UNKNOWN,
        "lost {detail}",
        "check the file system's server and the network to it; processes that read or write there wait",
        Trait.MACHINE | Trait.WARNING | Trait.OPEN_END,
    )
    SHORT_TIMEOUT = (
        "short_timeout",
        CauseKind.UNKNOWN,
        "gave up after a timeout that is set to {detail}",
        "raise the timeout (init_process_group(timeout=…), --ddp_timeout): healthy operations take longer",
    )
    OTHER = (
        "other",
        CauseKind.UNKNOWN,
        "reports a failure",
        "",
        Trait.WAITED | Trait.WARNING,
    )
