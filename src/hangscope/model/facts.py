"""What logs, launchers, RAS, stacks and counters say: all facts but the operations of dumps, with their source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hangscope.engine_roles import Role
from hangscope.failure_kinds import FailureKind
from hangscope.model.basics import Frame, Source
from hangscope.model.black_box import BlackBox
from hangscope.model.gpu_kernels import GpuCore
from hangscope.model.ray_cluster import RayCluster
from hangscope.sources.process_waits.schema import NodeWaits


@dataclass(frozen=True, slots=True)
class FileWait:
    """A thread of a rank, or of a process that it started (`pid`), in a call on a file when the evidence was taken.

    `call` is "read", "write", "sync", "open", "stat", "list" or "access". `mount`, `type` and `source` are those of the
    mount that `path` lies in: ``/data``, ``nfs4``, ``server:/export``. `for_s` is for how long it was seen in that one
    call, None where it was seen once: a file system at work looks the same. `main`: it is the process's first thread.
    """

    call: str
    path: str
    pid: int | None = None
    main: bool = True
    mount: str | None = None
    type: str | None = None
    source: str | None = None
    state: str | None = None
    wait_channel: str | None = None
    for_s: float | None = None


OUTLIVED_SIGTERM = "outlived SIGTERM"
"""The state of a process that its launcher could not end by SIGTERM: stopped, in a call of the kernel, or with a
handler of its own that did not come to run. Which of them is not known."""


@dataclass(frozen=True, slots=True)
class Process:
    """What a launcher, an agent, a log prefix or RAS says about the process of one rank. None = not said.

    `exit_status` is the exit code, or minus the signal. `state` is the kernel's letter (R S D T Z), "gone", or
    OUTLIVED_SIGTERM.
    `alive_at_end` is True where the source says the process was still there when the evidence was taken.
    `python_answers` is False where the process lives but no Python thread could be made to answer (the GIL is held).
    `syscall` is the call of the kernel that its main thread is in, "running" where it is in none; `syscall_file` what
    that call is about, where it is about a file. `gpu_busy_percent` is how much of the last moments a kernel of anybody
    ran on its GPU.
    `waits_in` is the call of torch.distributed, a store or a work in which it stood still for `stood_s` seconds, over
    several looks; empty where it stood outside all of them. `unanswered` is whether questions to it stayed without
    an answer: False where it answered, or where no companion runs in it to be asked. `moved` is whether it got anywhere
    between two looks. `works` is whether it was at work while the others waited, by its share of a core or the bytes
    that it reads, writes, sends and receives; `polls` is whether its main thread woke up again and again meanwhile.
    """

    rank: int
    node: str | None = None
    local_rank: int | None = None
    pid: int | None = None
    gpu: str | None = None
    exit_status: int | None = None
    ended_at_s: float | None = None
    alive_at_end: bool | None = None
    state: str | None = None
    wait_channel: str | None = None
    python_answers: bool | None = None
    syscall: str | None = None
    syscall_file: str | None = None
    waits_in: str | None = None
    stood_s: float | None = None
    unanswered: bool | None = None
    moved: bool | None = None
    works: bool | None = None
    polls: bool | None = None
    cpu_share: float | None = None
    io_bytes_per_s: float | None = None
    gpu_busy_percent: float | None = None
    gpu_power_w: float | None = None
    file_waits: tuple[FileWait, ...] | None = None
    role: Role | None = None
    """What it is for its engine."""
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A process of an engine that is no rank: an API server, an engine core. Nobody waits for it in a collective."""

    pid: int
    role: Role
    node: str | None = None
    state: str | None = None
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class WatchdogReport:
    """What PyTorch's watchdog logged on one rank about one group.

    `kind`: "timeout", "async_error" (NCCL reported an error), "cuda_error" (the GPU or its driver did), "status"
    (counters only, for example while answering a dump signal), "gil" (Python did not answer), "watchdog_stuck" (the
    watchdog itself hung, typically inside a CUDA or NCCL call), "desync" (a line of the desync report).
    `seq` and `operation` name the operation that the watchdog complains about.
    """

    rank: int
    kind: str
    source: Source
    at_ns: int | None = None
    group_name: str | None = None
    group_desc: str | None = None
    seq: int | None = None
    operation: str | None = None
    numel_in: int | None = None
    numel_out: int | None = None
    timeout_ms: int | None = None
    elapsed_ms: int | None = None
    last_enqueued: int | None = None
    last_completed: int | None = None
    error: str | None = None
    frames: tuple[Frame, ...] = ()
    signalled_by: int | None = None
    own_timeout: bool = False
    """Whether a line of kind "status" says that a collective of this rank's own timed out; a Python that ended without
    destroy_process_group() may say so too (torch 2.10 and later)."""
    group_rank: int | None = None
    """``Rank`` as the line has it: within the group that it names, which is the global rank in the default group."""


