"""Where the ranks' sockets lie: a directory for the user alone, with a short path, for a socket's has 107 bytes."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hangscope.errors import SettingsError
from hangscope.processes import linux_process

PREFIX = "hangscope-"
_LONGEST_NAME = len("/4194304.sock")
_LONGEST_PATH = 107
OWNER = "owner"


def make(environ: Mapping[str, str]) -> Path:
    """A new directory of mode 0700. What runs that are long over left behind is cleared away first."""
    failure = ""
    for base in (environ.get("XDG_RUNTIME_DIR"), environ.get("TMPDIR"), "/tmp", "/dev/shm", "/var/tmp"):
        if not base or len(os.fsencode(base)) + 1 + len(PREFIX) + 8 + _LONGEST_NAME > _LONGEST_PATH:
            continue
        try:
            return make_in(base)
        except OSError as error:
            failure = f"{base}: {error.strerror}"
    raise SettingsError(f"no directory for the ranks' sockets ({failure})", hint="set TMPDIR to a short, writable path")


def make_in(base: str) -> Path:
    """A new directory below `base` that a later run clears away, should this one be killed."""
    with contextlib.suppress(OSError):
        _clear(Path(base))
    made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    with contextlib.suppress(OSError):
        (made / OWNER).write_text(str(os.getpid()))
    return made


def remove(directory: Path) -> None:
    """At the end of the run, unless a process of the job lives on and may want it."""
    if not _has_ranks(directory):
        shutil.rmtree(directory, ignore_errors=True)


def _clear(base: Path) -> None:
    for entry in os.scandir(base):
        if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False) and entry.stat().st_uid == os.getuid():
            directory = Path(entry.path)
            if (directory / OWNER).exists() and not _has_owner(directory) and not _has_ranks(directory):
                shutil.rmtree(directory, ignore_errors=True)


def _has_owner(directory: Path) -> bool:
    """Whether the run that made it is there; that may be this one, which makes several."""
    with contextlib.suppress(OSError, ValueError):
        return _lives(int((directory / OWNER).read_text()))
    return False


def _has_ranks(directory: Path) -> bool:
    names = [path.stem for ending in ("json", "pipe") for path in directory.glob(f"*.{ending}")]
    return any(_lives(pid) for name in names if (pid := linux_process.whole_number(name)) is not None)


def _lives(pid: int) -> bool:
    found = linux_process.stat(pid)
    return found is not None and found.alive
