"""Opening what a process names with that process's rights, not with ours.

Root that looks at somebody's process must not believe what is in its environment: `TORCHELASTIC_ERROR_FILE=/etc/shadow`
would be copied into an incident that the process's owner reads. So a path that comes from a process is opened by a
thread that has given its rights away for good: user, group and supplementary groups are the process's own. Linux keeps
these per thread; the C library's own wrapper for groups would change all threads at once, hence the plain system call.
"""

from __future__ import annotations

import ctypes
import glob
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hangscope.incident.touch import Patience, Refused, read_file

T = TypeVar("T")

SECONDS = 5.0
_SETGROUPS = {"x86_64": 116, "aarch64": 159, "ppc64le": 81, "riscv64": 159}
_MOST_GROUPS = 64


@dataclass(frozen=True, slots=True)
class Rights:
    """Whose files a process may read. `user` is None where it is ours: nothing needs to be given away then."""

    user: int | None = None
    group: int = 0
    groups: tuple[int, ...] = ()

    def read(self, path: Path, limit: int, *, tail: bool = False) -> bytes:
        """At most `limit` bytes of a regular file, as the process could read it, in at most some seconds."""
        return self._with_them(str(path), lambda: read_file(path, limit, tail=tail))

    def find(self, pattern: str, most: int = 256) -> list[Path]:
        """The files that match, as the process could list them."""
        return self._with_them(pattern, lambda: [Path(name) for name in sorted(glob.glob(pattern))[:most]])

    def _with_them(self, what: str, act: Callable[[], T]) -> T:
        def run() -> T:
            if self.user is not None:
                self._give_away(what)
            return act()

        return Patience(SECONDS).ask(what, run)

    def _give_away(self, what: str) -> None:
        """For this thread, which ends afterwards. Raises Refused where it cannot be made sure."""
        number = _SETGROUPS.get(platform.machine())
        libc = ctypes.CDLL(None, use_errno=True)
        chosen = self.groups[:_MOST_GROUPS]
        array = (ctypes.c_uint32 * len(chosen))(*chosen)
        if number is None or libc.syscall(number, len(chosen), array) != 0:
            raise Refused("it belongs to another user, and rights cannot be given away here", what)
        libc.setfsgid(self.group)
        libc.setfsuid(self.user)
        # Both answer with the value before: asking with a value that is never valid tells what it is now.
        if libc.setfsgid(-1) != self.group or libc.setfsuid(-1) != self.user:
            raise Refused("it belongs to another user, and rights cannot be given away here", what)


def of(pid: int) -> Rights:
    """The rights of a process, where they are fewer than ours."""
    if os.geteuid() != 0:
        return Rights()
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return Rights(65534, 65534)  # it is gone: nobody's rights
    told = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    try:
        # The fourth number is what the kernel itself checks files with.
        user, group = int(told["Uid"][3]), int(told["Gid"][3])
        groups = tuple(int(word) for word in told.get("Groups", ()))
    except (KeyError, IndexError, ValueError):
        return Rights(65534, 65534)
    return Rights() if user == 0 else Rights(user, group, groups)


def owner_of(pid: int) -> int | None:
    """The user that a process runs as; None where there is no such process."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
