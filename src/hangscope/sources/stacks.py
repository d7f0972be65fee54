"""The Python stacks of a running process, walked in its memory: by thread, function, file and line.

CPython 3.10 to 3.14. The process is not stopped, so a thread that runs may show a stack that it never had: one is kept
only where two walks of it agree, or else it is marked as running. Native frames are py-spy's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hangscope.sources.cannot_read import CannotRead, Torn
from hangscope.sources.process_memory import MOST_S, ProcessMemory, mappings
from hangscope.sources.python_code import CodeLine, Interpreter, interpreter_of

MOST_THREADS = 1024
MOST_FRAMES = 1000
MOST_FRAMES_OF_ALL = 20_000
_MOST_INTERPRETERS = 16
_WALKS = 4
_MOST_CODE = 1 << 24
_FRAME_WORDS = 24
_OF_C = 3
"""Frames that C code pushes (3.12 and newer): they have no code of Python's."""
_ENTRY = "<interpreter trampoline>"


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread with its frames, innermost first."""

    thread: int
    """The kernel's number of it; 0 where Python does not keep it (3.10)."""
    pthread: int
    name: str
    running: bool
    has_gil: bool
    frames: tuple[CodeLine, ...]
    cut: bool = False
    """Whether it has more frames than were read, or one that is none."""


def python_stacks(pid: int) -> str:
    """All threads in the form that py-spy prints. Raises CannotRead."""
    release, threads = thread_stacks(pid)
    lines = [f"Process {pid}: {_title(pid)}", f"Python v{release}", ""]
    for each in threads:
        state = "+".join(["active" if each.running else "idle", *(["gil"] if each.has_gil else [])])
        number = str(each.thread) if each.thread else hex(each.pthread)
        name = f': "{_plain(each.name)}"' if each.name else ""
        lines.append(f"Thread {number} ({state}){name}")
        lines += [f"    {_plain(frame.name)} ({_plain(frame.filename)}:{frame.line})" for frame in each.frames]
        lines += ["    ..."] if each.cut else []
        lines.append("")
    return "\n".join(lines)


def as_json(pid: int) -> list[dict[str, Any]]:
    """All threads in the form of py-spy's JSON. Raises CannotRead."""
    return [
        {
            "pid": pid,
            "thread_id": each.pthread,
            "os_thread_id": each.thread or None,
            "thread_name": each.name,
            "active": each.running,
            "owns_gil": each.has_gil,
            "frames": [{"name": one.name, "filename": one.filename, "line": one.line} for one in each.frames],
        }
        for each in thread_stacks(pid)[1]
    ]


def thread_stacks(pid: int, seconds: float = MOST_S) -> tuple[str, list[ThreadStack]]:
    """(Python's release, its threads), the newest first as faulthandler lists them. Raises CannotRead."""
    with ProcessMemory(pid, seconds) as memory:
        files, _ = mappings(pid)
        python = interpreter_of(memory, files)
        if python is None:
            raise CannotRead("no Python runs in it")
        if python.free_threaded:
            raise CannotRead("its Python runs without a GIL, whose frames are not known")
        for attempt in range(_WALKS):
            try:
                return python.release, list(_threads(python, pid))
            except Torn as error:
                if attempt == _WALKS - 1:
                    raise CannotRead(f"its threads do not hang together: {error.reason}") from None
    raise AssertionError


def thread_frames(python: Interpreter, pid: int) -> Iterator[tuple[int, list[tuple[int, CodeLine]]]]:
    """The kernel's number of each thread, and where each of its frames lies, innermost first: read once, so that it is
    for the caller to see whether it holds."""
    numbers = _numbers(pid)
    states = [state for state, _ in _states(python)]
    for state in states:
        yield _number(python, numbers, state, states), list(_chain(python, state, MOST_FRAMES))


def _threads(python: Interpreter, pid: int) -> Iterator[ThreadStack]:
    numbers = _numbers(pid)
    left = MOST_FRAMES_OF_ALL
    states = list(_states(python))
    for state, has_gil in states:
        number = _number(python, numbers, state, [each for each, _ in states])
        found = _thread(python, numbers, number, state, has_gil, min(left, MOST_FRAMES))
        left -= len(found.frames)
        if found.frames:
            yield found


