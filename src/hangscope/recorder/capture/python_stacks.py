"""The Python stacks of one rank: from its worker server, else from outside, else by its stack signal.

From outside they come by py-spy, or where that is missing or cannot read this Python, by our own reader of frames. The
worker server needs the rank's GIL, looking from outside the right to trace, the signal a companion. A server that
answers other questions while this one stays open means that something holds the GIL.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from hangscope.incident import manifest
from hangscope.incident.node_dir import NodeDir
from hangscope.processes import linux_process, target_rights
from hangscope.processes.programs import MOST_MEMORY, PY_SPY_S, py_spy, run_bounded
from hangscope.processes.target_rights import Rights
from hangscope.recorder.live.find_ranks import RankProcess, is_python
from hangscope.recorder.live.worker_server import ask
from hangscope.safeio import bounded_json
from hangscope.safeio.safe_files import Patience
from hangscope.sources import distributed_state, stacks
from hangscope.sources.call_arguments import schema as call_arguments
from hangscope.sources.cannot_read import CannotRead

ANSWER_S = 2.0
NATIVE_S = 4.0
NATIVE_MEMORY = 3 << 30
"""For native frames the tables of all libraries of a process are read."""
CHILDREN_S = 3.0
MOST_CHILDREN = 32
OWN_S = 3.0
"""For our own reader, which takes milliseconds: a page of the process may come from a file system that hangs."""
MOST_BYTES = 8 << 20
"""A thousand threads with a hundred frames each. Several ranks are asked at a time, and each may have more."""
MOST_CALLS = 1 << 20
MOST_CALLS_KEPT = 64
CALL_FIELDS = ("function", "line", "main", "src", "dst", "tag", "group", "ranks")
SIGNAL_S = 1.5
MOST_SIGNALLED = 1 << 20
_FATAL: dict[int, str] = {
    signal.SIGABRT: "Aborted",
    signal.SIGBUS: "Bus error",
    signal.SIGFPE: "Floating",
    signal.SIGILL: "Illegal instruction",
    signal.SIGSEGV: "Segmentation fault",
}
"""How faulthandler begins to say where a process was that ended so."""


def sample(node_dir: NodeDir, process: RankProcess, number: int, *, native: bool = False) -> bool | None:
    """Save the stacks as sample `number`. Returns whether Python itself answered; None where nobody can know.

    `native`: with the frames of C and C++, which tell a rank that waits for its GPU from one whose code holds the GIL.
    """
    answered: bool | None = None
    reasons: list[str] = []
    text: str | None = None
    by = "worker-server"
    if process.socket is not None and "dump_traceback" in process.handlers:
        answer = ask(process.socket, "dump_traceback", ANSWER_S, MOST_BYTES)
        if answer.ok:
            answered = True
            text = answer.body.decode(errors="replace")
            _keep_calls(node_dir, process, number)
        else:
            answered = False if answer.late else None
            reasons.append(f"worker server: {answer.error or answer.status}")
    if text is None:
        text, by, why = from_outside(process.pid, native=native)
        reasons.append(why)
        _keep_calls_from_outside(node_dir, process, number)
    if text is None:
        by = "faulthandler"
        text, why = _by_signal(process)
        reasons.append(f"stack signal: {why}")
    if text is None:
        node_dir.gap(f"stacks of rank {process.rank}", "; ".join(reasons), process.rank)
    else:
        keep(node_dir, process, number, text, by)
    return answered


def _keep_calls(node_dir: NodeDir, process: RankProcess, number: int) -> None:
    """Save with which ranks the calls of torch.distributed speak that the rank is in, where its companion can say."""
    if process.socket is None or "hangscope_calls" not in process.handlers:
        return
    answer = ask(process.socket, "hangscope_calls", ANSWER_S, MOST_CALLS)
    _write_calls(node_dir, process, number, _calls_in(answer.body) if answer.ok else [])


def _keep_calls_from_outside(node_dir: NodeDir, process: RankProcess, number: int) -> None:
    """The same, out of its memory."""
    with contextlib.suppress(CannotRead, OSError):
        calls = Patience(OWN_S).ask(str(process.pid), lambda: distributed_state.calls_of(process.pid))
        _write_calls(node_dir, process, number, calls)


def _write_calls(node_dir: NodeDir, process: RankProcess, number: int, calls: list[dict[str, Any]]) -> None:
    if calls:
        known = {"schema": call_arguments.SCHEMA, "rank": process.rank, "pid": process.pid, "sample": number}
        name = call_arguments.name_of(process.rank, number)
        node_dir.write_json(name, {**known, "calls": calls}, rank=process.rank)


def _calls_in(body: bytes) -> list[dict[str, Any]]:
    """The calls of an answer, with the fields alone that one has."""
    try:
        value = bounded_json.loads(body)
    except ValueError:
        return []
    rows = value.get("calls") if isinstance(value, dict) else None
    calls = [row for row in rows[:MOST_CALLS_KEPT] if isinstance(row, dict)] if isinstance(rows, list) else []
    return [{name: row[name] for name in CALL_FIELDS if name in row} for row in calls]


def keep(node_dir: NodeDir, process: RankProcess, number: int, text: str, by: str) -> None:
    """Save a stack, unless that sample is there."""
    name = f"stacks/rank_{process.rank}.{number}.txt"
    if node_dir.has(name):
        return
    node_dir.filled(f"stacks of rank {process.rank}", process.rank)
    if len(text) >= MOST_BYTES:
        why = f"they are longer than {MOST_BYTES >> 20} MiB, and the rest was not kept"
        node_dir.gap(f"all stacks of rank {process.rank}", why, process.rank)
    head = f"# hangscope stacks rank={process.rank} pid={process.pid} sample={number} by={by} at={manifest.now()}\n"
    node_dir.write(name, head + text[:MOST_BYTES], rank=process.rank)


def keep_crash(node_dir: NodeDir, process: RankProcess, status: int | None, rights: Rights) -> None:
    """Save what a rank that a fatal signal ended wrote about where it was: no stack of it can be asked for any more.

    The processes that it forked write there as well, so its own words are the last that fit how it ended.
    """
    words = _FATAL.get(-(status or 0))
    name = f"stacks/rank_{process.rank}.crash.txt"
    if words is None or process.stack_file is None or node_dir.has(name):
        return
    try:
        written = rights.read(Path(process.stack_file), MOST_SIGNALLED, tail=True).decode(errors="replace")
    except OSError:
        return
    _, found, after = written.rpartition(f"Fatal Python error: {words}")
    if found:
        head = f"# hangscope stacks rank={process.rank} pid={process.pid} sample=0 by=crash at={manifest.now()}\n"
        node_dir.write(name, f"{head}{found}{after}", rank=process.rank)
        node_dir.filled(f"stacks of rank {process.rank}", process.rank)


def children(node_dir: NodeDir, process: RankProcess, number: int, ranks: Collection[int]) -> None:
    """Save the stacks of the processes that a rank started: its wait for one of them may be the whole story.

    From outside, or by the handler that a forked process has from its parent. `ranks` are the pids of the ranks.
    """
    found: list[str] = []
    room = MOST_BYTES
    until = time.monotonic() + CHILDREN_S
    below = [pid for pid, _ in linux_process.descendants(process.pid) if pid not in ranks and is_python(pid)]
    for pid in below[:MOST_CHILDREN]:
        if time.monotonic() > until or room <= 0:
            break
        text, by, _ = from_outside(pid)
        if text is None:
            by = "faulthandler"
            text, _ = _by_signal(replace(process, pid=pid))
        if text is not None:
            head = f"# hangscope stacks rank={process.rank} pid={pid} parent={process.pid} sample={number} by={by}"
            found.append(f"{head} at={manifest.now()}\n{text[:room]}")
            room -= len(text)
    if room <= 0:
        why = f"they are longer than {MOST_BYTES >> 20} MiB, and the rest was not kept"
        node_dir.gap(f"all stacks of the processes that rank {process.rank} started", why, process.rank)
    if found:
        node_dir.write(f"stacks/rank_{process.rank}.{number}.children.txt", "\n".join(found), rank=process.rank)


def next_number(node_dir: NodeDir) -> int:
    """The number of the next sample: a later capture adds to the earlier ones."""
    numbers = [0]
    for path in (node_dir.directory / "stacks").glob("rank_*.txt"):
        middle = path.name.split(".")[-2]
        if (number := linux_process.whole_number(middle)) is not None:
            numbers.append(number)
    return max(numbers) + 1


def from_outside(pid: int, *, native: bool = False) -> tuple[str | None, str, str]:
    """(The stacks, by what they were read, why there are none.)"""
    text, why = _by_py_spy(pid, native=native)
    if text is not None:
        return text, "py-spy", ""
    try:
        text = Patience(OWN_S).ask(str(pid), lambda: stacks.python_stacks(pid))
    except CannotRead as error:
        own = error.reason if error.cure is None else f"{error.reason}; {error.cure}"
    except OSError as error:
        own = error.strerror or str(error)
    else:
        return text, "memory", ""
    return None, "", f"py-spy: {why}; from its memory: {own}"


def _by_py_spy(pid: int, *, native: bool) -> tuple[str | None, str]:
    """The stacks by py-spy, or why there are none."""
    program = py_spy()
    if program is None:
        return None, "not installed"
    # Not blocking: the process is never stopped, at the price of a stack that may be torn while it runs. Native frames
    # need it stopped for a moment, and are asked for only where nothing in it answers anyway.
    ways = [["--native"]] if native else []
    why = ""
    for way in [*ways, ["--nonblocking"]]:
        words = [program, "dump", *way, "--full-filenames", "--pid", str(pid)]
        try:
            native_now = "--native" in way
            memory = NATIVE_MEMORY if native_now else MOST_MEMORY
            done = run_bounded(words, NATIVE_S if native_now else PY_SPY_S, MOST_BYTES, memory)
        except subprocess.TimeoutExpired as late:
            why = f"no answer within {late.timeout:g} s"
            continue
        except OSError as error:
            return None, error.strerror or str(error)
        if done.ok and b"Thread" in done.out:
            return done.out.decode(errors="replace"), ""
        why = (done.error.strip().splitlines() or ["no stack"])[0]
    return None, why


def _by_signal(process: RankProcess) -> tuple[str | None, str]:
    """Ask the companion's handler, after checking that signal and file are still its own."""
    number = process.stack_signal
    file = process.stack_file
    if number is None or file is None or process.stack_fd is None:
        return None, "the companion set none up"
    stat = linux_process.stat(process.pid)
    if stat is None or not stat.alive or stat.state in "Tt":
        return None, "the process is stopped or gone"
    try:
        if not linux_process.caught_signals(process.pid) >> (number - 1) & 1:
            return None, "its handler was removed"
        if os.readlink(f"/proc/{process.pid}/fd/{process.stack_fd}") != os.path.realpath(file):
            return None, "its file was closed"
        before = os.path.getsize(file)
        os.kill(process.pid, number)
        written = min(_grown(file, before), MOST_SIGNALLED)
        text = target_rights.of(process.pid).read(Path(file), written, tail=True) if written else b""
    except OSError as error:
        return None, error.strerror or str(error)
    return (text.decode(errors="replace"), "") if text else (None, "no answer")


def _grown(file: str, before: int) -> int:
    """How much is written to a file past its size `before`, once no more comes, or its time is over."""
    deadline = time.monotonic() + SIGNAL_S
    size = before
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = os.path.getsize(file)
        if now > before and now == size:
            break
        size = now
    return max(0, os.path.getsize(file) - before)
