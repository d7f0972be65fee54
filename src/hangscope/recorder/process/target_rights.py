"""Opening what a process names with that process's rights, not with ours.

Root that looks at somebody's process must not believe what is in its environment: `TORCHELASTIC_ERROR_FILE=/etc/shadow`
would be copied into an incident that the process's owner reads. So a path that comes from a process is opened by a
thread that has given its rights away for good: user, group and supplementary groups are the process's own, and so is
its root directory: in a container the same path is another file, and its root is not ours. Linux keeps these per
thread; the C library's own wrapper for groups would change all threads at once, hence the plain system call.
"""

from __future__ import annotations

import ctypes
import glob
import os
import platform
import pwd
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from hangscope.recorder.process import linux_process
from hangscope.safeio.safe_files import Patience, Refused, read_file

T = TypeVar("T")

SECONDS = 5.0
SILENT_S = 60.0
_silent: dict[str, float] = {}
"""Directories that did not answer, and until when they are not asked again."""
_SETGROUPS = {"x86_64": 116, "aarch64": 159, "ppc64le": 81, "riscv64": 159}
_MOST_GROUPS = 64
_CLONE_FS = 0x200
_MOST_LISTED = 100_000
_CANNOT = "it belongs to another user, and rights cannot be given away here"


@dataclass(frozen=True, slots=True)
class Rights:
    """Whose files a process may read. `user` is None where it is ours: nothing needs to be given away then."""

    user: int | None = None
    group: int = 0
    groups: tuple[int, ...] = ()
    inside: tuple[int, int] | None = None
    """(pid, start) of a process whose root directory or mounts are not ours: what it names is there."""

    @property
    def foreign(self) -> bool:
        """Whether the process is another user's, or lives in a container: not for everybody's eyes."""
        return self.user is not None or self.inside is not None

    def read(self, path: Path, limit: int, *, tail: bool = False) -> bytes:
        """At most `limit` bytes of a regular file, as the process could read it, in at most some seconds."""
        return self.act(str(path), lambda: read_file(path, limit, tail=tail))

    def find(self, pattern: str, most: int = 256) -> list[Path]:
        """The files that match, as the process could list them."""
        found = self.act(pattern, lambda: list(islice(glob.iglob(pattern), _MOST_LISTED)))
        return [Path(name) for name in sorted(found)[:most]]

    def files(self, paths: list[Path]) -> list[tuple[Path, float]]:
        """Those that are regular files to the process, and when each was last changed."""

        def look() -> list[tuple[Path, float]]:
            return [(path, os.stat(path).st_mtime) for path in paths if path.is_file()]

        return self.act(str(paths[0]), look) if paths else []

    def act(self, what: str, act: Callable[[], T]) -> T:
        """What `act` gives on a thread that has these rights, in at most some seconds."""

        def run() -> T:
            if self.inside is not None:
                self._enter(what)
            if self.user is not None:
                self._drop_rights(what)
            return act()

        place = os.path.dirname(what)
        if time.monotonic() < _silent.get(place, 0.0):
            raise Refused("its file system did not answer a moment ago", what)
        try:
            return Patience(SECONDS).ask(what, run)
        except Refused as refused:
            if refused.late:
                _silent[place] = time.monotonic() + SILENT_S  # every rank names a file there: one wait is enough
            raise

    def _enter(self, what: str) -> None:
        """The process's own root and working directory, for this thread. By handles, taken while it is that process."""
        assert self.inside is not None
        pid, started = self.inside
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        handles: list[int] = []
        try:
            handles += [os.open(f"/proc/{pid}/{name}", flags) for name in ("root", "cwd")]
            stat = linux_process.stat(pid)
            if stat is None or stat.started_ticks != started:
                raise Refused("its process has ended", what)
            if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_FS) != 0:
                raise Refused("the container of its process cannot be entered", what)
            os.fchdir(handles[0])
            os.chroot(".")
            os.fchdir(handles[1])
        except PermissionError:
            raise Refused("the container of its process cannot be entered", what) from None
        finally:
            for handle in handles:
                os.close(handle)

    def _drop_rights(self, what: str) -> None:
        """For this thread, which ends afterwards. Raises Refused where it cannot be made sure."""
        number = _SETGROUPS.get(platform.machine())
        libc = ctypes.CDLL(None, use_errno=True)
        chosen = self.groups[:_MOST_GROUPS]
        array = (ctypes.c_uint32 * len(chosen))(*chosen)
        if number is None or libc.syscall(number, len(chosen), array) != 0:
            raise Refused(_CANNOT, what)
        libc.setfsgid(self.group)
        libc.setfsuid(self.user)
        # Both answer with the value before: asking with a value that is never valid tells what it is now.
        if libc.setfsgid(-1) != self.group or libc.setfsuid(-1) != self.user:
            raise Refused(_CANNOT, what)


NOBODY = Rights(65534, 65534)


def of(pid: int) -> Rights:
    """The rights of a process, where they are fewer than ours."""
    if os.geteuid() != 0:
        return Rights()
    before = linux_process.stat(pid)
    status = _status(pid)
    try:
        users, gids = ([int(word) for word in status[name]] for name in ("Uid", "Gid"))
        groups = tuple(int(word) for word in status.get("Groups", ()))
        # A program that gives its caller more rights (setuid) has the caller's environment: the caller's rights count.
        user = next((number for number in (users[0], users[3], users[1], users[2]) if number != 0), 0)
        group = gids[0] if users[0] != 0 else gids[3]
    except (KeyError, IndexError, ValueError):
        return NOBODY  # it is gone
    inside = _elsewhere(pid, before)
    after = linux_process.stat(pid)
    if before is None or after is None or before.started_ticks != after.started_ticks:
        return NOBODY
    return Rights(inside=inside) if user == 0 else Rights(user, group, groups, inside)


def of_user(user: int) -> Rights:
    """The rights of a user, where they are fewer than ours; of the groups only the user's own."""
    if os.geteuid() != 0 or user == 0:
        return Rights()
    try:
        group = pwd.getpwuid(user).pw_gid
    except KeyError:
        group = 65534
    return Rights(user, group)


def _elsewhere(pid: int, stat: linux_process.Stat | None) -> tuple[int, int] | None:
    """The process, where its paths are not ours: another root directory, or other mounts."""
    try:
        root = os.stat(f"/proc/{pid}/root")
        ours = os.stat("/")
        same = (root.st_dev, root.st_ino) == (ours.st_dev, ours.st_ino)
        if same and os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            return None
    except OSError:
        pass  # who may not even look there may not open anything there: `_enter` says so
    return None if stat is None else (pid, stat.started_ticks)


def owner_of(pid: int) -> int | None:
    """The user that a process was started by; None where there is no such process. Not the owner of its folder in
    /proc: that is root's for a process that asked not to be dumped."""
    words = _status(pid).get("Uid")
    return linux_process.whole_number(words[0], 1 << 32) if words else None


def _status(pid: int) -> dict[str, list[str]]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
