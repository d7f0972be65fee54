"""What is known about a job, with no trace of how it was stored: no I/O, no formats, no judgement.

Ranks are always global ranks. Times are nanoseconds since the epoch on the clock of the rank's own node.
The operations are columns (`Operations`), because a large job has tens of millions of them; `job.ops[i]` gives one as
a small typed object for people who script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

UNKNOWN = -1
"""In integer columns: the file does not say."""


class State(IntEnum):
    """How far one rank got with one operation it launched, normalised over backends by the reader."""

    UNKNOWN = 0
    SCHEDULED = 1
    STARTED = 2
    COMPLETED = 3


class Kind(IntEnum):
    """What an entry is. BATCH closes a coalesced batch; the entries inside share its `batch` number."""

    COLLECTIVE = 0
    SEND = 1
    RECV = 2
    BATCH = 3


@dataclass(frozen=True, slots=True)
class Source:
    """Where a fact was read: a file, as the user named it, and a place in it (``line 12``, ``entries[17]``)."""

    file: str
    place: str = ""

    def __str__(self) -> str:
        return f"{self.file} {self.place}".strip()


@dataclass(frozen=True, slots=True)
class Gap:
    """Evidence that should be there and is not, or that cannot be trusted. Never an accusation by itself."""

    what: str
    why: str = ""
    rank: int | None = None
    node: str | None = None
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a Python (or C++) stack."""

    name: str
    filename: str
    line: int

    def __str__(self) -> str:
        return f"{self.filename}:{self.line} {self.name}"


@dataclass(frozen=True, slots=True)
class Group:
    """A process group. Identity is name and member set; `members` is None where no file says who belongs to it.

    `members` is in group order: position is the group-local rank. `members_seen` marks members learnt from other ranks'
    entries and not from a table of members.
    """

    index: int
    name: str
    desc: str
    members: tuple[int, ...] | None
    backend: str = ""
    members_seen: bool = False
    open: tuple[int, ...] = ()
    """Ranks without a dump that may belong to it as well, where members were learnt from the dumps."""
    numbered: bool = False
    """Whether the dumps name no groups (torch 2.2, 2.3), so that `name` is only a process's own count of its groups."""

    def is_called(self, name: str | None) -> bool:
        """Whether a log that says `name` means this group. Only the default group's number is everywhere the same."""
        return self.name == name and (name == "0" or not self.numbered)

    @property
    def label(self) -> str:
        """The name people know: the description where there is one, otherwise the name."""
        if self.desc and self.desc != "undefined":
            return self.desc
        return f"group {self.name}" if self.name else "default group"


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One rank's own counters for one group (`pg_status`). -1 = none yet; None = not said.

    They count collectives and point-to-point batches on one scale for NCCL, and op ids for nccl2 (`counts_op_ids`), so
    they support a conclusion but never carry one.
    """

    last_enqueued: int | None
    last_started: int | None
    last_completed: int | None
    counts_op_ids: bool = False


@dataclass(frozen=True, slots=True)
class Dump:
    """One flight recorder dump as it was read.

    `records` entries were read; `first_record` > 0 means that the ring wrapped, or was too large to keep, and older
    history is gone.
    `timing` says whether the state STARTED can be seen at all. `complete` is False for a truncated or damaged file.
    `has_stacks` is False where the writer left the frames out.
    """

    rank: int
    file: str
    version: str
    backend: str
    library_version: str
    records: int
    first_record: int
    timing: bool
    has_stacks: bool
    complete: bool = True
    node: str | None = None
    role: str = "dump"
    """"dump", or "poll" for the last answer of a live poll, which lists unfinished operations only."""

    @property
    def wrapped(self) -> bool:
        return self.first_record > 0


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of `Operations`, for people."""

    row: int
    rank: int
    group: Group
    kind: Kind
    name: str
    seq: int
    p2p_seq: int
    op_id: int
    record_id: int
    state: State
    retired: bool | None
    created_ns: int | None
    started_ns: int | None
    completed_ns: int | None
    duration_ms: float | None
    size_bytes: int | None
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    frames: tuple[Frame, ...]
    thread: str
    timeout_ms: int | None
    source: int | None
    destination: int | None
    batch: int | None

    @property
    def title(self) -> str:
        """As people say it: ``all_reduce #16``, ``send 0->1``."""
        return _title(self.kind, self.name, self.seq, self.source, self.destination)


