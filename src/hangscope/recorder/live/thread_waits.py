"""Where a rank stands, by its threads: the sense for waits of which no recorder has an operation.

Making a communicator, new_group, a mesh, a store, point-to-point calls on Gloo and whatever is built on them wait
without an unfinished operation. What shows them is a thread that stands at one line inside torch.distributed, or in a
call that waits, and does nothing there. A rank that is elsewhere is never evidence by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from hangscope.recorder.process import thread_activity

MOST_THREADS = 256
MOST_FRAMES = 200
_LIBRARY = re.compile(r"/(?:site-packages|dist-packages|lib/python3[.\d]*)/|^<frozen |/_hangscope_companion\.py$")
_LAUNCHERS = re.compile(r"torch/distributed/(?:run|launch|elastic|launcher)\b")
_WRAPPERS = frozenset(("wrapper", "_call_impl", "_wrapped_call_impl", "inner", "decorate_context"))
# What a main thread does while another thread trains: it waits for that one, or for autograd's.
_BESIDE = re.compile(r"(?:^|/)(?:threading|queue|selectors|asyncio/\w+|concurrent/futures/\w+)\.py$|/ray/")
_BACKWARD = "_engine_run_backward"
BACKWARD = "backward"
# Calls into C that wait for a peer, as they stand in the line that makes them.
_WAITS = re.compile(r"([\w\]\).]*\.)?\b(wait|wait_tensor|barrier|monitored_barrier|recv|send)\s*\(")
_COMPILED = re.compile(r"\b_c10d_functional\.(\w+)")
_STORE = re.compile(r"pytorch\.wait_counter\.(?:TCPStore|FileStore|HashStore)__(\w+)$")
# Calls of torch.distributed itself. Below them NCCL may wait with work: it polls its sockets while it connects.
_CALLS = re.compile(r"torch/distributed/(?:distributed_c10d|_functional_collectives|device_mesh|rendezvous)\.py$")
_PICKLES = frozenset(("_object_to_tensor", "_tensor_to_object"))
_OPS = "torch/_ops.py"
_RENDEZVOUS = "torch/distributed/rendezvous.py"
_INIT_CALLS = ("init_process_group", "rendezvous")


@dataclass(frozen=True, slots=True)
class StackFrame:
    file: str
    line: int
    name: str

    @property
    def library(self) -> bool:
        return _LIBRARY.search(self.file) is not None

    @property
    def distributed(self) -> bool:
        return "torch/distributed/" in self.file and _LAUNCHERS.search(self.file) is None

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line}"


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """`number` is the kernel's; frames are innermost first."""

    number: int | None
    main: bool
    frames: tuple[StackFrame, ...]


@dataclass(frozen=True, slots=True)
class ThreadWait:
    """What a rank stands in. `call` is as the user knows it, `in_init` while the job only comes together.

    `polls`: it is a collective or its like, in which no work of the rank's own is done, however busy the thread is.
    """

    call: str
    at: StackFrame | None
    thread: int | None
    in_init: bool = False
    polls: bool = False

    def __str__(self) -> str:
        return f"{self.call} ({self.at})" if self.at is not None else self.call


@dataclass(slots=True)
class RankPosition:
    """One rank over several looks. `since` is when it was first seen where it stands, None before the first look."""

    since: float | None = None
    samples: int = 0
    wait: ThreadWait | None = None
    moves: int = 0
    """Grows whenever it is seen to have got somewhere."""
    works: bool = False
    spins: bool = False
    """It is at work inside a collective: NCCL polls its sockets there."""
    at: StackFrame | None = None
    """The innermost line of the user's code, of the main thread where that has one."""
    outside: bool = False
    """It waits in nothing of torch.distributed. Inside autograd nobody can tell: DDP waits there, below Python."""
    _place: tuple[Any, ...] = ()
    _before: dict[int | None, thread_activity.Sample] = field(default_factory=dict)

    def moved(self) -> None:
        """Its counters moved, or the kernel saw it at work: what was seen before is over."""
        if self.samples:
            self.moves += 1
        self.since, self.samples, self.wait, self._place = None, 0, None, ()

    def stir(self, now: thread_activity.Sample | None, thread: int | None = None, *, may_spin: bool = False) -> bool:
        """Take what the kernel counts for a thread; whether it worked since the last time."""
        before = self._before.get(thread)
        works = (
            thread_activity.works(before, now, may_spin=may_spin) if before is not None and now is not None else None
        )
        if now is not None and (before is None or works is not None):
            self._before[thread] = now
        if thread is None and works is not None:
            self.works = works
        return bool(works)

    def take(self, threads: Sequence[ThreadStack], wait: ThreadWait | None, quiet_since: float, now: float) -> None:
        """One look. The first of a row counts from when the rank's counters last moved."""
        ordered = sorted(threads, key=lambda thread: not thread.main)
        self.at = next((frame for thread in ordered for frame in thread.frames if not frame.library), None)
        place = tuple(thread.frames for thread in threads if thread.main or (wait and thread.number == wait.thread))
        if self.samples and place == self._place and (wait is None) == (self.wait is None):
            self.samples += 1
            return
        self.moves += bool(self.samples)
        self.since = now if self.samples else quiet_since
        self.samples, self.wait, self._place = 1, wait, place
        self.outside = wait is None and not any(_in_backward(thread) for thread in threads if thread.main)


