"""Where a process of Ray's stands, and which tasks it waits for in `ray.get` or `ray.wait`.

One run of py-spy with local variables gives both: the stacks, and where the refs lie that the call was given. Of the
variables nothing is kept but the ids of tasks that the cluster knows.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Mapping
from typing import Any

from hangscope.processes.linux_process import PROC
from hangscope.processes.programs import PY_SPY_S, py_spy, run_bounded
from hangscope.safeio import bounded_json
from hangscope.safeio.safe_files import Patience
from hangscope.sources import stacks
from hangscope.sources.cannot_read import CannotRead
from hangscope.sources.ray.process_memory import ProcessMemory, ids_held

MOST_BYTES = 32 << 20
MOST_THREADS = 512
MOST_FRAMES = 256
_CALLS = {
    "get": "ray.get",
    "wait": "ray.wait",
    "Worker.get_objects": "ray.get",
    "get_objects": "ray.get",
    "Worker.wait": "ray.wait",
}
"""Functions of Ray's worker module in which somebody waits for tasks, and how people know them."""
_CLIENT_CALLS = {"Worker.get": "ray.get", "Worker._get": "ray.get", "Worker.wait": "ray.wait"}
"""The same in Ray Client (ray://), where refs lie elsewhere."""
_NOT_REFS = ("self", "worker", "timeout", "timeout_ms", "cls")


class NoStack(Exception):
    """py-spy gave none; says why."""


def threads(pid: int, known: Collection[bytes]) -> list[dict[str, Any]]:
    """Every thread of a process with its frames, innermost first, and what it waits for. Raises NoStack."""
    sampled = _sampled(pid)
    rows = []
    for thread in sampled[:MOST_THREADS]:
        frames = [frame for frame in thread.get("frames") or () if isinstance(frame, dict)]
        row: dict[str, Any] = {
            "name": str(thread.get("thread_name") or ""),
            "active": bool(thread.get("active")),
            "holds_gil": bool(thread.get("owns_gil")),
            "switches": _switches(pid, thread.get("os_thread_id")),
            "frames": [_frame(frame) for frame in frames[:MOST_FRAMES]],
        }
        call, addresses = _ray_call(frames)
        if call:
            row["waits_in"] = call
            row["waits_for"] = _awaited(pid, addresses, known)
        rows.append(row)
    return rows


def _sampled(pid: int) -> list[dict[str, Any]]:
    program = py_spy()
    if program is None:
        return _from_memory(pid)
    words = [program, "dump", "--json", "--locals", "--nonblocking", "--pid", str(pid)]
    try:
        done = run_bounded(words, PY_SPY_S, MOST_BYTES)
        if not done.ok or done.cut:
            raise NoStack((done.error.strip().splitlines() or ["py-spy: no stack"])[0][:300])
        value = bounded_json.loads(done.out)
    except subprocess.TimeoutExpired as late:
        raise NoStack(f"py-spy: no answer within {late.timeout:g} s") from None
    except (OSError, ValueError) as error:
        raise NoStack(f"py-spy: {error}") from None
    if not isinstance(value, list):
        raise NoStack("py-spy: an answer of another form")
    return [thread for thread in value if isinstance(thread, dict)]


def _from_memory(pid: int) -> list[dict[str, Any]]:
    """By our own reader of frames: without the locals, so that what a call waits for is not known."""
    try:
        return Patience(PY_SPY_S).ask(str(pid), lambda: stacks.as_json(pid))
    except (CannotRead, OSError) as error:
        cure = "for what a call waits for: pip install py-spy into the cluster's Python"
        raise NoStack(f"{error}; py-spy is not there ({cure})"[:300]) from None


def _switches(pid: int, thread: object) -> int | None:
    """How often a thread has gone to sleep so far: one that waits for good does so no more."""
    if not isinstance(thread, int):
        return None
    try:
        lines = (PROC / str(pid) / "task" / str(thread) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return None
    counts = [line.split()[1] for line in lines if line.startswith("voluntary_ctxt_switches:")]
    return int(counts[0]) if counts and counts[0].isdigit() else None


def _frame(frame: Mapping[str, Any]) -> list[Any]:
    line = frame.get("line")
    name = str(frame.get("name") or "?")[:400]
    file = str(frame.get("filename") or "?")[:1000]
    return [name, file, line if isinstance(line, int) else 0]


def _ray_call(frames: list[dict[str, Any]]) -> tuple[str, list[int]]:
    """The call of Ray's that a stack is in, and where its variables lie; "" where it is in none."""
    call = ""
    addresses: list[int] = []
    for frame in frames:
        parts = str(frame.get("filename") or "").split(os.sep)
        names = _CLIENT_CALLS if parts[-3:] == ["util", "client", "worker.py"] else _CALLS
        inside = parts[-3:] == ["ray", "_private", "worker.py"] or names is _CLIENT_CALLS
        name = str(frame.get("name") or "")
        if not inside or name not in names:
            if call:
                break
            continue
        call = names[name]
        for local in frame.get("locals") or ():
            if isinstance(local, dict) and local.get("name") not in _NOT_REFS and isinstance(local.get("addr"), int):
                addresses.append(local["addr"])
    return call, addresses


def _awaited(pid: int, addresses: Collection[int], known: Collection[bytes]) -> list[str] | None:
    """The tasks whose results somebody waits for; None where that cannot be seen."""
    if not known or not addresses:
        return None
    try:
        with ProcessMemory(pid) as memory:
            return sorted(each.hex() for each in ids_held(memory, addresses, known)) or None
    except OSError:
        return None