def _title(kind: int, name: str, seq: int, source: int | None, destination: int | None) -> str:
    if kind == Kind.SEND:
        return f"send {_or(source)}->{_or(destination)}"
    if kind == Kind.RECV:
        return f"recv {_or(destination)}<-{_or(source)}"
    return f"{name} #{seq}"


def _or(rank: int | None) -> str:
    return "?" if rank is None or rank == UNKNOWN else str(rank)


Shapes = tuple[tuple[int, ...], ...]

COLUMNS: Mapping[str, str] = {
    "rank": "i4",
    "group": "i4",  # index into Job.groups
    "kind": "i1",  # Kind
    "name": "i4",  # id in Tables.names; without the library's prefix ("nccl:") and without peers
    "seq": "i8",  # collective sequence number of the group at that moment
    "p2p_seq": "i8",
    "op_id": "i8",
    "record_id": "i8",  # counts over all groups of one process: never comparable across ranks
    "state": "i1",  # State
    "retired": "i1",  # 1, 0, -1 unknown
    "created_ns": "i8",
    "started_ns": "i8",
    "completed_ns": "i8",
    "duration_ms": "f4",  # NaN unknown
    "size_bytes": "i8",  # of the inputs; of the outputs where there is no input
    "in_shapes": "i4",  # id in Tables.shapes
    "out_shapes": "i4",
    "in_dtypes": "i4",  # id in Tables.dtypes
    "out_dtypes": "i4",
    "stack": "i4",  # id in Tables.stacks; 0 is the empty stack
    "thread": "i4",  # id in Tables.names
    "timeout_ms": "i8",
    "source": "i4",  # point-to-point only: global rank of the sender, -1 unknown or any
    "destination": "i4",
    "batch": "i4",  # number of the coalesced batch within the rank, -1 outside any
}
"""Every column with its numpy type: 118 bytes an operation, so 33 million operations are about 4 GB."""


class Table:
    """Interned values: each distinct value once, named by a small id. Id 0 is the empty value given at the start."""

    __slots__ = ("_ids", "values")

    def __init__(self, empty: object) -> None:
        self.values: list[object] = [empty]
        self._ids: dict[object, int] = {empty: 0}

    def add(self, value: object) -> int:
        found = self._ids.get(value)
        if found is None:
            found = self._ids[value] = len(self.values)
            self.values.append(value)
        return found

    def __len__(self) -> int:
        return len(self.values)


class Tables:
    """The interned values that the columns point into."""

    __slots__ = ("_dtypes", "_names", "_shapes", "_stacks")

    def __init__(self) -> None:
        self._names = Table("")
        self._shapes = Table(())
        self._dtypes = Table(())
        self._stacks = Table(())

    def add_name(self, value: str) -> int:
        return self._names.add(value)

    def add_shapes(self, value: Shapes) -> int:
        return self._shapes.add(value)

    def add_dtypes(self, value: tuple[str, ...]) -> int:
        return self._dtypes.add(value)

    def add_stack(self, value: tuple[Frame, ...]) -> int:
        return self._stacks.add(value)

    def name(self, index: int) -> str:
        return self._names.values[index]  # type: ignore[return-value]  # one Table class serves four value types

    def shapes(self, index: int) -> Shapes:
        return self._shapes.values[index]  # type: ignore[return-value]

    def dtypes(self, index: int) -> tuple[str, ...]:
        return self._dtypes.values[index]  # type: ignore[return-value]

    def stack(self, index: int) -> tuple[Frame, ...]:
        return self._stacks.values[index]  # type: ignore[return-value]

    @property
    def names(self) -> Sequence[str]:
        return self._names.values  # type: ignore[return-value]

    @property
    def stacks(self) -> Sequence[tuple[Frame, ...]]:
        return self._stacks.values  # type: ignore[return-value]


