"""The process that opens what another process names, with that one's rights: it has none of ours left.

It is started isolated, takes who it shall be as its first line, becomes that for good, and then answers one question a
line: read a file, find files, look at files. It has that user, group and supplementary groups and no capability, so
that the kernel itself says what may be opened; the target's root directory, where that is not ours; and no file of
procfs, whose links lead to other processes' files by whoever looks at them. Whoever it becomes might meddle with it:
what it answers is the target's own word, and bounded by who asks.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import stat
import struct
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from hangscope.safeio.beneath import NotHere, open_named
from hangscope.safeio.safe_files import Refused, kind_of, read_bounded

MOST_LISTED = 100_000
CANNOT = "it belongs to another user, and rights cannot be given away here"
NO_CONTAINER = "the container of its process cannot be entered"
_NO_NEW_PRIVILEGES = 38
_NOT_DUMPABLE = 4
_VERSION_3 = 0x20080522
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def main() -> None:
    """Answer what comes on standard input, until it ends."""
    questions = sys.stdin.buffer
    answers = sys.stdout.buffer
    try:
        become(json.loads(questions.readline()))
    except (OSError, ValueError) as error:
        _answer(answers, {"refused": getattr(error, "strerror", None) or str(error)})
        return
    _answer(answers, {})
    for line in questions:
        asked = json.loads(line)
        try:
            found = _ACTS[asked["act"]](asked)
        except Refused as refused:
            _answer(answers, {"refused": refused.strerror})
        except OSError as error:
            _answer(answers, {"errno": error.errno, "why": error.strerror})
        else:
            _answer(answers, {}, found)


def _answer(answers: BinaryIO, about: dict[str, Any], data: bytes = b"") -> None:
    head = json.dumps(about).encode()
    answers.write(struct.pack(">II", len(head), len(data)) + head + data)
    answers.flush()


# ---- who we become ---------------------------------------------------------------------------------------------------


def become(rights: dict[str, Any]) -> None:
    """For good: the target's root and working directory, its ids, and no capability. Raises Refused where it cannot
    be made sure."""
    if rights["inside"] is not None:
        _enter(*rights["inside"])
    libc = ctypes.CDLL(None, use_errno=True)
    user = rights["user"]
    if user is not None:
        group = rights["group"]
        try:
            if (os.getuid(), os.getgid()) != (user, group) or sorted(os.getgroups()) != sorted(rights["groups"]):
                os.setgroups(rights["groups"])
                os.setresgid(group, group, group)
                os.setresuid(user, user, user)
        except PermissionError:
            raise Refused(CANNOT, "") from None
        if os.getresuid() != (user, user, user) or os.getresgid() != (group, group, group):
            raise Refused(CANNOT, "")
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.prctl(_NOT_DUMPABLE, 0, 0, 0, 0)
    if libc.capset(header, nothing) != 0 or capabilities() != 0:
        raise Refused(CANNOT, "")


def capabilities() -> int:
    """What this process may do beyond its user: a bit for each."""
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capget(header, sets) != 0:
        return 0
    return sets[0] | sets[3] << 32


def _enter(pid: int, started: int) -> None:
    """The process's own root and working directory. By handles, taken while it is that process."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        root = os.open(f"/proc/{pid}/root", flags)
        here = os.open(f"/proc/{pid}/cwd", flags)
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        if int(fields[19]) != started:
            raise Refused("its process has ended", "")
        os.fchdir(root)
        os.chroot(".")
        os.fchdir(here)
    except FileNotFoundError:
        raise Refused("its process has ended", "") from None
    except PermissionError:
        raise Refused(NO_CONTAINER, "") from None


# ---- what we answer --------------------------------------------------------------------------------------------------


def _read(asked: dict[str, Any]) -> bytes:
    path = _path(asked["path"])
    before = os.stat(path)
    if not stat.S_ISREG(before.st_mode):
        raise Refused(f"{kind_of(before.st_mode)}, not a file", path)
    try:
        handle = open_named(path, _READ, strangers=True, procfs=False)
    except NotHere as error:
        raise Refused(str(error.strerror), path) from None
    with os.fdopen(handle, "rb") as stream:
        return read_bounded(stream, path, asked["limit"], tail=asked["tail"])


def _find(asked: dict[str, Any]) -> bytes:
    found = sorted(islice(glob.iglob(_path(asked["pattern"])), MOST_LISTED))[: asked["most"]]
    return b"\0".join(map(os.fsencode, found))


def _files(asked: dict[str, Any]) -> bytes:
    found = []
    for number, name in enumerate(asked["paths"]):
        try:
            state = os.stat(_path(name))
        except OSError:
            continue
        if stat.S_ISREG(state.st_mode):
            found.append((number, state.st_mtime))
    return json.dumps(found).encode()


def _path(text: str) -> str:
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


_ACTS: dict[str, Callable[[dict[str, Any]], bytes]] = {"read": _read, "find": _find, "files": _files}
