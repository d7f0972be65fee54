"""Which files a rank's threads, and the processes that it started, are blocked on, as the kernel tells it.

Everything comes out of /proc as text: the call that a thread is in, the names of its open files, its mounts. Nothing is
opened, looked up or resolved on the file system itself, so that one that does not answer cannot keep us, too.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hangscope.processes import linux_process

MOST_PROCESSES = 64
MOST_THREADS = 256
MOST_WAITS = 16
_MOST_TEXT = 8 << 20
_LONGEST_PATH = 4096
_MOST_SWITCHES = 4
"""Being looked at by py-spy wakes a thread, too. One that gets its answers is woken far more often."""

_READS, _WRITES, _SYNCS, _OPENS, _LOOKS, _LISTS, _OTHER = "read", "write", "sync", "open", "stat", "list", "access"
# The number of a call in the kernel → (what it does, which argument is an open file "f" or a path "p").
_CALLS: dict[str, dict[int, tuple[str, str]]] = {
    "x86_64": {
        **dict.fromkeys((0, 17, 19, 295), (_READS, "f0")),
        **dict.fromkeys((1, 18, 20, 296), (_WRITES, "f0")),
        **dict.fromkeys((74, 75, 77, 277, 306), (_SYNCS, "f0")),
        **dict.fromkeys((5, 138), (_LOOKS, "f0")),
        **dict.fromkeys((78, 217), (_LISTS, "f0")),
        3: (_OTHER, "f0"),
        **dict.fromkeys((2, 85), (_OPENS, "p0")),
        **dict.fromkeys((4, 6, 21, 137), (_LOOKS, "p0")),
        **dict.fromkeys((82, 83, 84, 87, 89), (_OTHER, "p0")),
        **dict.fromkeys((257, 437), (_OPENS, "p1")),
        **dict.fromkeys((262, 269, 332, 439), (_LOOKS, "p1")),
        **dict.fromkeys((258, 263, 264, 316), (_OTHER, "p1")),
    },
    "aarch64": {
        **dict.fromkeys((63, 65, 67, 69), (_READS, "f0")),
        **dict.fromkeys((64, 66, 68, 70), (_WRITES, "f0")),
        **dict.fromkeys((46, 82, 83, 84), (_SYNCS, "f0")),
        **dict.fromkeys((44, 80), (_LOOKS, "f0")),
        61: (_LISTS, "f0"),
        57: (_OTHER, "f0"),
        **dict.fromkeys((56, 437), (_OPENS, "p1")),
        **dict.fromkeys((48, 79, 291, 439), (_LOOKS, "p1")),
        **dict.fromkeys((34, 35, 38, 276), (_OTHER, "p1")),
    },
}
_REMOTE = re.compile(
    r"nfs|fuse|lustre|cifs|smb|ceph|9p$|virtiofs|gpfs|mmfs|beegfs|gluster|orangefs|pvfs|afs$|weka|panfs|ocfs|gfs2|daos"
)
"""File systems whose answers come from elsewhere. Their waits may look like an ordinary sleep."""
_NO_STORAGE = frozenset(
    ("proc", "sysfs", "devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "tmpfs", "ramfs", "hugetlbfs")
)
_NOT_A_FILE = re.compile(r"pipe_|fifo|wait_for_partner|unix_|sock|tty|n_tty|eventfd|inotify|do_epoll|futex")
"""Functions of the kernel in which a thread waits for another program, whatever name its file has."""
_REMOTE_CHANNEL = re.compile(r"nfs|rpc|fuse|request_wait_answer|cifs|smb|ceph|ptlrpc|ldlm|lustre|p9_|gpfs|mmfs")


@dataclass(frozen=True, slots=True)
class FileWait:
    """A thread in a call on a file. `for_s` is for how long it has been seen in that one call; None after one look.

    `path` is as the process sees it; of a call by name it may be a link. `mount`, `type` and `source` (the server and
    what it exports, or the device) are those of the mount that the path lies in, None where that is not known."""

    pid: int
    thread: int
    call: str
    path: str
    mount: str | None
    type: str | None
    source: str | None
    state: str
    wait_channel: str | None
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    place: str
    type: str
    source: str


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    line: str
    """The kernel's own about the call: its number, arguments and where it returns to."""
    counts: str
    """What the thread has read and written so far."""
    switches: int


