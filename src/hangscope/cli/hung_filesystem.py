"""Says so when a file system does not answer, lets Ctrl-C through, and gives up after a while.

A call on a shared file system whose server has gone comes back to nobody, and Python's own handling of signals waits
for it too. So a thread beside the verb looks at what the kernel says each thread is in (/proc/self/task/*/syscall):
one that stays in the same call on the same file is hung. `run` needs no such watch: it never waits for a file system.
"""

from __future__ import annotations

import os
import platform
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache

from hangscope.cli.output import complain, note

NOTE_S = 5.0
GIVE_UP_S = 30.0
GIVE_UP_READING_S = 600.0
"""One read of a huge file may take minutes on a slow file system; looking at a name may not."""
STATUS = 2
_EVERY_S = 0.5
_TO_END = (signal.SIGINT, signal.SIGTERM)
_WATCHER = "hung file system watch"
_PATIENT = "touch "
"""How the names of threads begin that ask with patience (`safeio.safe_files`): they deal with no answer themselves."""

# The number of a call in the kernel → which of its arguments is a path ("p") or an open file ("f"). Reading and writing
# an open file has more time than the rest.
_CALLS: dict[str, dict[int, str]] = {
    "x86_64": {
        **dict.fromkeys((2, 4, 6, 21, 82, 83, 84, 87, 89, 90, 92, 137, 191), "p0"),
        **dict.fromkeys((257, 258, 260, 262, 263, 264, 267, 268, 269, 316, 332, 437, 439), "p1"),
        **dict.fromkeys((0, 1, 17, 18, 19, 20), "r0"),
        **dict.fromkeys((3, 5, 8, 74, 75, 77, 78, 217), "f0"),
    },
    "aarch64": {
        **dict.fromkeys((33, 34, 35, 38, 48, 53, 54, 56, 78, 79, 276, 291, 437, 439), "p1"),
        **dict.fromkeys((63, 64, 65, 66, 67, 68), "r0"),
        **dict.fromkeys((46, 57, 61, 62, 80, 82, 83), "f0"),
    },
}


@dataclass(frozen=True, slots=True)
class FileCall:
    """What a thread is in: a call of the kernel on a file."""

    thread: int
    syscall: str
    """The kernel's own line about it."""
    switches: str
    """How often the thread was woken: one that reads a large file piece by piece is in the same call each time."""
    path: str
    reads: bool


def calls_on_files() -> list[FileCall]:
    """Every thread's call on a file, as the kernel says it; nothing where it says nothing."""
    passed_over = {thread.native_id for thread in threading.enumerate() if thread.name.startswith((_PATIENT, _WATCHER))}
    found = []
    with suppress(OSError):
        for thread in map(int, os.listdir("/proc/self/task")):
            if thread not in passed_over:
                with suppress(OSError, ValueError, IndexError, StopIteration):
                    found.append(_call_of(thread))
    return [call for call in found if call is not None]


def _call_of(thread: int) -> FileCall | None:
    with open(f"/proc/self/task/{thread}/syscall") as stream:
        syscall = stream.read()
    number, *arguments = syscall.split()
    kind = _CALLS.get(platform.machine(), {}).get(int(number)) if number.lstrip("-").isdigit() else None
    if kind is None:
        return None
    place = int(kind[1])
    path = _path(kind, int(arguments[place], 16))
    if kind == "p1" and path and not path.startswith("/"):
        path = os.path.join(_directory(int(arguments[0], 16)), path)
    return FileCall(thread, syscall, _switches(thread), path, reads=kind[0] == "r") if path else None


def _directory(handle: int) -> str:
    """The directory that a relative path is looked up from; nothing where that is the working directory."""
    try:
        return os.readlink(f"/proc/self/fd/{handle}")
    except OSError:
        return ""


def _switches(thread: int) -> str:
    with open(f"/proc/self/task/{thread}/status") as stream:
        return next(line for line in stream if line.startswith("voluntary_ctxt_switches"))


