"""The Python stacks of one rank: from its worker server, else by py-spy from outside, else by its stack signal.

The worker server needs the rank's GIL, py-spy the right to trace, the signal a companion. A server that answers other
questions while this one stays open means that something holds the GIL.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from hangscope.recorder import process, rights
from hangscope.recorder.part import Part
from hangscope.recorder.server import ask
from hangscope.recorder.workers import Worker

ANSWER_S = 2.0
PY_SPY_S = 6.0
SIGNAL_S = 1.5


def sample(part: Part, worker: Worker, number: int) -> bool | None:
    """Save the stacks as sample `number`. Returns whether Python itself answered; None where that cannot be told."""
    answered: bool | None = None
    reasons: list[str] = []
    text = by = None
    if worker.socket is not None and "dump_traceback" in worker.handlers:
        answer = ask(worker.socket, "dump_traceback", ANSWER_S)
        answered = True if answer.ok else False if answer.late else None
        if answer.ok:
            text, by = answer.body.decode(errors="replace"), "worker-server"
        else:
            reasons.append(f"worker server: {answer.error or answer.status}")
    if text is None:
        text, why = _py_spy(worker.pid)
        by = "py-spy"
        if text is None:
            reasons.append(f"py-spy: {why}")
    if text is None:
        text, why = _signal(worker)
        by = "faulthandler"
        if text is None:
            reasons.append(f"stack signal: {why}")
    if text is None:
        part.gap(f"stacks of rank {worker.rank}", "; ".join(reasons), worker.rank)
        return answered
    part.filled(f"stacks of rank {worker.rank}", worker.rank)
    at = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    head = f"# hangscope stacks rank={worker.rank} pid={worker.pid} sample={number} by={by} at={at}\n"
    part.write(f"stacks/rank_{worker.rank}.{number}.txt", head + text, rank=worker.rank)
    return answered


def next_number(part: Part) -> int:
    """The number of the next sample: a later capture adds to the earlier ones."""
    numbers = [0]
    for path in (part.directory / "stacks").glob("rank_*.txt"):
        middle = path.name.split(".")[-2]
        if middle.isdigit():
            numbers.append(int(middle))
    return max(numbers) + 1


def py_spy() -> str | None:
    """py-spy on the PATH, or beside our own interpreter."""
    beside = Path(sys.executable).with_name("py-spy")
    return shutil.which("py-spy") or (str(beside) if beside.exists() else None)


def _py_spy(pid: int) -> tuple[str | None, str]:
    program = py_spy()
    if program is None:
        return None, "not installed"
    try:
        # Not blocking: the process is never stopped, at the price of a stack that may be torn while it runs.
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=PY_SPY_S,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {PY_SPY_S:g} s"
    except OSError as error:
        return None, error.strerror or str(error)
    if done.returncode != 0 or "Thread" not in done.stdout:
        return None, (done.stderr.strip().splitlines() or ["no stack"])[0]
    return done.stdout, ""


def _signal(worker: Worker) -> tuple[str | None, str]:
    """Ask the companion's handler, after checking that signal and file are still its own."""
    number, file, fd = worker.stack_signal, worker.stack_file, worker.stack_fd
    if number is None or file is None or fd is None:
        return None, "the companion set none up"
    told = process.stat(worker.pid)
    if told is None or not told.alive or told.state in "Tt":
        return None, "the process is stopped or gone"
    try:
        if not process.caught_signals(worker.pid) >> (number - 1) & 1:
            return None, "its handler was removed"
        if os.readlink(f"/proc/{worker.pid}/fd/{fd}") != os.path.realpath(file):
            return None, "its file was closed"
        before = os.path.getsize(file)
        os.kill(worker.pid, number)
    except OSError as error:
        return None, error.strerror or str(error)
    deadline = time.monotonic() + SIGNAL_S
    size = before
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = os.path.getsize(file)
        if now > before and now == size:
            break
        size = now
    try:
        written = min(max(0, os.path.getsize(file) - before), 1 << 20)
        text = rights.of(worker.pid).read(Path(file), written, tail=True).decode(errors="replace") if written else ""
    except OSError as error:
        return None, error.strerror or str(error)
    return (text, "") if text else (None, "no answer")
