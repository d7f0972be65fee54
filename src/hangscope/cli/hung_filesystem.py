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

from hangscope.cli.output import complain, note

NOTE_S = 5.0
GIVE_UP_S = 30.0
GIVE_UP_READING_S = 600.0
"""One read of a huge file may take minutes on a slow file system; looking at a name may not."""
STATUS = 2
_EVERY_S = 0.5
_OWN = "silence"

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
class Call:
    """What a thread is in: a call of the kernel on a file."""

    thread: int
    said: str
    switches: str
    """How often the thread was woken: one that reads a large file piece by piece is in the same call each time."""
    path: str
    reads: bool


def hung_calls() -> list[Call]:
    """Every thread's call on a file, as the kernel tells it; nothing where it tells nothing."""
    known = _CALLS.get(platform.machine(), {})
    ours = {thread.native_id for thread in threading.enumerate() if thread.name.startswith(("touch ", _OWN))}
    found = []
    with suppress(OSError):
        for name in os.listdir("/proc/self/task"):
            if int(name) in ours:
                continue  # whoever asks with patience deals with silence himself
            with suppress(OSError, ValueError, IndexError, StopIteration):
                with open(f"/proc/self/task/{name}/syscall") as stream:
                    said = stream.read()
                number, *arguments = said.split()
                kind = known.get(int(number)) if number.lstrip("-").isdigit() else None
                if kind is not None and (path := _path(kind, int(arguments[int(kind[1])], 16))):
                    found.append(Call(int(name), said, _switches(name), path, kind[0] == "r"))
    return found


def _switches(thread: str) -> str:
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
def watched() -> Iterator[None]:
    """Watches over whatever is done meanwhile."""
    done = threading.Event()
    heard, says = os.pipe()
    for end in (heard, says):
        os.set_blocking(end, False)
    before = _tell(says)
    threading.Thread(target=_watch, args=(done, heard), name=_OWN, daemon=True).start()
    try:
        yield
    finally:
        done.set()
        _tell(before)  # the pipe stays: a handler of the kernel may be about to write into it


def _tell(fd: int) -> int:
    """Have Python write the number of every signal there as it comes; whereto it did before."""
    try:
        return signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
    except ValueError:  # not the main thread: it hears no signals
        return -1


def _watch(done: threading.Event, heard: int) -> None:
    since: dict[Call, float] = {}
    told: dict[Call, list[tuple[int, int]]] = {}
    while not done.wait(_EVERY_S if since else min(_EVERY_S, NOTE_S / 4)):
        now = time.monotonic()
        since = {call: since.get(call, now) for call in hung_calls()}
        for call in [call for call in told if call not in since]:
            _as_before(told.pop(call))  # it answered after all
        for call, begun in since.items():
            if now - begun > (GIVE_UP_READING_S if call.reads else GIVE_UP_S):
                complain(
                    f"{call.path}: its file system does not answer ({now - begun:.0f} s)",
                    "is its server up, and mounted here? `df` on the path shows the same silence",
                )
                os._exit(STATUS)
            if now - begun > NOTE_S and call not in told:
                told[call] = _let_through()
                note(f"waiting for {call.path}: its file system has not answered for {now - begun:.0f} s")
            if now - begun > _EVERY_S and (number := _unheard(heard)):
                complain(f"interrupted while waiting for {call.path}")
                os._exit(128 + number)


def _unheard(heard: int) -> int:
    """A signal to end that came before the handlers were out of the way, and that the hung thread does not take."""
    with suppress(OSError):  # taken by Python's own handler, which only makes a note of it
        taken = [number for number in os.read(heard, 64) if number in (signal.SIGINT, signal.SIGTERM)]
        if taken:
            return taken[0]
    with suppress(OSError, ValueError, StopIteration), open("/proc/self/status") as stream:
        pending = int(next(line for line in stream if line.startswith("ShdPnd:")).split()[1], 16)
        return next((number for number in (signal.SIGINT, signal.SIGTERM) if pending >> (number - 1) & 1), 0)
    return 0


def _let_through() -> list[tuple[int, int]]:
    """Ctrl-C and SIGTERM end this process at once: Python's handlers would wait for the call that hangs."""
    with suppress(OSError, AttributeError):
        return [(number, _handle(number, None)) for number in (signal.SIGINT, signal.SIGTERM)]
    return []


def _as_before(handlers: list[tuple[int, int]]) -> None:
    with suppress(OSError, AttributeError):
        for number, handler in handlers:
            _handle(number, handler)


def _handle(number: int, handler: int | None) -> int:
    """Set what the kernel does with a signal, None for its default; what it did before."""
    import ctypes  # only here: no verb should wait for it at its start

    change = ctypes.CDLL(None).signal
    change.restype, change.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    return int(change(number, handler) or 0)
