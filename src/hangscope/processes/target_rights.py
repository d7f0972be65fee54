"""Opening what a process names with that process's rights, not with ours.

Root that looks at somebody's process must not believe what is in its environment: `TORCHELASTIC_ERROR_FILE=/etc/shadow`
would be copied into an incident that the process's owner reads. So a path that comes from a process is opened by a
helper that has become that process's user for good, with its groups, its root directory (in a container the same path
is another file) and no capability (`rights_helper`). The same is true of whoever is not root and has capabilities:
they are more rights than the process has. What is written into another user's directory is written by a thread with
that user's rights.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import platform
import pwd
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from hangscope.processes import helpers, linux_process
from hangscope.processes.rights_helper import CANNOT, MOST_LISTED, NO_CONTAINER, capabilities
from hangscope.safeio.beneath import NotHere, is_procfs
from hangscope.safeio.safe_files import Patience, Refused, open_file, read_bounded

T = TypeVar("T")

SECONDS = 5.0
SILENT_S = 60.0
_silent: dict[str, float] = {}
"""Directories that did not answer, and until when they are not asked again."""
_SETGROUPS = {"x86_64": 116, "aarch64": 159, "ppc64le": 81, "riscv64": 159}
_MOST_GROUPS = 64
_LONGEST_PATH = 4096


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
        if not self.foreign:
            return self._patiently(str(path), lambda: _read_here(path, limit, tail=tail))
        asked = {"act": "read", "path": _text(path), "limit": limit, "tail": tail}
        return self._patiently(str(path), lambda: helpers.ask(self._who(), asked, limit, str(path)))

    def find(self, pattern: str, most: int = 256) -> list[Path]:
        """The files that match, as the process could list them."""
        if not self.foreign:
            found = self._patiently(pattern, lambda: list(islice(glob.iglob(pattern), MOST_LISTED)))
            return [Path(name) for name in sorted(found)[:most]]
        asked = {"act": "find", "pattern": _text(pattern), "most": most}
        listed = self._patiently(pattern, lambda: helpers.ask(self._who(), asked, most * _LONGEST_PATH, pattern))
        return [Path(os.fsdecode(name)) for name in listed.split(b"\0") if name]

    def files(self, paths: list[Path]) -> list[tuple[Path, float]]:
        """Those that are regular files to the process, and when each was last changed."""
        if not paths:
            return []
        if not self.foreign:

            def look() -> list[tuple[Path, float]]:
                return [(path, os.stat(path).st_mtime) for path in paths if path.is_file()]

            return self._patiently(str(paths[0]), look)
        asked = {"act": "files", "paths": [_text(path) for path in paths]}
        raw = self._patiently(
            str(paths[0]), lambda: helpers.ask(self._who(), asked, 64 * len(paths) + 64, str(paths[0]))
        )
        try:
            return [(paths[int(number)], float(changed)) for number, changed in json.loads(raw)]
        except (ValueError, TypeError, IndexError):
            return []

    def act(self, what: str, act: Callable[[], T]) -> T:
        """What `act` gives on a thread that has these rights, in at most some seconds: for what is written."""

        def run() -> T:
            if self.inside is not None:
                raise Refused(NO_CONTAINER, what)
            if self.user is not None:
                self._drop_rights(what)
            return act()

        return self._patiently(what, run)

    def _who(self) -> helpers.Who:
        return helpers.Who(self.user, self.group, self.groups, self.inside)

    def _patiently(self, what: str, run: Callable[[], T]) -> T:
        place = os.path.dirname(what)
        if time.monotonic() < _silent.get(place, 0.0):
            raise Refused("its file system did not answer a moment ago", what)
        try:
            return Patience(SECONDS).ask(what, run)
        except Refused as refused:
            if refused.late:
                _silent[place] = time.monotonic() + SILENT_S  # every rank names a file there: one wait is enough
            raise

    def _drop_rights(self, what: str) -> None:
        """For this thread, which ends afterwards. Raises Refused where it cannot be made sure."""
        number = _SETGROUPS.get(platform.machine())
        libc = ctypes.CDLL(None, use_errno=True)
        chosen = self.groups[:_MOST_GROUPS]
        array = (ctypes.c_uint32 * len(chosen))(*chosen)
        if number is None or libc.syscall(number, len(chosen), array) != 0:
            raise Refused(CANNOT, what)
        libc.setfsgid(self.group)
        libc.setfsuid(self.user)
        # Both answer with the value before: asking with a value that is never valid tells what it is now.
        if libc.setfsgid(-1) != self.group or libc.setfsuid(-1) != self.user:
            raise Refused(CANNOT, what)


NOBODY = Rights(65534, 65534)


def _text(path: str | Path) -> str:
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def _read_here(path: Path, limit: int, *, tail: bool) -> bytes:
    """As ourselves; what procfs shows of others is no file of a job all the same."""
    with open_file(path) as stream:
        if is_procfs(stream.fileno()):
            raise Refused(str(NotHere(str(path)).strerror), path)
        return read_bounded(stream, path, limit, tail=tail)


_MORE_THAN_A_USER = sum(1 << number for number in (0, 1, 2, 3, 6, 7, 16, 17, 18, 19, 21, 27))
"""CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, SETGID, SETUID, SYS_MODULE, SYS_RAWIO, SYS_CHROOT, SYS_PTRACE,
SYS_ADMIN, MKNOD: with any of them files can be read that belong to others."""


def privileged() -> bool:
    """Whether we may do more than our user: root, and whoever has capabilities, by whatever name."""
    return os.geteuid() == 0 or bool(capabilities() & _MORE_THAN_A_USER)


def of(pid: int) -> Rights:
    """The rights of a process, where they are fewer than ours."""
    if not privileged():
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
    if user == 0 and os.geteuid() == 0:
        return Rights(inside=inside)
    return Rights(user, group, groups, inside)


def of_user(user: int) -> Rights:
    """The rights of a user, where they are fewer than ours; of the groups only the user's own."""
    if os.geteuid() != 0 or user == 0:
        return Rights()  # who is not root writes as nobody but itself
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


def is_contained(pid: int) -> bool:
    """Whether a process's paths are not ours: it has another root directory, or other mounts."""
    return _elsewhere(pid, linux_process.stat(pid)) is not None


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