class Operations:
    """All operations of all ranks as numpy columns, ordered by rank and, within a rank, as they were recorded."""

    __slots__ = ("_groups", "_spans", "columns", "tables")

    def __init__(
        self,
        columns: Mapping[str, npt.NDArray[np.generic]],
        tables: Tables,
        groups: Sequence[Group],
    ) -> None:
        self.columns: dict[str, npt.NDArray[np.generic]] = {
            name: np.asarray(columns[name], dtype=kind) for name, kind in COLUMNS.items()
        }
        self.tables = tables
        self._groups = groups
        rank = self.columns["rank"]
        starts = np.flatnonzero(np.concatenate([[len(self) > 0], rank[1:] != rank[:-1]])[: len(self)])
        ends = [*starts[1:].tolist(), len(self)] if len(starts) else []
        self._spans = {r: slice(a, b) for r, a, b in zip(rank[starts].tolist(), starts.tolist(), ends, strict=True)}

    @classmethod
    def empty(cls) -> Operations:
        return cls({name: np.empty(0, dtype=kind) for name, kind in COLUMNS.items()}, Tables(), ())

    def __len__(self) -> int:
        return len(self.columns["rank"])

    def __iter__(self) -> Iterator[Operation]:
        return (self[row] for row in range(len(self)))

    def column(self, name: str) -> Ints:
        """One column, as stored. All but `duration_ms` are integers."""
        return self.columns[name]  # type: ignore[return-value]  # narrower integers behave alike

    def title(self, row: int) -> str:
        """As people say one operation, without all else that is known of it."""
        kind, name, *numbers = (int(self.columns[c][row]) for c in ("kind", "name", "seq", "source", "destination"))
        return _title(kind, self.tables.name(name), *numbers)

    def span(self, rank: int) -> slice:
        """Where one rank's rows are; empty for a rank without any."""
        return self._spans.get(rank, slice(0, 0))

    def rows(
        self, *, rank: int | None = None, group: int | None = None, kind: Kind | None = None, name: str | None = None
    ) -> Ints:
        """The row numbers that match all the given conditions, in recorded order."""
        if rank is not None and group is None and kind is None and name is None:
            part = self.span(rank)
            return np.arange(part.start, part.stop)
        mask = np.ones(len(self), dtype=bool)
        if rank is not None:
            mask &= self.columns["rank"] == rank
        if group is not None:
            mask &= self.columns["group"] == group
        if kind is not None:
            mask &= self.columns["kind"] == kind
        if name is not None:
            wanted = [i for i, value in enumerate(self.tables.names) if value == name]
            mask &= np.isin(self.columns["name"], wanted)
        return np.flatnonzero(mask)

    def __getitem__(self, row: int) -> Operation:
        c, t = self.columns, self.tables
        row = int(row)

        def known(name: str) -> int | None:
            value = int(c[name][row])
            return None if value == UNKNOWN else value

        def number(name: str) -> int:
            return int(c[name][row])

        duration = float(c["duration_ms"][row])
        retired = number("retired")
        return Operation(
            row=row,
            rank=number("rank"),
            group=self._groups[number("group")],
            kind=Kind(number("kind")),
            name=t.name(number("name")),
            seq=number("seq"),
            p2p_seq=number("p2p_seq"),
            op_id=number("op_id"),
            record_id=number("record_id"),
            state=State(number("state")),
            retired=None if retired == UNKNOWN else bool(retired),
            created_ns=known("created_ns"),
            started_ns=known("started_ns"),
            completed_ns=known("completed_ns"),
            duration_ms=None if duration != duration else duration,
            size_bytes=known("size_bytes"),
            input_shapes=t.shapes(number("in_shapes")),
            output_shapes=t.shapes(number("out_shapes")),
            input_dtypes=t.dtypes(number("in_dtypes")),
            output_dtypes=t.dtypes(number("out_dtypes")),
            frames=t.stack(number("stack")),
            thread=t.name(number("thread")),
            timeout_ms=known("timeout_ms"),
            source=known("source"),
            destination=known("destination"),
            batch=known("batch"),
        )


