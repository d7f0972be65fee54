"""Starts the watcher of `hangscope.watch()`: one for a job on a node, however many of its processes ask for it.

A process of its own, that the caller waits for: it looks who is above the caller, becomes the watcher itself, as
nobody's child, where there is none yet, and says on stdout which process watches. Standard library only, and quick: it
runs at the start of every rank.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from hangscope.processes import linux_process
from hangscope.processes.isolated_python import clean_environment, hangscope_command
from hangscope.recorder.launch import find_job, node_jobs, run_places
from hangscope.safeio.safe_files import make_private

FOLDER = "watched"
_RANK = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "SLURM_PROCID", "SLURM_LOCALID")
"""By these a process is taken for a rank, which ours is not."""
KNOWN_S = 5.0
_LINE = 64


def main() -> None:
    """The caller waits for the first process, which ends at once, and reads what the second one says."""
    if os.fork():
        os._exit(0)
    os.setsid()
    try:
        _answer(watch(int(sys.argv[1]), sys.argv[2:]))
    except Exception as error:
        _answer(f"{type(error).__name__}: {error}")
    os._exit(0)


def _answer(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def watch(pid: int, words: list[str]) -> str:
    """Become the watcher of the job of `pid`, which does not return. Where there is one already: its number, or ``run``
    where it is a run's agent; else why there is none."""
    if node_jobs.is_watched(pid, linux_process.environment(pid)):
        return "run"
    folder = run_places.private_directory(os.environ).parent / FOLDER
    make_private(folder)
    launcher = find_job.launcher_of(pid, ours_as_well=True)
    for above in (pid, *linux_process.above(pid)):
        found = watcher_of(folder, above)
        if found is not None:
            return str(found)
    named = node_jobs.name_of(launcher)
    if named is None:
        return "it has ended"
    lock = os.open(folder / _file(named), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _of_another(folder, launcher)
    _become(lock, launcher, words)
    return "it could not be started"


def watcher_of(folder: Path, pid: int) -> int | None:
    """The process that watches the job of launcher `pid`, where one lives."""
    named = node_jobs.name_of(pid)
    if named is None:
        return None
    try:
        lock = os.open(folder / _file(named), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None  # nobody holds it: its watcher is gone
    except BlockingIOError:
        return linux_process.whole_number(os.read(lock, _LINE).decode("ascii", "replace").strip())
    finally:
        os.close(lock)


def _file(named: tuple[int, int]) -> str:
    return f"{named[0]}-{named[1]}"


def _of_another(folder: Path, launcher: int) -> str:
    """Another rank of the same job was quicker, and is about to write down its number."""
    until = time.monotonic() + KNOWN_S
    while time.monotonic() < until:
        found = watcher_of(folder, launcher)
        if found is not None:
            return str(found)
        time.sleep(0.02)
    return "another rank started the watcher, and did not say which process it is"


def _become(lock: int, launcher: int, words: list[str]) -> None:
    """The lock goes with us, and so ends with us."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    os.set_inheritable(lock, True)
    command = hangscope_command("attach", str(launcher), "--later", *words)
    _answer(str(os.getpid()))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)  # only now does the caller go on
    os.execve(command[0], command, watcher_environment(os.environ))


def watcher_environment(environ: Mapping[str, str]) -> dict[str, str]:
    kept = clean_environment(environ)
    return {name: value for name, value in kept.items() if name not in _RANK and name != "HANGSCOPE_SOCKETS"}
