"""One thread: the call of the kernel that it is blocked in, and what that call is about.

The kernel tells a call's number and arguments to whoever may trace the process (as for py-spy). What the arguments
point to is read out of the process's memory, without stopping it: the descriptors of a poll, the word of a futex.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from hangscope.sources.process_waits import proc
from hangscope.sources.process_waits.schema import Target
from hangscope.sources.process_waits.tables import LISTEN, Socket, Tables

MOST_WATCHED = 4096
"""Descriptors of one poll, select or epoll."""
_X86 = (
    "0 read 1 write 2 open 7 poll 17 pread64 18 pwrite64 19 readv 20 writev 23 select 34 pause 35 nanosleep 40 sendfile"
    " 42 connect 43 accept 44 sendto 45 recvfrom 46 sendmsg 47 recvmsg 61 wait4 65 semop 69 msgsnd 70 msgrcv 72 fcntl"
    " 73 flock 74 fsync 128 rt_sigtimedwait 202 futex 219 restart_syscall 220 semtimedop 230 clock_nanosleep"
    " 232 epoll_wait 242 mq_timedsend 243 mq_timedreceive 247 waitid 257 openat 270 pselect6 271 ppoll 275 splice"
    " 281 epoll_pwait 288 accept4 299 recvmmsg 307 sendmmsg 426 io_uring_enter 437 openat2 441 epoll_pwait2"
    " 449 futex_waitv 455 futex_wait 4 stat 6 lstat 21 access 82 rename 83 mkdir 87 unlink 217 getdents64 258 mkdirat"
    " 262 newfstatat 263 unlinkat 269 faccessat 332 statx 439 faccessat2"
)
_ARM = (
    "22 epoll_pwait 25 fcntl 32 flock 56 openat 63 read 64 write 65 readv 66 writev 67 pread64 68 pwrite64 71 sendfile"
    " 72 pselect6 73 ppoll 76 splice 82 fsync 95 waitid 98 futex 101 nanosleep 115 clock_nanosleep 128 restart_syscall"
    " 137 rt_sigtimedwait 182 mq_timedsend 183 mq_timedreceive 188 msgrcv 189 msgsnd 192 semtimedop 193 semop"
    " 202 accept 203 connect 206 sendto 207 recvfrom 211 sendmsg 212 recvmsg 242 accept4 243 recvmmsg 260 wait4"
    " 269 sendmmsg 426 io_uring_enter 437 openat2 441 epoll_pwait2 449 futex_waitv 455 futex_wait"
    " 34 mkdirat 35 unlinkat 48 faccessat 61 getdents64 79 newfstatat 291 statx 439 faccessat2"
)
_WORDS = {"x86_64": _X86, "aarch64": _ARM}.get(os.uname().machine, "").split()
_NAMES = dict(zip(map(int, _WORDS[::2]), _WORDS[1::2], strict=True))
_READS = frozenset(("read", "pread64", "readv", "recvfrom", "recvmsg", "recvmmsg", "splice"))
_WRITES = frozenset(("write", "pwrite64", "writev", "sendto", "sendmsg", "sendmmsg", "sendfile"))
_ON_DESCRIPTOR = _READS | _WRITES | {"connect", "accept", "accept4", "fsync", "getdents64"}
_POLLS = frozenset(("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2"))
_TIMERS = frozenset(("nanosleep", "clock_nanosleep", "pause", "rt_sigtimedwait"))


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the kernel, and its arguments as numbers."""

    name: str
    arguments: tuple[int, ...]
    line: str
    """The kernel's own, with the stack and instruction pointers: equal twice means that the thread has not moved."""


def call_of(pid: int, thread: int) -> Call | None:
    """None where the thread is in no call, or where the kernel does not say."""
    line = proc.text(f"{pid}/task/{thread}/syscall", 512).strip()
    words = line.split()
    if len(words) < 7 or not words[0].isdecimal():
        return None
    try:
        return Call(_NAMES.get(int(words[0]), f"call {words[0]}"), tuple(int(word, 16) for word in words[1:7]), line)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Blocked:
    """What a thread waits for. `any_of`: one of them would do; `timed`: it goes on by itself after a time."""

    targets: tuple[Target, ...]
    any_of: bool = False
    timed: bool = False


def blocked_on(pid: int, thread: int, call: Call, tables: Tables, most: int = MOST_WATCHED) -> Blocked:
    """What the call is about; no target where that is not known. Of a set of descriptors the first `most`."""
    first = call.arguments[0]
    if call.name in _ON_DESCRIPTOR:
        return Blocked((_descriptor(pid, thread, first, tables, writes=call.name in _WRITES),))
    if call.name in _POLLS:
        watched = list(_watched(pid, call))
        targets = tuple(_descriptor(pid, thread, fd, tables, writes=writes) for fd, writes in watched[:most])
        return Blocked(targets, any_of=True, timed=_is_timed(call))
    found = _OTHERS.get(call.name)
    if found is not None:
        return found(pid, thread, call, tables)
    if call.name in _TIMERS:
        return Blocked((Target("timer", call.name),), timed=True)
    return Blocked(())