def threads(value: object) -> list[ThreadStack]:
    """Out of the companion's answer, or py-spy's JSON; whatever does not look like one is left out."""
    rows = value.get("threads") if isinstance(value, dict) else value
    found = []
    for row in rows[:MOST_THREADS] if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("frames"), list):
            frames = [frame for each in row["frames"][:MOST_FRAMES] if (frame := _frame(each)) is not None]
            number = row.get("os_thread_id")
            main = row.get("main") is True or row.get("thread_name") == "MainThread"
            found.append(ThreadStack(number if isinstance(number, int) else None, main, tuple(frames)))
    return found


def _frame(value: object) -> StackFrame | None:
    if not isinstance(value, dict) or not isinstance(value.get("filename"), str):
        return None
    line, name = value.get("line"), value.get("name")
    # py-spy gives qualified names: `_exception_logger.<locals>.wrapper`.
    return StackFrame(
        value["filename"][:1000], line if isinstance(line, int) else 0, str(name)[:200].rpartition(".")[2]
    )


def where(
    found: Sequence[ThreadStack],
    counters: Mapping[str, Any],
    source_line: Callable[[StackFrame], str],
    *,
    counted: bool = True,
) -> ThreadWait | None:
    """What the rank waits in: its main thread, or where that only waits for others, any of them.

    DDP waits for its peers inside autograd, below Python. Where the rank's operations are `counted`, they tell; else a
    backward in which nothing moves is a wait as well.
    """
    main = next((thread for thread in found if thread.main), None)
    if main is None or not main.frames:
        return None
    others = [thread for thread in found if thread is not main] if _only_waits(main) else []
    store = {match[1] for name, value in counters.items() if (match := _STORE.match(name)) and _active(value)}
    waits = (_wait_of(thread, store, source_line) for thread in (main, *others))
    wait = next((wait for wait in waits if wait is not None), None)
    if wait is None and not counted and _in_backward(main):
        return ThreadWait(BACKWARD, next((frame for frame in main.frames if not frame.library), None), main.number)
    return wait


def _wait_of(thread: ThreadStack, store: set[str], source_line: Callable[[StackFrame], str]) -> ThreadWait | None:
    inner = list(takewhile(lambda frame: frame.library, thread.frames))
    at = thread.frames[len(inner)] if len(inner) < len(thread.frames) else None
    calls = [frame.name for frame in inner if frame.distributed]
    if calls:
        named = [name for name in calls if name not in _WRAPPERS] or calls
        # Who is past this part of init_process_group has the store, and waits there for those that do not.
        early = named[-1] in _INIT_CALLS and any(frame.file.endswith(_RENDEZVOUS) for frame in inner)
        in_init = any(name in _INIT_CALLS for name in calls)
        return ThreadWait("rendezvous" if early else named[-1], at, thread.number, in_init, _polls(inner))
    if at is None or any(not frame.file.endswith(_OPS) for frame in inner):
        return None
    line = source_line(at)
    if (match := _COMPILED.search(line)) is not None:
        return ThreadWait(match[1], at, thread.number, polls=True)
    if (match := _WAITS.search(line)) is not None:
        return ThreadWait(f"{match[1] or ''}{match[2]}", at, thread.number)
    if store and "Store(" in line:
        return ThreadWait("a store's first connection", at, thread.number, in_init=True)
    # `get`, `set` and `check` of a store have common names: PyTorch's own counter must say that one is open.
    return next((ThreadWait(f"store.{name}", at, thread.number) for name in sorted(store) if f".{name}" in line), None)


def _polls(inner: Sequence[StackFrame]) -> bool:
    deepest = next((f for f in inner if not f.file.endswith(_OPS) and f.name not in _WRAPPERS), None)
    return deepest is not None and _CALLS.search(deepest.file) is not None and deepest.name not in _PICKLES


def _only_waits(main: ThreadStack) -> bool:
    inner = list(takewhile(lambda frame: frame.library, main.frames))
    return _in_backward(main) or any(_BESIDE.search(frame.file) for frame in inner[:4])


def _in_backward(main: ThreadStack) -> bool:
    inner = takewhile(lambda frame: frame.library, main.frames)
    return any(frame.name == _BACKWARD for frame in inner)


def _active(value: object) -> bool:
    count = value.get("active_count") if isinstance(value, dict) else None
    return isinstance(count, int) and count > 0