class FileWaits:
    """The file calls of one rank, over several looks: what has not come back since the first of them is blocked."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], _Look] = {}
        self.found: list[FileWait] = []

    def look(self, pids: Collection[int]) -> None:
        now = time.monotonic()
        seen: dict[tuple[int, int], _Look] = {}
        found: list[FileWait] = []
        for pid in list(pids)[:MOST_PROCESSES]:
            mounts: list[Mount] | None = None
            for thread, line in _threads(pid):
                call = _call(pid, line)
                if call is None:
                    continue
                look = _Look(now, line, _text(pid, thread, "io"), _switches(pid, thread))
                before = self._first.get((pid, thread))
                still = before is not None and _still(before, look)
                seen[pid, thread] = before if still and before is not None else look
                mounts = read_mounts(_text(pid, None, "mountinfo")) if mounts is None else mounts
                wait = file_wait(pid, thread, call, mounts, *_state(pid, thread))
                if wait is not None:
                    found.append(_since(wait, now - before.at) if still and before is not None else wait)
        self._first = seen
        self.found = found[:MOST_WAITS]

    def rows(self) -> list[dict[str, Any]]:
        """For node.json."""
        return [asdict(wait) for wait in self.found]


def _since(wait: FileWait, seconds: float) -> FileWait:
    return FileWait(**{**asdict(wait), "for_s": round(seconds, 1)})


def _still(before: _Look, now: _Look) -> bool:
    return before.line == now.line and before.counts == now.counts and now.switches - before.switches <= _MOST_SWITCHES


def file_wait(
    pid: int, thread: int, call: tuple[str, str], mounts: list[Mount], state: str, channel: str | None
) -> FileWait | None:
    """What a call on `path` waits for; None where that is no storage: a pipe, a device, a file in memory."""
    what, path = call
    mount = mount_of(path, mounts)
    if not path.startswith("/") or (mount is not None and mount.type in _NO_STORAGE):
        return None
    if channel is not None and _NOT_A_FILE.search(channel):
        return None
    remote = mount is not None and _REMOTE.search(mount.type) is not None
    if not remote and channel is not None and _REMOTE_CHANNEL.search(channel):
        mount = None  # a link on the way leads to another mount than the name says
    elif not remote and state != "D":
        return None  # what sleeps on a disk of its own does so uninterruptibly: this is a named pipe, or at work
    place, type_, source = (mount.place, mount.type, mount.source) if mount is not None else (None, None, None)
    return FileWait(pid, thread, what, path, place, type_, source, state, channel)


# ---- mounts ----------------------------------------------------------------------------------------------------------


def read_mounts(mountinfo: str) -> list[Mount]:
    """The mounts of a process, the last one on a place being what is seen there."""
    found = []
    for line in mountinfo.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split(" ")
        rest = right.split(" ")
        if dash and len(fields) > 4 and len(rest) > 1:
            found.append(Mount(_plain(fields[4]), _plain(rest[0]), _plain(rest[1])))
    return found


def mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    """The mount that a path lies in, by its name alone."""
    best: Mount | None = None
    for mount in mounts:
        below = mount.place.rstrip("/") + "/"
        if (path == mount.place or path.startswith(below)) and (best is None or len(mount.place) >= len(best.place)):
            best = mount
    return best


def _plain(text: str) -> str:
    """mountinfo writes blanks and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


# ---- /proc -----------------------------------------------------------------------------------------------------------


def _threads(pid: int) -> Iterator[tuple[int, str]]:
    """The threads that are in a call, the main one first, with the kernel's line about it."""
    try:
        names = sorted(
            map(int, os.listdir(linux_process.PROC / str(pid) / "task")), key=lambda each: (each != pid, each)
        )
    except (OSError, ValueError):
        return
    for thread in names[:MOST_THREADS]:
        line = _text(pid, thread, "syscall")
        if line and line.split(" ", 1)[0].isdigit():
            yield thread, line


def _call(pid: int, line: str) -> tuple[str, str] | None:
    """(what is done, the file); None where the call is about no file that has a name."""
    words = line.split()
    known = _CALLS.get(os.uname().machine, {}).get(int(words[0]))
    if known is None or len(words) < 3:
        return None
    what, argument = known
    kind = argument[0]
    place = argument[1]
    try:
        value = int(words[1 + int(place)], 16)
        if kind == "f":
            return what, os.readlink(linux_process.PROC / str(pid) / "fd" / str(value))
        path = _string(pid, value)
        if path and not path.startswith("/"):
            path = os.path.join(_directory(pid, int(words[1], 16) if place == "1" else None), path)
    except (OSError, ValueError):
        return None
    return (what, path) if path else None


def _directory(pid: int, handle: int | None) -> str:
    """Where a relative name is looked up from."""
    base = linux_process.PROC / str(pid)
    if handle is not None and handle < 1 << 30:  # else it is AT_FDCWD
        return os.readlink(base / "fd" / str(handle))
    return os.readlink(base / "cwd")


def _string(pid: int, address: int) -> str:
    """A name in the process's memory."""
    with open(linux_process.PROC / str(pid) / "mem", "rb", buffering=0) as memory:
        raw = os.pread(memory.fileno(), _LONGEST_PATH - address % _LONGEST_PATH, address)
        if b"\0" not in raw:
            raw += os.pread(memory.fileno(), _LONGEST_PATH, address + len(raw))
    return os.fsdecode(raw.partition(b"\0")[0])[:_LONGEST_PATH]


def _text(pid: int, thread: int | None, name: str) -> str:
    base = linux_process.PROC / str(pid)
    try:
        with open((base / "task" / str(thread) if thread is not None else base) / name, errors="replace") as stream:
            return stream.read(_MOST_TEXT)
    except OSError:
        return ""


def _state(pid: int, thread: int) -> tuple[str, str | None]:
    fields = _text(pid, thread, "stat").rpartition(")")[2].split()
    channel = _text(pid, thread, "wchan").strip()
    return (fields[0] if fields else "?"), (channel if channel not in ("", "0") else None)


def _switches(pid: int, thread: int) -> int:
    words = _text(pid, thread, "status").partition("\nvoluntary_ctxt_switches:")[2].split(None, 1)
    return int(words[0]) if words and words[0].isdigit() else 0