GLOO_SIZE = "gloo::EnforceNotMet"
"""The type under which Gloo ends a process that got more bytes than its call asked for."""


CONTAINER = "a container"
"""What a failure is about whose line only says how a container ended."""


CUT_OFF = "cut off"
"""The type of an exception whose traceback ends before its name: the process, or the paste, ended inside of it."""


FATAL_ERROR = "Fatal Python error"
"""The type of what CPython prints when it ends by a fatal signal or error of its own."""


@dataclass(frozen=True, slots=True)
class PythonError:
    """An exception that ended (or was printed by) one rank, with its frames, outermost first as Python prints them."""

    rank: int | None
    type: str
    message: str
    frames: tuple[Frame, ...]
    source: Source
    at_ns: int | None = None
    node: str | None = None
    consequence: bool = False
    """True where the exception only says that the rank waited for others or was asked to stop."""
    cause: PythonError | None = None
    """The exception before this one in a chain ("During handling of…", "… was the direct cause of…")."""
    code: tuple[str, ...] = ()
    """The line of source that was printed under each frame, empty where none was."""


@dataclass(frozen=True, slots=True)
class TransportEvent:
    """One NCCL warning that speaks of the transport or of a peer.

    `kind`: "completion_error", "async_event", "connection_closed", "connection_error", "connect_failed",
    "size_desync" (the peer sent another size: not a network fault), "cuda_error", "init_mismatch", "other".
    """

    kind: str
    text: str
    source: Source
    rank: int | None = None
    node: str | None = None
    pid: int | None = None
    at_ns: int | None = None
    peer_address: str | None = None
    peer_rank: int | None = None
    hca: str | None = None
    port: int | None = None
    status: int | None = None
    status_name: str | None = None
    fatal: bool | None = None
    peer_node: str | None = None
    """The host behind `peer_address`, where NCCL's logs tell whose address that is."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One directed connection of a communicator as NCCL logged it; ranks are global where known, else None."""

    channel: int
    sender: int | None
    receiver: int | None
    transport: str
    nic: str | None
    side: str
    """"send" or "receive": whose log says so."""
    source: Source
    proxy: int | None = None
    """The rank whose proxy sends for the sender, over its own device (PXN)."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """One rank's part of one NCCL communicator, from its log.

    `rank_in_comm` and `size` are the communicator's own; `rank` is global where it is known. `rings` maps channel
    to (previous, next) and `trees` maps channel to (parent, children), in ranks of the communicator.
    """

    comm_id: str
    rank_in_comm: int
    size: int
    node: str | None
    pid: int | None
    rank: int | None = None
    gpu: str | None = None
    cuda_device: int | None = None
    started: bool = True
    completed: bool = False
    split: bool = False
    started_at_ns: int | None = None
    rings: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    trees: Mapping[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    edges: tuple[Edge, ...] = ()
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class RasRank:
    """One rank of one communicator as NCCL's RAS saw it. `rank` is the communicator's own numbering."""

    rank: int
    host: str | None
    pid: int | None
    counts: Mapping[str, int] = field(default_factory=dict)
    async_error: int | None = None
    aborting: bool = False
    missing: bool = False
    unresponsive: bool = False
    dead: bool = False
    global_rank: int | None = None
    """The rank in the job, where the process could be recognised."""


@dataclass(frozen=True, slots=True)
class RasReport:
    """One communicator in one RAS answer."""

    comm_id: str
    size: int
    ranks: tuple[RasRank, ...]
    source: Source
    at: str | None = None
    largest: int = 0
    """The size of the largest communicator that the same answer knows; in words it details only those with trouble."""


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread's stack, innermost frame first. `sample` numbers captures of the same process (1, 2)."""

    rank: int | None
    pid: int | None
    thread: str
    frames: tuple[Frame, ...]
    source: Source
    main: bool = False
    sample: int = 1
    active: bool | None = None
    node: str | None = None
    outside: bool = False
    """Read out of the process's memory (py-spy), which a stopped process allows too; otherwise the process answered."""
    native: tuple[Frame, ...] = ()
    """The frames of C and C++ inside the innermost Python frame, where they were asked for (py-spy --native)."""
    holds_gil: bool = False
    child: bool = False
    """Of a process that the rank started: a DataLoader's worker, a subprocess. `pid` is that process's."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The ranks of one call of torch.distributed that a rank is in: `src` and `dst` are global ranks.

    `ranks` are those that a new group is made of. None = not said.
    """

    rank: int
    function: str
    source: Source
    sample: int = 1
    src: int | None = None
    dst: int | None = None
    tag: int | None = None
    group: str | None = None
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ClaimedGroup:
    """The members that the recorders of some ranks list for a group of one name: `ranks` are those that say so."""

    name: str
    members: tuple[int, ...]
    ranks: tuple[int, ...]
    source: Source


