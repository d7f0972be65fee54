"""Processes as the kernel shows them: state, family, environment, and how one ended although we are not its parent."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_ON_X86 = (
    "0 read 1 write 2 open 7 poll 16 ioctl 17 pread64 18 pwrite64 23 select 24 sched_yield 35 nanosleep 42 connect "
)
_ON_X86 += "43 accept 45 recvfrom 47 recvmsg 61 wait4 72 fcntl 73 flock 74 fsync 202 futex 230 clock_nanosleep "
_ON_X86 += "232 epoll_wait 247 waitid 257 openat 270 select 271 poll 281 epoll_wait"
_ON_ARM = (
    "22 epoll_wait 25 fcntl 29 ioctl 32 flock 56 openat 63 read 64 write 67 pread64 68 pwrite64 72 select 73 poll "
)
_ON_ARM += "82 fsync 95 waitid 98 futex 101 nanosleep 115 clock_nanosleep 124 sched_yield 202 accept 203 connect "
_ON_ARM += "207 recvfrom 212 recvmsg 260 wait4"
_WORDS = {"x86_64": _ON_X86, "aarch64": _ON_ARM}.get(os.uname().machine, "").split()
_SYSTEM_CALLS = dict(zip(_WORDS[::2], _WORDS[1::2], strict=True))
"""Those in which ranks are found waiting, by number."""


_MOST_WORDS = 8 << 20
"""No more than six megabytes of arguments and environment can be given to a process."""
_EXITING = 0x4 | 0x200
"""The kernel's PF_EXITING and PF_DUMPCORE."""


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/<pid>/stat that hangscope uses. `started_ticks` with the pid names a process for ever."""

    pid: int
    name: str
    state: str
    parent: int
    started_ticks: int
    cpu_seconds: float
    exit_code: int | None
    exiting: bool = False
    """The kernel takes it apart, or writes its core: that lasts seconds where it holds much memory."""
    major_faults: int = 0
    """Pages that had to be read from somewhere, as by who reads a mapped file."""

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"


def stat(pid: int) -> Stat | None:
    """What the kernel says about `pid`, or None where there is no such process."""
    try:
        raw = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    head, _, tail = raw.rpartition(")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    return Stat(
        pid=pid,
        name=head.partition("(")[2],
        state=fields[0],
        parent=int(fields[1]),
        started_ticks=int(fields[19]),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND,
        exiting=bool(int(fields[6]) & _EXITING),
        major_faults=int(fields[9]),
        exit_code=_status(int(fields[49])) if fields[0] == "Z" and len(fields) > 49 else None,
    )


def age_s(found: Stat) -> float:
    """Seconds since the process was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - found.started_ticks / TICKS_PER_SECOND


def _status(wait_status: int) -> int:
    """The exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(wait_status)


def environment(pid: int) -> dict[str, str]:
    """The environment that `pid` was started with; empty where it may not be read."""
    pairs = (item.partition(b"=") for item in _own_words(pid, "environ").split(b"\0") if b"=" in item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def may_be_read(pid: int) -> bool:
    """Whether this user may read what a process was started with; yes, where the process is gone."""
    environ = PROC / str(pid) / "environ"
    return os.access(environ, os.R_OK) or not environ.exists()


def command_line(pid: int) -> list[str]:
    raw = _own_words(pid, "cmdline")
    return [os.fsdecode(word) for word in raw.rstrip(b"\0").split(b"\0")] if raw else []


def program(pid: int) -> str:
    """The file that `pid` runs; empty where the kernel does not say."""
    try:
        return os.readlink(PROC / str(pid) / "exe")
    except OSError:
        return ""


def _own_words(pid: int, name: str) -> bytes:
    """What the kernel reads out of the process's own memory: a process may tell it that this is gigabytes long."""
    try:
        with open(PROC / str(pid) / name, "rb") as stream:
            return stream.read(_MOST_WORDS)
    except OSError:
        return b""


