"""`watch`: from here on this process and its children are watched, as `hangscope run` watches the ones that it started.

    import hangscope

    hangscope.watch()

A process of its own is started beside this one and reads from outside, as `hangscope attach` does. Here nothing stays:
no thread, no server, no open file. Standard library only: it runs inside training jobs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

OFF = ("off", "0", "no", "false")
START_S = 30.0
MAY_TRACE_US = 0x59616D61
"""Linux: which process may read this one's memory, where the kernel lets only those above do it (yama)."""
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_HELPER = "hangscope.recorder.launch.watch_beside"

_watched: list[int] = []
"""The process that has called `watch`: a child that was forked since has not."""


def watch(
    directory: str | os.PathLike[str] | None = None,
    *,
    stall_after: float | None = None,
    on_hang: str | Sequence[str] = (),
    job: str | None = None,
    node: str | None = None,
) -> bool:
    """Have this process, its children and the other ranks of its launcher watched from now on; whether that is so.

    `directory` is where a hang's evidence goes, by default ``./hangscope/JOB/ATTEMPT``; give one that all nodes share,
    and they find each other. `stall_after` and `on_hang` are those of ``hangscope run``; `job` and `node` are names.

    Safe to call more than once, in every rank, in a child, in a notebook and under ``hangscope run``: a job gets one
    watcher a node. Where it is not possible, a line on stderr says why; there is never an exception.
    """
    try:
        return _watch(directory, stall_after, (on_hang,) if isinstance(on_hang, str) else tuple(on_hang), job, node)
    except Exception as error:  # no training fails because of us
        _say(f"{type(error).__name__}: {error}")
        return False


def _watch(
    directory: str | os.PathLike[str] | None,
    stall_after: float | None,
    on_hang: tuple[str, ...],
    job: str | None,
    node: str | None,
) -> bool:
    if os.environ.get("HANGSCOPE", "").lower() in OFF:
        return False
    if os.getpid() in _watched:
        return True
    if not sys.platform.startswith("linux"):
        _say("only Linux shows what is needed")
        return False
    words = []
    named = {
        "--dir": directory and os.path.abspath(directory),
        "--stall-after": stall_after,
        "--job": job,
        "--node": node,
    }
    for name, value in named.items():
        words += [name, str(value)] if value else []
    for action in on_hang:
        words += ["--on-hang", action]
    from hangscope.processes.isolated_python import helper_command  # not before: importing hangscope must cost nothing

    started = subprocess.run(
        [*helper_command(_HELPER), str(os.getpid()), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None,
        text=True,
        errors="replace",
        timeout=START_S,
    )
    answer = started.stdout.strip()
    if answer.isascii() and answer.isdigit():
        _let_read(int(answer))
    elif answer != "run":
        _say(answer or f"its watcher did not start (status {started.returncode})")
        return False
    _watched[:] = [os.getpid()]
    return True


def _let_read(watcher: int) -> None:
    """Let the watcher read this process's memory, where the kernel asks the process itself for that."""
    try:
        with open(_YAMA) as stream:
            if stream.read().strip() != "1":
                return
    except OSError:
        return
    import ctypes

    ctypes.CDLL(None).prctl(MAY_TRACE_US, watcher, 0, 0, 0)


def _say(why: str) -> None:
    try:
        sys.stderr.write(f"hangscope: this process is not watched: {why}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass  # there may be no stderr