def _states(python: Interpreter) -> Iterator[tuple[int, bool]]:
    """The states of all threads, and whether each has the GIL."""
    memory, at = python.memory, python.offsets
    states: set[int] = set()
    interpreter = memory.word(python.runtime + at["interpreters"])
    if not interpreter:
        raise Torn("no interpreter")
    for _ in range(_MOST_INTERPRETERS):
        holder = _gil_holder(python, interpreter)
        state = memory.word(interpreter + at["interpreter.threads"])
        while state and len(states) < MOST_THREADS and state not in states:
            states.add(state)
            yield state, state == holder
            state = memory.word(state + at["thread.next"])
        interpreter = memory.word(interpreter + at["interpreter.next"])
        if not interpreter:
            return


def _gil_holder(python: Interpreter, interpreter: int) -> int:
    """The thread state that has the GIL of this interpreter; 0 where none has."""
    memory, at = python.memory, python.offsets
    try:
        if "interpreter.gil_holder" in at:  # 3.13 and newer: its own
            locked, holder = interpreter + at["interpreter.gil_locked"], interpreter + at["interpreter.gil_holder"]
        elif "interpreter.gil" in at:
            gil = memory.word(interpreter + at["interpreter.gil"])
            locked, holder = gil + at["gil.locked"], gil + at["gil.holder"]
        else:
            locked, holder = python.runtime + at["runtime.gil_locked"], python.runtime + at["runtime.gil_holder"]
        return memory.word(holder) if int.from_bytes(memory.read(locked, 4), "little") == 1 else 0
    except Torn:
        return 0


def gil_holder(python: Interpreter) -> tuple[int, ...] | None:
    """The thread state that has the GIL of the first interpreter, its innermost frame, and what is in that frame; None
    where none has it."""
    memory, at = python.memory, python.offsets
    holder = _gil_holder(python, memory.word(python.runtime + at["interpreters"]))
    if not holder:
        return None
    frame = next((frame for frame, _ in _chain(python, holder, MOST_FRAMES)), 0)
    return (holder, frame, *memory.words(frame, _FRAME_WORDS)) if frame else (holder, 0)


_LOOKS = 50_000
_TIMES = 5


def gil_holder_runs(python: Interpreter, seconds: float) -> bool:
    """Whether the thread that has the GIL is seen to run Python: its frame's instruction changes while it is looked at
    as often as can be, tens of thousands of times in `seconds`; on a busy machine that takes longer. A call of C that
    is made again and again fills nearly all of the time, but not all of it: one of a millisecond is seen to end."""
    memory, at = python.memory, python.offsets
    holder = _gil_holder(python, memory.word(python.runtime + at["interpreters"]))
    frame = next((frame for frame, _ in _chain(python, holder, MOST_FRAMES)), 0) if holder else 0
    if not frame:
        return True
    place = frame + at["frame.instruction"]
    first = memory.word(place)
    begun = time.monotonic()
    looks = 0
    while (spent := time.monotonic() - begun) < seconds or (looks < _LOOKS and spent < _TIMES * seconds):
        looks += 1
        if memory.word(place) != first:
            return True
    return False


def _number(python: Interpreter, numbers: _Numbers, state: int, states: Sequence[int]) -> int:
    """The kernel's number of a thread. Python 3.10 does not keep it: there the oldest one is the main thread's."""
    if "thread.native_id" not in python.offsets:
        return numbers.pid if state == states[-1] else 0
    return numbers.of(python.memory.word(state + python.offsets["thread.native_id"]))


def _thread(python: Interpreter, numbers: _Numbers, thread: int, state: int, has_gil: bool, most: int) -> ThreadStack:
    pthread = python.memory.word(state + python.offsets["thread.id"])
    before: tuple[tuple[CodeLine, ...], bool] | None = None
    same = False
    for _ in range(_WALKS):
        try:
            now = _frames(python, state, most)
        except Torn:
            now = (), True
        same = before == now
        if same:
            break
        before = now
    frames, cut = before or ((), True)
    name = "MainThread" if thread == numbers.pid else numbers.name(thread)
    return ThreadStack(thread, pthread, name, not same or numbers.runs(thread), has_gil, frames, cut)


