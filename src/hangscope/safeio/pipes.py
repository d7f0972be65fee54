"""Pipes with a name that another process made and listens on. Standard library only: it runs in training images."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from hangscope.safeio.safe_files import Refused, folder_below, kind_of

NOBODY_LISTENS = "nobody listens on it"
_WRITE = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_pipe(path: Path, owner: int) -> int:
    """A handle for writing to a pipe that this user made and somebody reads; never waits. A link, a file, another
    user's pipe and one that nobody reads are refused."""
    with folder_below(path.parent, [], wary=True) as folder:
        found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        _check(found, owner, path)
        try:
            handle = os.open(path.name, _WRITE, dir_fd=folder)
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise Refused(NOBODY_LISTENS, path) from None
            if error.errno == errno.ELOOP:
                raise Refused("a link, not followed", path) from None
            raise
    try:
        _check(os.fstat(handle), owner, path)  # between the look and the opening it may have been exchanged
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check(found: os.stat_result, owner: int, path: Path) -> None:
    if not stat.S_ISFIFO(found.st_mode):
        kind = kind_of(found.st_mode) if not stat.S_ISREG(found.st_mode) else "a file"
        raise Refused(f"{kind}, not a pipe", path)
    if found.st_uid != owner:
        raise Refused(f"belongs to another user (user {found.st_uid})", path)