def _path(kind: str, argument: int) -> str:
    """The path that a call is about; nothing for terminals, pipes and sockets, which may well be waited for."""
    if kind[0] == "p":
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            memory.seek(argument)
            raw = memory.read(4096 - argument % 4096) or b""
        return os.fsdecode(raw.partition(b"\0")[0])
    if argument <= 2:
        return ""
    path = os.readlink(f"/proc/self/fd/{argument}")
    return path if path.startswith("/") and not path.startswith(("/dev/", "/proc/")) else ""


@contextmanager
def watch_for_hung_calls() -> Iterator[None]:
    """While the block runs, a call on a file that does not come back is noted, can be interrupted, and is given up."""
    done = threading.Event()
    signals, python_writes = _signal_pipe()
    with suppress(BlockingIOError):
        os.read(signals, 4096)  # what came before is over
    before = _write_signals_to(python_writes)
    threading.Thread(target=_watch, args=(done, signals), name=_WATCHER, daemon=True).start()
    try:
        yield
    finally:
        done.set()
        _write_signals_to(before)  # the pipe stays: a handler of the kernel may be about to write into it


@cache
def _signal_pipe() -> tuple[int, int]:
    """One for the whole process: it stays open after the block, because a handler may be about to write into it."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def _write_signals_to(fd: int) -> int:
    """Have Python write the number of every signal there as it comes; whereto it did before."""
    try:
        return signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
    except ValueError:  # not the main thread: it gets no signals
        return -1


def _watch(done: threading.Event, signals: int) -> None:
    since: dict[FileCall, float] = {}
    noted: dict[FileCall, list[tuple[int, int]]] = {}
    while not done.wait(_EVERY_S if since else min(_EVERY_S, NOTE_S / 4)):
        now = time.monotonic()
        since = {call: since.get(call, now) for call in calls_on_files()}
        for call in [call for call in noted if call not in since]:
            _restore_handlers(noted.pop(call))  # it answered after all
        for call, begun in since.items():
            waited = now - begun
            if waited > (GIVE_UP_READING_S if call.reads else GIVE_UP_S):
                complain(
                    f"{call.path}: its file system does not answer ({waited:.0f} s)",
                    "is its server up? `df` on the path would hang too",
                )
                os._exit(STATUS)
            if waited > NOTE_S and call not in noted:
                noted[call] = _default_handlers()
                note(f"waiting for {call.path}: its file system has not answered for {waited:.0f} s")
            if waited > _EVERY_S and (number := _pending_signal(signals)):
                complain(f"interrupted while waiting for {call.path}")
                os._exit(128 + number)


def _pending_signal(signals: int) -> int:
    """A signal to end that came before the handlers were out of the way, and that the hung thread does not take."""
    with suppress(OSError):  # taken by Python's own handler, which only makes a note of it
        taken = [number for number in os.read(signals, 64) if number in _TO_END]
        if taken:
            return taken[0]
    with suppress(OSError, ValueError, StopIteration), open("/proc/self/status") as stream:
        pending = int(next(line for line in stream if line.startswith("ShdPnd:")).split()[1], 16)
        return next((number for number in _TO_END if pending >> (number - 1) & 1), 0)
    return 0


def _default_handlers() -> list[tuple[int, int]]:
    """Ctrl-C and SIGTERM end this process at once: Python's handlers would wait for the call that hangs."""
    with suppress(OSError, AttributeError):
        return [(number, _set_handler(number, None)) for number in _TO_END]
    return []


def _restore_handlers(handlers: list[tuple[int, int]]) -> None:
    with suppress(OSError, AttributeError):
        for number, handler in handlers:
            _set_handler(number, handler)


def _set_handler(number: int, handler: int | None) -> int:
    """Set what the kernel does with a signal, None for its default; what it did before."""
    import ctypes  # only here: no verb should wait for it at its start

    change = ctypes.CDLL(None).signal
    change.restype = ctypes.c_void_p
    change.argtypes = (ctypes.c_int, ctypes.c_void_p)
    return int(change(number, handler) or 0)