# ---- descriptors -----------------------------------------------------------------------------------------------------


def _descriptor(pid: int, thread: int, fd: int, tables: Tables, *, writes: bool) -> Target:
    name = tables.link(pid, fd)
    kind, _, rest = name.partition(":")
    inode = int(rest[1:-1]) if rest.startswith("[") and rest[1:-1].isdecimal() else 0
    if kind == "socket":
        return replace(_socket(pid, inode, tables), fd=fd)
    if kind == "pipe":
        return replace(_pipe(pid, "pipe", f"pipe {inode}", tables.holders.get(("pipe", inode), ()), writes), fd=fd)
    if name.startswith("anon_inode:"):
        what = name.removeprefix("anon_inode:").strip("[]")
        known = what if what in ("eventfd", "inotify", "timerfd") else "other"
        return Target({"timerfd": "timer"}.get(known, known), what, fd=fd)
    if name.startswith("/") and "pipe" in proc.text(f"{pid}/task/{thread}/wchan", 64):
        return replace(_pipe(pid, "fifo", name, tables.holders_of_path(name), writes), fd=fd)
    if name.startswith("/"):
        return replace(_file(pid, name, tables), fd=fd)
    return Target("other", name, fd=fd)


_OF_SERVERS = ("nfs", "nfs4", "lustre", "ceph", "cifs", "smb3", "9p", "beegfs", "gpfs", "afs", "glusterfs")


def _file(pid: int, path: str, tables: Tables) -> Target:
    """A file, with the server of its file system where it has one. A path that goes by a link may lie elsewhere."""
    mount = tables.mount_of(pid, path)
    if mount is None:
        return Target("file", path)
    if mount.kind == "fuse" or mount.kind.startswith("fuse."):
        pids, sure = tables.serves_mount(mount)
        return Target("mount", f"{path} ({mount.kind} at {mount.place})", pids, sure, peer=mount.place)
    if mount.kind in _OF_SERVERS:
        return Target("mount", f"{path} ({mount.kind} of {mount.source})", peer=mount.source)
    return Target("file", path)


def _socket(pid: int, inode: int, tables: Tables) -> Target:
    line = tables.socket_of(pid, inode)
    if line is not None:
        return _connection(line, tables)
    unix = tables.unix(inode)
    if unix is None:
        return Target("other", f"socket {inode}")
    if unix.listens:
        return Target("listen", unix.name or f"unix socket {inode}")
    holders = tables.held_by("socket", unix.peer) if unix.peer else ()
    there = tables.unix(unix.peer) if unix.peer else None
    name = unix.name or (there.name if there is not None else "")
    unread = there.unread if there is not None else None
    what = name or "an unnamed pair of sockets"
    if not unix.peer:
        listens = tables.queue_of(inode)
        if listens is None:
            return Target("unix", what, gone=True)
        what = name or listens.name
        return Target("unix", what, tables.held_by("socket", listens.inode), "accept", local=f"unix {inode}")
    ends = Target("unix", what, local=f"unix {inode}", peer=f"unix {unix.peer}")
    return replace(ends, pids=holders, sure="inode" if holders else "", unread=unread)


def _connection(line: Socket, tables: Tables) -> Target:
    if line.state == LISTEN:
        return Target("listen", line.local, local=line.local)
    found = Target(line.kind, line.peer, local=line.local, peer=line.peer, state=line.state)
    other = tables.other_end(line)
    if other is not None:
        holders = tables.held_by("socket", other.inode)
        # A connection that the server has not accepted is held by nobody yet: its listener is asked.
        if holders:
            return replace(found, pids=holders, sure="inode", unread=other.unread)
        found = replace(found, unread=other.unread)
    elif line.kind == "tcp" and line.state in ("CLOSE_WAIT", "CLOSE"):
        return replace(found, gone=True)
    if line.kind == "udp":
        takers = {
            holder for end in tables.takes_datagrams_at(line.peer) for holder in tables.held_by("socket", end.inode)
        }
        return replace(found, pids=tuple(sorted(takers)), sure="address") if takers else found
    listeners = {holder for end in tables.listens_at(line.peer) for holder in tables.held_by("socket", end.inode)}
    if line.kind == "tcp" and listeners and (other is not None or _is_local(line)):
        return replace(found, pids=tuple(sorted(listeners)), sure="listens")
    return found


def _is_local(line: Socket) -> bool:
    return line.peer.rpartition(":")[0] in ("127.0.0.1", "[::1]", line.local.rpartition(":")[0])