def _frames(python: Interpreter, state: int, most: int) -> tuple[tuple[CodeLine, ...], bool]:
    found = [line for _, line in _chain(python, state, most + 1)]
    return tuple(found[:most]), len(found) > most


def _chain(python: Interpreter, state: int, most: int) -> Iterator[tuple[int, CodeLine]]:
    """Where each frame of a thread lies, and what it is in, innermost first."""
    memory, at = python.memory, python.offsets
    if "thread.cframe" in at:
        cframe = memory.word(state + at["thread.cframe"])
        frame = memory.word(cframe + at["cframe.frame"]) if cframe else 0
    else:
        frame = memory.word(state + at["thread.frame"])
    seen: set[int] = set()
    while frame and len(seen) < most:
        if frame in seen:
            raise Torn("a stack that runs in a circle")
        seen.add(frame)
        line = _frame(python, frame)
        if line is not None:
            yield frame, line
        frame = memory.word(frame + at["frame.previous"])


def _frame(python: Interpreter, frame: int) -> CodeLine | None:
    """Where a frame is; None of one that has no code of its own."""
    memory, at = python.memory, python.offsets
    if python.minor >= 12 and memory.read(frame + at["frame.owner"], 1)[0] >= _OF_C:
        return None
    code = memory.word(frame + at["frame.code"]) & ~7  # from 3.14 on its lowest bits are a tag
    if python.minor == 10:
        unit = int.from_bytes(memory.read(frame + at["frame.instruction"], 4), "little", signed=True)
        instruction = 2 * unit
    else:
        instruction = memory.word(frame + at["frame.instruction"]) - (code + at["code.instructions"])
    if not -2 <= instruction < _MOST_CODE:
        raise Torn("a frame that is outside of its code")
    line = python.line_of(code, max(instruction, 0))
    return None if line.name == _ENTRY else line


# ---- what the kernel shows of threads --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Numbers:
    """By the numbers that threads have in the process's own pid namespace, those that they have in ours."""

    pid: int
    outer: dict[int, int] | None
    """None where the namespace is ours."""

    def of(self, inner: int) -> int:
        return inner if self.outer is None else self.outer.get(inner, 0)

    def name(self, thread: int) -> str:
        return self._file(thread, "comm").strip() if thread else ""

    def runs(self, thread: int) -> bool:
        """Whether the kernel has the thread running right now."""
        return self._file(thread, "stat").rpartition(")")[2].split()[:1] == ["R"]

    def _file(self, thread: int, name: str) -> str:
        try:
            with open(f"/proc/{self.pid}/task/{thread}/{name}", errors="replace") as stream:
                return stream.read(4096)
        except OSError:
            return ""


def _numbers(pid: int) -> _Numbers:
    if len(_namespace_pids(f"/proc/{pid}/status")) < 2:
        return _Numbers(pid, None)
    found: dict[int, int] = {}
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        threads = []
    for thread in threads[:MOST_THREADS]:
        numbers = _namespace_pids(f"/proc/{pid}/task/{thread}/status")
        if numbers:
            found[numbers[-1]] = int(thread)
    return _Numbers(pid, found)


def _namespace_pids(path: str) -> list[int]:
    """The numbers of a process or thread, from our pid namespace to its own."""
    try:
        with open(path, errors="replace") as stream:
            for line in stream.read(1 << 16).splitlines():
                if line.startswith("NSpid:"):
                    return [int(word) for word in line.split()[1:]]
    except (OSError, ValueError):
        pass
    return []


def _title(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            words = stream.read(4096).rstrip(b"\0").split(b"\0")
    except OSError:
        return "?"
    return _plain(" ".join(os.fsdecode(word) for word in words))


def _plain(text: str) -> str:
    """Without what would begin another line, or could not be written."""
    return "".join(each if each.isprintable() else "?" for each in text)