def whole_number(text: str, most: int = 1 << 30) -> int | None:
    """The number that an environment or a file of others spells, None where it is none that can be meant."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most else None


def wait_channel(pid: int) -> str | None:
    """The kernel function in which the main thread sleeps, or None where the kernel does not say."""
    try:
        text = (PROC / str(pid) / "wchan").read_text().strip()
    except OSError:
        return None
    return text if text not in ("", "0") else None


def system_call(pid: int) -> tuple[str | None, str | None]:
    """The call of the kernel that the main thread is in, and the file that it is about; "running" where it is in none.

    (None, None) where the kernel does not say: it asks for the right to trace.
    """
    try:
        words = (PROC / str(pid) / "syscall").read_text().split()
    except OSError:
        return None, None
    if len(words) < 2:
        return (words[0] if words == ["running"] else None), None
    name = _SYSTEM_CALLS.get(words[0], f"system call {words[0]}")
    if name not in ("read", "write", "ioctl"):
        return name, None
    try:
        return name, os.readlink(PROC / str(pid) / "fd" / str(int(words[1], 16)))
    except (OSError, ValueError):
        return name, None


def caught_signals(pid: int) -> int:
    """The bits of the signals that `pid` handles itself."""
    return _signals(pid, "SigCgt:")


def ignores(pid: int, number: int) -> bool:
    return bool(_signals(pid, "SigIgn:") >> (number - 1) & 1)


def _signals(pid: int, which: str) -> int:
    try:
        for line in (PROC / str(pid) / "status").read_text(errors="replace").splitlines():
            if line.startswith(which):
                return int(line.split()[1], 16)
    except (OSError, ValueError):
        pass
    return 0


def children(pid: int) -> list[int]:
    """The direct children of all threads of `pid`."""
    found: list[int] = []
    try:
        threads = os.listdir(PROC / str(pid) / "task")
    except OSError:
        return found
    for thread in threads:
        try:
            found += map(int, (PROC / str(pid) / "task" / thread / "children").read_text().split())
        except (OSError, ValueError):
            return _children_by_parent(pid)  # a kernel without CONFIG_PROC_CHILDREN
    return found


def _children_by_parent(pid: int) -> list[int]:
    return [each for each in all_pids() if (found := stat(each)) is not None and found.parent == pid]


def all_pids() -> list[int]:
    """The pids of all processes of this machine."""
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def descendants(pid: int) -> Iterator[tuple[int, int]]:
    """(pid, depth) of everything below `pid`, parents before their children."""
    level = [pid]
    depth = 0
    while level and depth < 32:
        depth += 1
        level = [child for each in level for child in children(each)]
        for child in level:
            yield child, depth


def depth(pid: int) -> int:
    """How many ancestors `pid` has."""
    count = 0
    while pid > 1 and count < 64:
        found = stat(pid)
        if found is None:
            break
        pid = found.parent
        count += 1
    return count


def are_related(one: int, other: int) -> bool:
    """Whether one of two processes is above the other."""
    return one in above(other) or other in above(one)


def above(pid: int) -> list[int]:
    """The ancestors of `pid`, its parent first."""
    found: list[int] = []
    while pid > 1 and len(found) < 64:
        own = stat(pid)
        if own is None:
            break
        pid = own.parent
        found.append(pid)
    return found


def nearest_above(pids: Sequence[int]) -> int | None:
    """The lowest process that all of these are, or are below; None where that is init, or nothing."""
    if not pids:
        return None
    lines = [[pid, *above(pid)] for pid in pids]
    common = set(lines[0]).intersection(*lines[1:])
    return next((pid for pid in lines[0] if pid in common and pid > 1), None)


class ProcessHandle:
    """A process whose end we want to know at once, and its status with it, although somebody else is its parent.

    A pidfd turns readable when the process ends. Its status is then in /proc for as long as it is a zombie, and
    from Linux 6.15 on the pidfd keeps it after the parent has reaped it.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.fd: int | None = None
        found = stat(pid)
        self.started_ticks = found.started_ticks if found is not None else None
        try:
            self.fd = os.pidfd_open(pid)
        except (OSError, AttributeError):
            pass  # Linux before 5.3: `ended` then looks into /proc

    def ended(self) -> bool:
        found = stat(self.pid)
        return found is None or not found.alive or found.started_ticks != self.started_ticks

    def status(self) -> int | None:
        """The exit code or minus the signal; None while it lives or where nobody can tell any more."""
        found = stat(self.pid)
        if found is not None and found.started_ticks == self.started_ticks:
            return found.exit_code
        return _status_of_reaped(self.fd) if self.fd is not None else None

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO_SIZE = 64  # struct pidfd_info of Linux 6.13; later kernels accept it, and it ends with the exit code


def _status_of_reaped(fd: int) -> int | None:
    request = 3 << 30 | _PIDFD_INFO_SIZE << 16 | 0xFF << 8 | 11  # _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)
    buffer = bytearray(struct.pack("=Q", _PIDFD_INFO_EXIT).ljust(_PIDFD_INFO_SIZE, b"\0"))
    try:
        fcntl.ioctl(fd, request, buffer)
    except OSError:
        return None  # Linux before 6.13
    if not struct.unpack_from("=Q", buffer, 0)[0] & _PIDFD_INFO_EXIT:
        return None  # Linux before 6.15
    return _status(struct.unpack_from("=i", buffer, 60)[0])