@dataclass(frozen=True, slots=True)
class CallSite:
    """From where a rank made a call while all was well: what it most likely calls from there in a hang, too.

    A call is (the group's name, the operation, the sizes of its inputs); `before` are the two calls before it.
    """

    rank: int
    call: tuple[str, str, str]
    before: tuple[tuple[str, str, str], ...]
    frames: tuple[Frame, ...]
    source: Source


@dataclass(frozen=True, slots=True)
class CodeLines:
    """Lines of a source file as these ranks had it when their stacks were taken, by their numbers."""

    ranks: tuple[int, ...]
    file: str
    lines: Mapping[int, str]
    source: Source


@dataclass(frozen=True, slots=True)
class KernelMessage:
    """A line of the kernel's log that matters. `kind`: "oom", "xid", "link", "nic", "other"."""

    kind: str
    text: str
    source: Source
    node: str | None = None
    pid: int | None = None
    pci: str | None = None
    device: str | None = None
    code: int | None = None
    at: str | None = None


@dataclass(frozen=True, slots=True)
class CounterChange:
    """How one counter of one network port changed between the job's start and the stall: by `rise`.

    A counter that fell was reset, or has wrapped: `rise` is what it has counted since, the least that it can be.
    """

    node: str
    device: str
    port: int | None
    counter: str
    before: int
    after: int
    source: Source
    seconds: float | None = None
    """Between the two samples."""

    @property
    def reset(self) -> bool:
        return self.after < self.before

    @property
    def rise(self) -> int:
        return self.after if self.reset else self.after - self.before


@dataclass(frozen=True, slots=True)
class NetworkPort:
    """One port of one node's network device: from NCCL's log, the recorder's inventory and the counters' samples.

    `layer` is "IB" or "RoCE"; a network interface has none, and no port number. `sampled` says that its counters were
    read at the start and at the stall: only then does it mean something that one of them did not rise.
    """

    node: str
    device: str
    port: int | None = None
    layer: str | None = None
    lid: int | None = None
    gid: str | None = None
    interface: str | None = None
    pci: str | None = None
    state: str | None = None
    sampled: bool = False

    def __str__(self) -> str:
        return self.device if self.port is None else f"{self.device}:{self.port}"


AFTER_HANG = "hang"
"""Why a job was cancelled that `hangscope run --on-hang kill` ended."""
TIME_LIMIT = "time limit"
PREEMPTION = "preemption"
"""Why a scheduler cancelled a job."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One line of any log that says that something failed, as far as its text goes: nothing here is concluded.

    `code` is the exit status, minus the signal, the Xid, or the status of InfiniBand. `ranks` are those that the line
    names beside its writer: lagging, missing or mismatched ranks. `effect` is True where the line only says that its
    rank waited for others, lost them or was stopped: teardown, a launcher's SIGTERM, the watchdog's abort.
    """

    kind: FailureKind
    text: str
    source: Source
    rank: int | None
    node: str | None
    local_rank: int | None = None
    pid: int | None = None
    peer_rank: int | None = None
    peer_node: str | None = None
    at_ns: int | None = None
    code: int | None = None
    operation: str | None = None
    seq: int | None = None
    group_name: str | None = None
    ranks: tuple[int, ...] = ()
    effect: bool = False
    detail: str | None = None
    beside: tuple[Source, ...] = ()
    """Lines next to it that explain it: the rows of a block, the reason in the line below."""
    role: Role | None = None
    """Which process of an engine wrote it, by the prefix of the line."""
    device: str | None = None
    """The GPU, NPU or network device that the line is about, as its driver calls it."""
    task: str | None = None
    """The task of a runtime that the line is about, where its number is no rank."""
    library: str | None = None
    """Whose wording it is, where that is not PyTorch's or NCCL's."""
    explains: bool = False
    """Whether the line names a peer, a device or a reason: exceptions of its writer behind it follow from it."""


@dataclass(frozen=True, slots=True)
class LogProgress:
    """That one log shows its job moving, up to `source`: steps, epochs, a server's throughput, or an end as planned.

    `first` and `last` are the counters that it shows at its ends. `lines` are the numbers of the lines that show it.
    """

    source: Source
    finished: bool
    lines: tuple[int, ...]
    first: float | None = None
    last: float | None = None

    def outlives(self, source: Source) -> bool:
        """Whether the job moved on after a line of the same log: twice at least, because what fails on one rank leaves
        the others their step; or came to its end."""
        line = source.line
        if source.file != self.source.file or line is None:
            return False
        return sum(number > line for number in self.lines) > (0 if self.finished else 1)


