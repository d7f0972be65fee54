"""The black box of one process: what NCCL's own transfers wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hangscope.model.basics import Source


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
