"""Holding a job's launcher for some seconds: it must not end the other ranks because the first one has ended.

A stopped launcher that nobody lets go would be worse than what it was stopped for. So a process of its own stops it and
lets it go: when we say so, when we are gone, however that came, or when its time is up. We let it go as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from hangscope.processes import linux_process
from hangscope.processes.isolated_python import clean_environment, helper_command

BEGIN_S = 5.0
"""For the helper to start and to stop the launcher."""
STOP_S = 1.0
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""What a scheduler may send to all processes of a job: the helper ends when it has let go."""
_DEEPEST = 32


class Launcher(NamedTuple):
    """One process, by its number and when it started: the number may be given to another."""

    pid: int
    started_ticks: int


def launchers(ranks: Collection[int], top: int) -> list[Launcher]:
    """The processes above these ranks, up to `top`: torchrun, a script that started it. None of the ranks, none of
    those that we run below, and none that is stopped already, which is somebody else's to let go."""
    ours = set(_above(os.getpid()))
    found: dict[int, Launcher] = {}
    for rank in ranks:
        line = list(_above(rank))
        if top not in line:
            continue
        for pid in line[: line.index(top) + 1]:
            stat = linux_process.stat(pid)
            if pid not in ours and pid not in ranks and stat is not None and stat.state not in "TZX":
                found[pid] = Launcher(pid, stat.started_ticks)
    return list(found.values())


def _above(pid: int) -> Iterator[int]:
    """A process and those above it."""
    for _ in range(_DEEPEST):
        stat = linux_process.stat(pid)
        if stat is None or pid <= 1:
            return
        yield pid
        pid = stat.parent


@contextlib.contextmanager
def held(processes: Sequence[Launcher], seconds: float) -> Iterator[bool]:
    """Stop these processes until the end of the `with`, and for `seconds` at most; whether they were stopped."""
    helper = _start(processes, seconds) if processes else None
    try:
        yield helper is not None
    finally:
        for process in processes if helper is not None else ():
            _signal(process, signal.SIGCONT)
        if helper is not None:
            _end(helper)


def _start(processes: Sequence[Launcher], seconds: float) -> subprocess.Popen[bytes] | None:
    try:
        helper = subprocess.Popen(
            helper_command(__name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=clean_environment(os.environ),
            start_new_session=True,
        )
    except OSError:
        return None
    assert helper.stdin is not None and helper.stdout is not None
    try:
        helper.stdin.write(json.dumps({"processes": processes, "seconds": seconds}).encode() + b"\n")
        helper.stdin.flush()
        if _readable(helper.stdout.fileno(), BEGIN_S) and os.read(helper.stdout.fileno(), 1):
            return helper
    except OSError:
        pass
    for process in processes:
        _signal(process, signal.SIGCONT)  # it may have come to stop some
    _end(helper)
    return None


def _readable(descriptor: int, seconds: float) -> bool:
    """Whether something can be read there within that time. poll(), for select() knows no descriptor above 1,023."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def _end(helper: subprocess.Popen[bytes]) -> None:
    for stream in (helper.stdin, helper.stdout):
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()
    try:
        helper.wait(BEGIN_S)
    except subprocess.TimeoutExpired:
        helper.kill()
        helper.wait()


def _signal(process: Launcher, number: signal.Signals) -> None:
    stat = linux_process.stat(process.pid)
    if stat is not None and stat.started_ticks == process.started_ticks:
        with contextlib.suppress(OSError):
            os.kill(process.pid, number)


def _await_stop(processes: Sequence[Launcher]) -> None:
    """A process stops when it next runs, which takes a moment."""
    until = time.monotonic() + STOP_S
    while time.monotonic() < until:
        states = [stat.state for process in processes if (stat := linux_process.stat(process.pid)) is not None]
        if all(state in "TZX" for state in states):
            return
        time.sleep(0.01)


def main() -> None:
    """The helper: stop, say so, wait for the end of standard input or of the time, let go."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    asked = json.loads(sys.stdin.buffer.readline())
    until = time.monotonic() + float(asked["seconds"])
    processes = [Launcher(*each) for each in asked["processes"]]
    try:
        for process in processes:
            _signal(process, signal.SIGSTOP)
        _await_stop(processes)
        os.write(1, b"h")
        _readable(sys.stdin.fileno(), until - time.monotonic())
    finally:
        for process in processes:
            _signal(process, signal.SIGCONT)
