"""What is saved of a node's processes and their waits: nodes/<host>/waits/processes.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = "hangscope.waits/1"
FOLDER = "waits"
KIND = "waits"
KEY = "the key "
"""How the words on a key of PyTorch's store begin."""
DATABASE = "postgres: "
"""How the processes of a Postgres server that serve clients begin their titles."""


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that a wait is about, and who could end it."""

    kind: str
    """tcp, udp, unix, pipe, fifo, eventfd, lock, futex, semaphore, queue, child, file, mount, listen, timer, inotify,
    title, other"""
    what: str
    """An address, a path, a name: what people know it by."""
    pids: tuple[int, ...] = ()
    """Processes of this node that hold its other end, or hold the lock."""
    sure: str = ""
    """How the pids are known: inode, lock, owner, parent, accept (it is in their queue of connections), and less surely
    mapping, last, listens, address, device, title; empty where there are none."""
    fd: int | None = None
    local: str = ""
    """Of a socket: our address, so that another node's table can be asked for the other end."""
    peer: str = ""
    state: str = ""
    """Of a TCP connection, as the kernel names it."""
    unread: int | None = None
    """Bytes that have arrived at the other end and that nobody has read there; None where that end is not seen."""
    gone: bool = False
    """The other end does not exist any more: nobody on this machine can end the wait."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A thread that was in the same call of the kernel at both looks."""

    pid: int
    thread: int
    name: str
    """The thread's own name."""
    call: str
    targets: tuple[Target, ...]
    any_of: bool = False
    """One of several would do: poll, select, epoll."""
    timed: bool = False
    """The call ends by itself after a time."""
    woke: int = 0
    """How often the thread was given a core between the looks: one that polls is, one that is blocked is not."""
    main: bool = False
    place: str = ""
    """Of a thread that runs Python: the innermost function that is no library's, and its line."""
    idles: bool = False
    """Whether it is in a call in which Python's queues and loops wait for work: a pool's thread, a server's loop."""
    says: str = ""
    """What the program itself says that it waits for: a key of a store, the path of a request, whose answer."""


@dataclass(frozen=True, slots=True)
class SeenProcess:
    """A process of the job, or one that the job waits for."""

    pid: int
    parent: int
    name: str
    command: str
    state: str
    threads: int
    cpu_s: float
    """Seconds of CPU that it used between the looks, with its threads."""
    rank: int | None = None
    visible: bool = True
    """Whether the kernel let us see its threads' calls."""
    listens: tuple[str, ...] = ()
    sockets: tuple[tuple[str, str], ...] = ()
    """(local, peer) of its TCP connections, for other nodes to find their other ends."""


@dataclass(frozen=True, slots=True)
class NodeWaits:
    processes: tuple[SeenProcess, ...] = ()
    waits: tuple[Wait, ...] = ()
    between_s: float = 0.0
    not_visible: int = 0
    """Processes whose descriptors the kernel did not show: the other end of a wait may be with one of them."""
    cut: str = ""
    """What was left out, where there was more than is looked at."""
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}