# ---- facts from everything that is not a dump ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Process:
    """What a launcher, an agent, a log prefix or RAS says about the process of one rank. None = not said.

    `exit_status` is the exit code, or minus the signal. `state` is the kernel's letter (R S D T Z) or "gone".
    `alive_at_end` is True where the source says the process was still there when the evidence was taken.
    `python_answers` is False where the process lives but no Python thread could be made to answer (the GIL is held).
    `syscall` is the call of the kernel that its main thread is in, "running" where it is in none; `syscall_file` what
    that call is about, where it is about a file. `gpu_busy_percent` is how much of the last moments a kernel of anybody
    ran on its GPU.
    `waits_in` is the call of torch.distributed, a store or a work in which it stood still for `stood_s` seconds, over
    several looks; empty where it stood outside all of them. `unanswered` is whether questions to it stayed without
    an answer: False where it answered, or where no companion runs in it to be asked. `moved` is whether it got anywhere
    between two looks.
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
    gpu_busy_percent: float | None = None
    gpu_power_w: float | None = None
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
    group_rank: int | None = None
    """``Rank`` as the line has it: within the group that it names, which is the global rank in the default group."""


GLOO_SIZE = "gloo::EnforceNotMet"
"""The type under which Gloo ends a process that got more bytes than its call asked for."""
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
    """True where the exception only says that the rank waited for others or was told to stop."""
    cause: PythonError | None = None
    """The exception before this one in a chain ("During handling of…", "… was the direct cause of…")."""


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

    `rank_in_comm` and `size` are the communicator's own; `rank` is global where it could be told. `rings` maps channel
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


# ---- the black box: what NCCL's own transfers wait for -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProxyStep:
    """One step of a transfer that is under way. `state` is NCCL's word: SendWait, RecvWait, …; "" before the first."""

    step: int
    state: str
    bytes: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class ProxyOp:
    """One operation's transfers with one neighbour on one channel in one direction.

    `comm` and `op` are serials within the process `pid`, which is another than the box's own where NCCL lets a
    neighbour's proxy send for it (PXN). `rank` and `peer` are ranks of the communicator, not of the job. `ordinal` is
    its number on that link since the communicator was made: the n-th send of one end is the n-th receive of the other.
    """

    serial: int
    comm: int
    op: int
    group: int
    func: str
    seq: int
    pid: int
    rank: int
    peer: int
    channel: int
    sends: bool
    steps: int
    steps_started: int
    steps_done: int
    in_progress: bool
    """Its turn on the connection has come; before that it is queued behind an older one."""
    ordinal: int | None
    state: str
    """"live", "done", or "cut off" where its communicator was destroyed while it ran."""
    started_ns: int
    changed_ns: int
    live: tuple[ProxyStep, ...]
    """The steps under way, oldest first."""


@dataclass(frozen=True, slots=True)
class ProxyLink:
    """Everything that one communicator ever moved to or from one neighbour on one channel."""

    comm: int
    rank: int
    peer: int
    channel: int
    sends: bool
    pid: int
    ops: int
    ops_done: int
    steps_done: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class BlackBoxOp:
    """A collective or point-to-point call as NCCL took it. `enqueued_ns` is None while the call has not come back."""

    serial: int
    group: int
    comm: int
    kind: str
    """"collective", "p2p" or "copy engine"."""
    func: str
    seq: int
    count: int
    datatype: str
    algorithm: str
    protocol: str
    channels: int
    peer: int
    """Root of a collective; a rank of the communicator."""
    started_ns: int
    enqueued_ns: int | None
    proxies: int
    """Transfers over the network that it began; 0 for an operation within NVLink or shared memory."""
    proxies_done: int