def _pipe(pid: int, kind: str, what: str, holders: Collection[tuple[int, int]], writes: bool) -> Target:
    """Who has the other end open. A process that holds both ends of its own pipe keeps it open for itself alone."""
    others = {other for other, fd in holders if _opened_to(other, fd, write=not writes)}
    others_than_us = tuple(sorted(others - {pid}))
    return Target(kind, what, others_than_us, "inode" if others_than_us else "", gone=not others)


def _opened_to(pid: int, fd: int, *, write: bool) -> bool:
    for line in proc.text(f"{pid}/fdinfo/{fd}", 4096).splitlines():
        if line.startswith("flags:"):
            mode = int(line.split()[1], 8) & os.O_ACCMODE
            return mode in ((os.O_WRONLY, os.O_RDWR) if write else (os.O_RDONLY, os.O_RDWR))
    return False


# ---- poll, select, epoll ---------------------------------------------------------------------------------------------

_POLLIN, _POLLOUT = 0x1, 0x4


def _watched(pid: int, call: Call) -> Iterator[tuple[int, bool]]:
    """(descriptor, whether room to write is what is waited for)."""
    first, second, third = call.arguments[:3]
    if call.name in ("poll", "ppoll"):
        raw = proc.memory(pid, first, 8 * min(second, MOST_WATCHED))
        for fd, events, _ in struct.iter_unpack("=ihh", raw[: len(raw) // 8 * 8]):
            if fd >= 0:
                yield fd, bool(events & _POLLOUT) and not events & _POLLIN
    elif call.name in ("select", "pselect6"):
        size = min(first, MOST_WATCHED)
        for address, writes in ((second, False), (third, True)):
            bits = proc.memory(pid, address, (size + 7) // 8) if address else b""
            yield from ((fd, writes) for fd in range(min(size, 8 * len(bits))) if bits[fd // 8] >> fd % 8 & 1)
    else:
        for line in proc.text(f"{pid}/fdinfo/{first}", 1 << 20).splitlines():
            if line.startswith("tfd:"):
                fields = line.split()
                events = int(fields[3], 16)
                yield int(fields[1]), bool(events & _POLLOUT) and not events & _POLLIN


def _is_timed(call: Call) -> bool:
    """Whether the call ends by itself: a limit in milliseconds, or a pointer to one."""
    if call.name == "poll":
        return not call.arguments[2] >> 31 & 1
    if call.name in ("epoll_wait", "epoll_pwait"):
        return not call.arguments[3] >> 31 & 1
    return call.arguments[{"ppoll": 2, "epoll_pwait2": 3}.get(call.name, 4)] != 0


# ---- locks, semaphores, queues, children -----------------------------------------------------------------------------

_FUTEX_COMMAND = 0x7F
_LOCK_PI, _LOCK_PI2 = 6, 13
_OWNER = 0x3FFFFFFF
_TAKEN_AND_AWAITED = 2
"""What the word of glibc's mutexes holds while others wait for it; the thread that holds it stands 8 bytes behind."""


def _futex(pid: int, thread: int, call: Call, tables: Tables) -> Blocked:
    del thread, tables
    address, operation = call.arguments[:2]
    timed = call.arguments[3 if call.name == "futex" else 4] != 0
    word = proc.memory(pid, address, 12)
    mapping = proc.mapping_at(pid, address)
    owner = 0
    if len(word) == 12:
        value, _, behind = struct.unpack("=III", word)
        if call.name == "futex" and operation & _FUTEX_COMMAND in (_LOCK_PI, _LOCK_PI2):
            owner = value & _OWNER
        elif value & _OWNER == _TAKEN_AND_AWAITED:
            owner = behind
    shared = mapping is not None and mapping[0]
    if owner:
        target = _lock_owner(pid, owner, shared)
        if target is not None:
            return Blocked((target,), timed=timed)
    if mapping is None or not shared:
        return Blocked((Target("futex", "a thread of its own"),), timed=timed)
    _, key, path = mapping
    kind = "semaphore" if "/sem." in path else "futex"
    others = tuple(other for other in proc.pids() if other != pid and proc.maps_file(other, key))
    what = path.removesuffix(" (deleted)") or "memory that is shared without a name"
    return Blocked((Target(kind, what, others, "mapping" if others else "", gone=not others),), timed=timed)


def _lock_owner(pid: int, owner: int, shared: bool) -> Target | None:
    """The thread that a mutex names as its owner; None where the number is no thread, and so may mean anything.

    A child that was forked while a thread of its parent held a lock waits for a thread that it does not have.
    """
    if proc.stat(f"{pid}/task/{owner}") is not None:
        return Target("futex", f"a lock that thread {owner} of its own holds", (pid,), "owner")
    above = proc.stat(str(pid))
    parent = above.parent if above is not None else 0
    if proc.stat(f"{parent}/task/{owner}") is not None:
        return Target("futex", "a lock that a thread of its parent held when it was forked", (parent,), "owner")
    if shared and proc.stat(str(owner)) is not None:
        return Target("futex", "a lock in shared memory", (owner,), "owner")
    return None


def _file_lock(pid: int, thread: int, call: Call, tables: Tables) -> Blocked:
    del thread
    if call.name == "fcntl" and call.arguments[1] not in (7, 38):  # F_SETLKW, F_OFD_SETLKW
        return Blocked(())
    lock = tables.lock_awaited_by(pid)
    path = proc.link(f"{pid}/fd/{call.arguments[0]}")
    if lock is None or lock.holder is None:
        return Blocked((Target("lock", path),))
    if proc.stat(str(lock.holder)) is None:  # it has ended, and a child of its keeps the file open
        return Blocked((Target("lock", path),))
    return Blocked((Target("lock", path, (lock.holder,), "lock"),))


def _semaphore(pid: int, thread: int, call: Call, tables: Tables) -> Blocked:
    del pid, thread, tables
    number = call.arguments[0]
    last = _last_of_semaphore(number)
    timed = call.name == "semtimedop" and call.arguments[3] != 0
    what = f"System V semaphore {number}"
    if last is None:
        return Blocked((Target("semaphore", what),), timed=timed)
    if proc.stat(str(last)) is None:
        return Blocked((Target("semaphore", what, gone=True),), timed=timed)
    return Blocked((Target("semaphore", what, (last,), "last"),), timed=timed)


_GETPID = 11
_P_PID = 1


def _last_of_semaphore(number: int) -> int | None:
    """Who changed it last; None where it may not be asked."""
    found: int = ctypes.CDLL(None).semctl(ctypes.c_int(number), ctypes.c_int(0), ctypes.c_int(_GETPID))
    return found if found > 0 else None


def _queue(pid: int, thread: int, call: Call, tables: Tables) -> Blocked:
    del thread, tables
    name = proc.link(f"{pid}/fd/{call.arguments[0]}") if call.name.startswith("mq_") else ""
    return Blocked((Target("queue", name or f"message queue {call.arguments[0]}"),))


def _child(pid: int, thread: int, call: Call, tables: Tables) -> Blocked:
    del thread, tables
    if call.name == "waitid":
        number = call.arguments[1] if call.arguments[0] == _P_PID else -1
    else:
        number = ctypes.c_int32(call.arguments[0] & 0xFFFFFFFF).value
    awaited = (number,) if number > 0 else tuple(proc.children(pid))
    alive = tuple(child for child in awaited if proc.stat(str(child)) is not None)
    what = f"its child process {number}" if number > 0 else "any of its child processes"
    return Blocked((Target("child", what, alive, "parent" if alive else ""),), any_of=len(alive) > 1)


_BY_PATH = frozenset(("open", "stat", "lstat", "access", "rename", "mkdir", "unlink"))
_BELOW_FOLDER = frozenset(
    ("openat", "openat2", "newfstatat", "statx", "faccessat", "faccessat2", "mkdirat", "unlinkat")
)
_HERE = 0xFFFFFF9C
"""AT_FDCWD, as the low half of an argument."""


def _opening(pid: int, thread: int, call: Call, tables: Tables) -> Blocked:
    """A file that is being opened or looked at. A FIFO is opened only once its other end is."""
    first, second = call.arguments[:2]
    path = (
        proc.memory(pid, first if call.name in _BY_PATH else second, 4096)
        .partition(b"\0")[0]
        .decode("utf-8", "replace")
    )
    channel = proc.text(f"{pid}/task/{thread}/wchan", 64)
    if "fifo" in channel or "wait_for_partner" in channel:
        return Blocked((Target("fifo", path, gone=True),))
    if not path.startswith("/"):
        here = call.name in _BY_PATH or first & 0xFFFFFFFF == _HERE
        folder = proc.link(f"{pid}/cwd" if here else f"{pid}/fd/{first}")
        path = f"{folder.rstrip('/')}/{path}" if folder.startswith("/") else path
    return Blocked((_file(pid, path, tables),))


_OTHERS: dict[str, Callable[[int, int, Call, Tables], Blocked]] = {
    **dict.fromkeys(("futex", "futex_wait"), _futex),
    **dict.fromkeys(("flock", "fcntl"), _file_lock),
    **dict.fromkeys(("semop", "semtimedop"), _semaphore),
    **dict.fromkeys(("msgrcv", "msgsnd", "mq_timedreceive", "mq_timedsend"), _queue),
    **dict.fromkeys(("wait4", "waitid"), _child),
    **dict.fromkeys(_BY_PATH | _BELOW_FOLDER, _opening),
}
