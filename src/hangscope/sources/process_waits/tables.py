"""The machine's tables: who holds which socket and pipe, where a socket's other end is, who holds locks.

They are read after the threads' calls, so that a connection that is named there is still found. Sockets of another
network namespace are looked up in the table of a process that lives in it.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hangscope.sources.process_waits import proc

MOST_DESCRIPTORS = 400_000
MOST_OF_A_PROCESS = 100_000
MOST_AT_FIRST = 4096
SECONDS = 1.0
"""Of a core's time, for all descriptors of a node."""
WAIT_S = 8.0
"""For the same on a machine that has no core to give."""
_MOST_TABLE = 64 << 20
_LINK = re.compile(r"(socket|pipe):\[(\d+)\]$")
_STATES = (
    *("", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT"),
    *("LAST_ACK", "LISTEN", "CLOSING", "NEW_SYN_RECV"),
)
LISTEN = "LISTEN"


@dataclass(frozen=True, slots=True)
class Socket:
    """One line of a network namespace's tables."""

    kind: str
    local: str
    peer: str
    state: str
    inode: int
    unread: int
    """Bytes that have arrived and that the process has not read."""
    unsent: int
    """Bytes that the process has written and that the other end has not acknowledged."""


@dataclass(slots=True)
class Tables:
    """Filled as far as it is asked for."""

    holders: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """(socket or pipe, inode) → the (process, descriptor)s that hold it."""
    seen: list[int] = field(default_factory=list)
    """Processes whose descriptors were looked at."""
    not_visible: int = 0
    cut: str = ""
    _links: dict[tuple[int, int], str] = field(default_factory=dict)
    """(process, descriptor) → what it is, of sockets and pipes."""
    fuse: list[tuple[int, int]] = field(default_factory=list)
    """The (process, descriptor)s of file systems in user space."""
    _of_path: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    _namespaces: dict[str, dict[int, Socket]] = field(default_factory=dict)
    _ends: dict[tuple[str, str, str], list[Socket]] = field(default_factory=lambda: defaultdict(list))
    """(tcp or udp, local, peer) → sockets with these addresses, in any namespace that was read."""
    _listening: dict[int, list[Socket]] = field(default_factory=lambda: defaultdict(list))
    _bound: dict[int, list[Socket]] = field(default_factory=lambda: defaultdict(list))
    _unix: dict[int, UnixSocket] | None = None
    _queued: dict[int, int] = field(default_factory=dict)
    _locks: list[Lock] | None = None

    # ---- descriptors -------------------------------------------------------------------------------------------------

    def read_holders(self) -> None:
        """Go through the descriptors of every process that may be seen: of those with very many the first ones, and at
        last the rest, so that none of them keeps us from the others."""
        late: list[tuple[int, list[str]]] = []
        until = time.monotonic() + WAIT_S
        most = time.thread_time() + SECONDS
        count = 0

        def is_over() -> bool:
            return time.monotonic() > until or time.thread_time() > most or count > MOST_DESCRIPTORS

        for pid in proc.pids():
            found = proc.names(f"{pid}/fd")
            if found is None:
                self.not_visible += proc.stat(str(pid)) is not None
                continue
            if is_over():
                self.cut = f"descriptors of process {pid} and those after it were not looked at: there are too many"
                return
            self.seen.append(pid)
            self._take(pid, found[:MOST_AT_FIRST])
            count += len(found[:MOST_AT_FIRST])
            if len(found) > MOST_AT_FIRST:
                late.append((pid, found[MOST_AT_FIRST:MOST_OF_A_PROCESS]))
        for pid, found in late:
            for at in range(0, len(found), MOST_AT_FIRST):
                if is_over():
                    self.cut = f"not all descriptors of process {pid} were looked at: there are too many"
                    return
                self._take(pid, found[at : at + MOST_AT_FIRST])
                count += MOST_AT_FIRST

    def _take(self, pid: int, names: list[str]) -> None:
        for name in names:
            link = proc.link(f"{pid}/fd/{name}")
            match = _LINK.match(link)
            if link == "/dev/fuse":
                self.fuse.append((pid, int(name)))
            elif match:
                self.holders[match[1], int(match[2])].append((pid, int(name)))
                self._links[pid, int(name)] = link

    def link(self, pid: int, fd: int) -> str:
        """What a descriptor is, as the kernel names it."""
        return self._links.get((pid, fd)) or proc.link(f"{pid}/fd/{fd}")

    def held_by(self, kind: str, inode: int) -> tuple[int, ...]:
        return tuple(sorted({pid for pid, _ in self.holders.get((kind, inode), ())}))

    def holders_of_path(self, path: str) -> list[tuple[int, int]]:
        """Who has a FIFO open, by its name: another namespace may call it otherwise, and is then not found."""
        if path not in self._of_path:
            found = self._of_path[path] = []
            for pid in self.seen:
                for name in (proc.names(f"{pid}/fd") or ())[:MOST_OF_A_PROCESS]:
                    if proc.link(f"{pid}/fd/{name}") == path:
                        found.append((pid, int(name)))
        return self._of_path[path]

    # ---- TCP and UDP -------------------------------------------------------------------------------------------------

    def socket_of(self, pid: int, inode: int) -> Socket | None:
        """The line of a socket in the tables of the process's network namespace."""
        return self._namespace(pid).get(inode)

    def read_namespaces(self, pids: tuple[int, ...]) -> None:
        """Those of all these processes: a connection's other end may be in any of them."""
        for pid in pids:
            self._namespace(pid)

    def _namespace(self, pid: int) -> dict[int, Socket]:
        key = proc.link(f"{pid}/ns/net") or f"of {pid}"
        if key not in self._namespaces:
            # Connections that nobody has accepted yet have no inode: there may be many of these.
            lines = [line for kind in _TABLES for line in _lines(pid, kind)]
            self._namespaces[key] = {line.inode: line for line in lines if line.inode}
            for line in lines:
                self._ends[line.kind, line.local, line.peer].append(line)
                if line.state == LISTEN:
                    self._listening[_port(line.local)].append(line)
                elif line.kind == "udp" and line.peer.endswith(":0"):
                    self._bound[_port(line.local)].append(line)
        return self._namespaces[key]

    def other_end(self, line: Socket) -> Socket | None:
        """The socket at the other end of a connection, where it is on this machine."""
        found = self._ends.get((line.kind, line.peer, line.local), ())
        ends = [end for end in found if not end.inode or end.inode != line.inode]
        return ends[0] if len(ends) == 1 else None

    def listens_at(self, address: str) -> list[Socket]:
        """Sockets of this machine that listen at an address, or at its port on all of them."""
        return _at(address, self._listening.get(_port(address), ()))

    def takes_datagrams_at(self, address: str) -> list[Socket]:
        """The same of UDP, whose servers have no connections."""
        return _at(address, self._bound.get(_port(address), ()))

    # ---- file systems ------------------------------------------------------------------------------------------------

    def mount_of(self, pid: int, path: str) -> Mount | None:
        """The mount that a path lies on, by the process's own table: the path itself is not touched."""
        rows = proc.text(f"{pid}/mountinfo", _MOST_MOUNTS).splitlines()
        found = [mount for mount in map(_mount, rows) if mount is not None and _is_below(path, mount.place)]
        return max(found, key=lambda mount: len(mount.place), default=None)

    def serves_mount(self, mount: Mount) -> tuple[tuple[int, ...], str]:
        """The processes that serve a file system in user space, and how they are known: by the number of its
        connection where the kernel tells that (6.18 does), else as the only ones that serve any."""
        number = mount.device.rpartition(":")[2]
        numbers = {(pid, fd): _fuse_connection(pid, fd) for pid, fd in self.fuse}
        those = tuple(sorted({pid for (pid, _), said in numbers.items() if said == number}))
        if those:
            return those, "inode"
        pids = tuple(sorted({pid for (pid, _), said in numbers.items() if not said}))
        return (pids, "device") if len(pids) == 1 else ((), "")

    # ---- Unix sockets, locks -----------------------------------------------------------------------------------------

    def unix(self, inode: int) -> UnixSocket | None:
        if self._unix is None:
            self._unix = {line.inode: line for line in _unix_sockets()}
            self._queued = {client: line.inode for line in self._unix.values() for client in line.waiting}
        return self._unix.get(inode)

    def queue_of(self, inode: int) -> UnixSocket | None:
        """The listening Unix socket in whose queue a connection is that nobody has accepted yet."""
        listens = self._queued.get(inode)
        return self.unix(listens) if listens is not None else None

    def lock_awaited_by(self, pid: int) -> Lock | None:
        """The lock that a process is queued for, with who holds it."""
        if self._locks is None:
            self._locks = list(_awaited_locks())
        return next((lock for lock in self._locks if lock.waiter == pid), None)


_TABLES = ("tcp", "tcp6", "udp", "udp6")


def _lines(pid: int, kind: str) -> Iterator[Socket]:
    for row in proc.text(f"{pid}/net/{kind}", _MOST_TABLE).splitlines()[1:]:
        fields = row.split()
        try:
            state = int(fields[3], 16)
            unsent, _, unread = fields[4].partition(":")
            yield Socket(
                kind=kind.rstrip("6"),
                local=address_text(fields[1]),
                peer=address_text(fields[2]),
                state=_STATES[state] if state < len(_STATES) else "",
                inode=int(fields[9]),
                unread=int(unread, 16),
                unsent=int(unsent, 16),
            )
        except (IndexError, ValueError):
            continue


def address_text(words: str) -> str:
    """``0100007F:1F90`` as ``127.0.0.1:8080``; an IPv4 address in IPv6 as the IPv4 address that it is."""
    host, _, port = words.partition(":")
    raw = b"".join(struct.pack("=I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
    if len(raw) == 16 and raw.startswith(b"\0" * 10 + b"\xff\xff"):
        raw = raw[12:]
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{int(port, 16)}"


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _at(address: str, sockets: Iterable[Socket]) -> list[Socket]:
    host = address.rpartition(":")[0]
    return [line for line in sockets if line.local.rpartition(":")[0] in (host, "0.0.0.0", "[::]")]


# ---- mounts ----------------------------------------------------------------------------------------------------------

_MOST_MOUNTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Mount:
    place: str
    kind: str
    """The file system's type: nfs4, fuse.sshfs, lustre."""
    source: str
    device: str


def _mount(row: str) -> Mount | None:
    """One line of mountinfo: fields, a dash, and the type and source behind it."""
    before, _, behind = row.partition(" - ")
    fields, rest = before.split(), behind.split()
    if len(fields) < 5 or len(rest) < 2:
        return None
    return Mount(_unescaped(fields[4]), rest[0], _unescaped(rest[1]), fields[2])


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(place.rstrip("/") + "/")


def _fuse_connection(pid: int, fd: int) -> str:
    for line in proc.text(f"{pid}/fdinfo/{fd}", 4096).splitlines():
        if line.startswith("fuse_connection:"):
            return line.split()[1]
    return ""


# ---- Unix sockets: only the kernel's socket diagnostics say where the other end is -----------------------------------


@dataclass(frozen=True, slots=True)
class UnixSocket:
    inode: int
    peer: int | None
    name: str
    listens: bool
    unread: int | None
    waiting: tuple[int, ...] = ()
    """Of one that listens: the other ends of the connections that nobody has accepted."""


_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_DONE, _ERROR = 3, 2
_SHOW = 0x1 | 0x4 | 0x8 | 0x10  # names, peers, connections not accepted, lengths of queues
_NAME, _PEER, _WAITING, _QUEUES = 0, 2, 3, 4
_LISTENING = 10
_MOST_ANSWERS = 4096


def _unix_sockets() -> Iterator[UnixSocket]:
    """Those of our own network namespace; none where the kernel has no socket diagnostics."""
    body = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW, 0xFFFFFFFF, 0xFFFFFFFF)
    head = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(1.0)
            kernel.sendto(head + body, (0, 0))
            for _ in range(_MOST_ANSWERS):
                answer = kernel.recv(1 << 16)
                for kind, message in _messages(answer):
                    if kind in (_DONE, _ERROR):
                        return
                    yield _unix_socket(message)
    except OSError:
        return


def _messages(answer: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 16 <= len(answer):
        size, kind = struct.unpack_from("=IH", answer, at)
        if size < 16:
            return
        yield kind, answer[at + 16 : at + size]
        at += -(-size // 4) * 4


def _unix_socket(message: bytes) -> UnixSocket:
    _, _, state, _, inode = struct.unpack_from("=BBBBI", message)
    at = 16
    parts: dict[int, bytes] = {}
    while at + 4 <= len(message):
        size, kind = struct.unpack_from("=HH", message, at)
        if size < 4:
            break
        parts[kind] = message[at + 4 : at + size]
        at += -(-size // 4) * 4
    peer = struct.unpack("=I", parts[_PEER])[0] if len(parts.get(_PEER, b"")) == 4 else None
    queues = parts.get(_QUEUES, b"")
    name = parts.get(_NAME, b"").rstrip(b"\0").replace(b"\0", b"@").decode("utf-8", "replace")
    listens = state == _LISTENING
    unread = struct.unpack_from("=I", queues)[0] if len(queues) == 8 else None
    clients = parts.get(_WAITING, b"")
    waiting = struct.unpack(f"={len(clients) // 4}I", clients[: len(clients) // 4 * 4])
    return UnixSocket(inode, peer, name, listens, unread, waiting)


# ---- locks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock on a file that `waiter` is queued for. `holder` is None where the kernel names no process (OFD locks)."""

    kind: str
    waiter: int
    holder: int | None
    inode: int


def _awaited_locks() -> Iterator[Lock]:
    holders: dict[str, tuple[str, int, str]] = {}
    for row in proc.text("locks", _MOST_TABLE).splitlines():
        fields = row.split()
        number = fields[0] if fields else ""
        try:
            if len(fields) > 1 and fields[1] == "->":
                kind, holder, place = holders[number]
                yield Lock(kind, int(fields[5]), holder if holder > 0 else None, int(place.rpartition(":")[2]))
            elif len(fields) >= 6:
                holders[number] = (fields[1], int(fields[4]), fields[5])
        except (IndexError, KeyError, ValueError):
            continue