@dataclass(frozen=True, slots=True)
class BlackBoxComm:
    """A communicator as NCCL made it. `last` maps each function to the sequence number and time of its last call.

    `hash` is spelt as NCCL's log spells a commId (2.23 and later): 0x65487e75eaedca01.
    """

    serial: int
    hash: str
    rank: int
    size: int
    nodes: int
    name: str
    live: bool
    created_ns: int
    ops: int
    last: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class BlackBox:
    """One process's file. Times are wall-clock ns of its node. `rank` is the job's rank, None where nothing says it."""

    source: Source
    host: str
    pid: int
    rank: int | None
    nccl_version: str
    started_ns: int
    last_event_ns: int | None
    """When anything was last written."""
    alive_ns: int | None
    """The last heartbeat: the process was scheduled then. None where it has no heartbeat."""
    read_ns: int | None
    """When the file was copied or read from the running process; None where nobody noted it."""
    comms: tuple[BlackBoxComm, ...]
    ops: tuple[BlackBoxOp, ...]
    transfers: tuple[ProxyOp, ...]
    links: tuple[ProxyLink, ...]
    dropped: int = 0
    """Events that found no place: what is missing from the tables says nothing then."""
    torn: int = 0
    """Slots that were being written when the file was taken."""


FAILURE_KINDS = (
    "cuda_error",
    "xid",
    "ecc",
    "gpu_lost",
    "gpu_oom",
    "host_oom",
    "signal",
    "exit",
    "exception",
    "nccl_system_error",
    "nccl_remote_error",
    "nccl_internal_error",
    "node_resource",
    "ib_error",
    "socket_error",
    "wait_timeout",
    "store_timeout",
    "store_unreachable",
    "rendezvous_timeout",
    "init_timeout",
    "heartbeat_stuck",
    "mismatch",
    "missing_ranks",
    "never_seen",
    "elsewhere",
    "launcher_kill",
    "node_lost",
    "other",
)
"""Everything that `Failure.kind` may be. "exit" is a non-zero status in a launcher's words, "exception" a death notice
without a traceback, "node_resource" memory, queues or interfaces that a node did not give, "init_timeout" a job that
never got together ("clients joined 1/3"), "mismatch" and "missing_ranks" what PyTorch itself reported (fingerprint,
desync report, monitored barrier), "never_seen" and "elsewhere" what all nodes' agents say of ranks that never came."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One line of any log that says that something failed, as far as its text goes: nothing here is concluded.

    `code` is the exit status, minus the signal, the Xid, or the status of InfiniBand. `ranks` are those that the line
    names beside its writer: lagging, missing or mismatched ranks. `effect` is True where the line only says that its
    rank waited for others, lost them or was stopped: teardown, a launcher's SIGTERM, the watchdog's abort.
    """

    kind: str
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


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt of one job: every rank that is known to exist, and all evidence about it.

    `ranks` is every rank that anything mentions as a member of the job (dumps, group members, rosters, logs, RAS); a
    rank without a dump is in it too. `nodes` maps rank to host name where something says so.
    """

    ops: Operations
    groups: tuple[Group, ...]
    ranks: tuple[int, ...]
    dumps: Mapping[int, tuple[Dump, ...]]
    status: Mapping[tuple[int, int], GroupStatus]
    """(rank, group index) → that rank's own counters for the group."""
    nodes: Mapping[int, str]
    processes: Mapping[int, Process]
    """One merged view per rank of `facts.processes`."""
    facts: Facts
    gaps: tuple[Gap, ...]
    inputs: tuple[str, ...] = ()
    job_id: str | None = None
    attempt: str | None = None
    reason: str | None = None
    """Why the evidence was taken, where an incident's manifest says so: "stall", "rank-exit", "watchdog", …"""
    recovered_s: float | None = None
    """For how long the job stood still, where the manifest says that it went on by itself afterwards."""
    captured_at_ns: int | None = None
    first_kept: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """(rank, group index) → the oldest collective that a wrapped ring still holds; below it nothing is known."""

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @property
    def under_run(self) -> bool:
        """Whether the job's own agent took the evidence: `hangscope run` need not be recommended then."""
        return self.reason in ("stall", "rank-exit", "watchdog", "dump-file")

    def wrapped(self, rank: int) -> bool:
        """Whether that rank's ring lost older entries: what is missing before the oldest kept one says nothing."""
        return any(dump.wrapped for dump in self.dumps.get(rank, ()))