@dataclass(frozen=True, slots=True)
class PrintedVerdict:
    """A verdict of ours that a log repeats. `outcome` and `kind` are words of its JSON, `kind` empty where unsaid."""

    outcome: str
    headline: str
    ranks: tuple[int, ...]
    doubtful: bool
    """Whether its confidence was low."""
    source: Source
    incident: str
    kind: str = ""
    node: str | None = None
    """Where its only culprit ran."""


@dataclass(frozen=True, slots=True)
class LastWord:
    """A line among the last that a program printed, in words of its own: one that speaks of trouble, or, where none
    does, the last.

    `names` is the rank that the line itself speaks of.
    """

    rank: int | None
    text: str
    source: Source
    names: int | None = None
    of_trouble: bool = True


@dataclass(frozen=True, slots=True)
class LogScope:
    """What one log file can testify: who wrote into it, from when to when, and whether it shows beginning and end.

    `from_start` where it shows a process's beginning (a launcher's banner, NCCL's setup) or is a whole file of an
    incident. `to_end` where nothing more can be expected after its last lines. An excerpt has neither, so its silence
    says nothing.
    """

    file: str
    ranks: tuple[int, ...]
    first_ns: int | None
    last_ns: int | None
    from_start: bool
    to_end: bool
    lines: int
    local_time: bool = False
    """Whether its times name no zone: they are some node's own, good for order within the file and not for a clock."""

    @property
    def whole(self) -> bool:
        """Whether its silence says something."""
        return self.from_start and self.to_end


@dataclass(frozen=True, slots=True)
class NodePrograms:
    """What a node's processes wait for."""

    node: str
    waits: NodeWaits
    source: Source


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that logs, launchers, RAS, stacks and counters say."""

    processes: tuple[Process, ...] = ()
    watchdog: tuple[WatchdogReport, ...] = ()
    errors: tuple[PythonError, ...] = ()
    transport: tuple[TransportEvent, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    ras: tuple[RasReport, ...] = ()
    stacks: tuple[ThreadStack, ...] = ()
    sites: tuple[CallSite, ...] = ()
    """What was learnt of the calls in the steps before."""
    calls: tuple[CallArguments, ...] = ()
    """What the calls that ranks are in were given."""
    claimed_groups: tuple[ClaimedGroup, ...] = ()
    """Each group's members as recorders list them: more than one list for a name only where ranks do not agree."""
    code: tuple[CodeLines, ...] = ()
    kernel: tuple[KernelMessage, ...] = ()
    counters: tuple[CounterChange, ...] = ()
    ports: tuple[NetworkPort, ...] = ()
    recorder_off: tuple[Source, ...] = ()
    """Log lines that say the flight recorder was disabled."""
    clean_exits: tuple[tuple[int, Source], ...] = ()
    """Ranks whose log shows that Python ended by itself (destroy_process_group() was not called…)."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """"torch", "nccl", "cuda", "driver", "python", … where something says so."""
    log_ranks: tuple[tuple[int, str], ...] = ()
    """(rank, file) for every log that could be given to a rank."""
    failures: tuple[Failure, ...] = ()
    """Every line of failure, so that "no line of failure anywhere" is one look; tracebacks and watchdog timeouts stand
    in `errors` and `watchdog` alone."""
    logs: tuple[LogScope, ...] = ()
    """What each log file can testify."""
    signs_of_life: Mapping[int, Source] = field(default_factory=dict)
    """Rank → the last line or file that is its own, whatever it says."""
    blackboxes: tuple[BlackBox, ...] = ()
    """One per process that wrote one, the newest of each rank."""
    gpu_cores: tuple[GpuCore, ...] = ()
    """One a rank at most, in the order of their ranks."""
    unknown_texts: tuple[tuple[str, int], ...] = ()
    """(file, lines) of texts in which no line is known, where nothing else was found."""
    progress: tuple[LogProgress, ...] = ()
    """The logs that show their job moving."""
    printed_verdicts: tuple[PrintedVerdict, ...] = ()
    """The last that each log shows."""
    last_words: tuple[LastWord, ...] = ()
    others: tuple[EngineProcess, ...] = ()
    """The processes of an engine that are no ranks."""
    ray: RayCluster | None = None
    """The Ray cluster that the job runs on, where it was captured."""
    programs: tuple[NodePrograms, ...] = ()
    """Of each node, the processes of the job and what they wait for, by the kernel's books."""
    machines: Mapping[str, str] = field(default_factory=dict)
    """Pod → the machine that it ran on, where Kubernetes says so: a verdict's nodes may be pods."""
    quotes: Mapping[Source, str] = field(default_factory=dict)
    """The log lines that facts were read from, as they are there, cut to a length that people read."""

    @property
    def is_a_log_whole(self) -> bool:
        return any(log.whole for log in self.logs)
