"""What a rank waits in, by the frames of its threads: for waits of which no recorder has an operation.

Making a communicator, new_group, a mesh, a store, point-to-point calls on Gloo and whatever is built on them wait
without an unfinished operation. What shows them is a thread that stays at one line inside torch.distributed, or in a
call that waits, and does nothing there. A rank that is elsewhere is never evidence by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

MOST_THREADS = 256
MOST_FRAMES = 200
_LIBRARY = re.compile(r"/(?:site-packages|dist-packages|lib/python3[.\d]*)/|^<frozen |/_hangscope_companion\.py$")
_LAUNCHERS = re.compile(r"torch/distributed/(?:run|launch|elastic|launcher)\b")
_WRAPPERS = frozenset(("wrapper", "_call_impl", "_wrapped_call_impl", "inner", "decorate_context"))
# What a main thread does while another thread trains: it waits for that one, or for autograd's.
_WAITS_FOR_THREADS = re.compile(r"(?:^|/)(?:threading|queue|selectors|asyncio/\w+|concurrent/futures/\w+)\.py$|/ray/")
_ENGINE = "_engine_run_backward"
BACKWARD = "backward"
# Calls into C that wait for a peer, as they stand in the line that makes them. A socket has `recv` and `send` as well;
# those of a process group take a list of tensors. `os.wait()` waits for a child.
_WAITS = re.compile(
    r"([\w\]\).]*\.)?\b((?<!\bos\.)wait|wait_tensor|barrier|monitored_barrier|(?:recv|send)(?=\s*\(\s*\[))\s*\("
)
_COMPILED = re.compile(r"\b_c10d_functional\.(\w+)")
_STORE = re.compile(r"pytorch\.wait_counter\.(?:TCPStore|FileStore|HashStore)__(\w+)$")
_STORE_CALLS = frozenset(("get", "set", "wait", "check", "add", "compare_set", "multi_get"))
# Calls of torch.distributed itself. Below them NCCL may wait with work: it polls its sockets while it connects.
_CALLS = re.compile(r"torch/distributed/(?:distributed_c10d|_functional_collectives|device_mesh|rendezvous)\.py$")
# Calls that wait for the rank's own GPU, with all of the CPU. What runs there may wait for a peer, as a replay does.
_GPU_CALLS = re.compile(r"torch/(?:cuda|accelerator)/(?:__init__|streams|graphs)\.py$")
_GPU_WAITS = frozenset(("synchronize", "replay", "wait"))
_GPU_LINES = re.compile(r"\.(item|cpu|tolist|synchronize)\s*\(")
# JAX's own waits for all processes; and those for a value, whose computation may wait for a peer.
_JAX_CALLS = re.compile(r"jax/(?:experimental/multihost_utils|_src/distributed)\.py$")
_JAX_VALUES = re.compile(r"jax/_src/(?:array|api|dispatch)\.py$")
_JAX_WAITS = frozenset(("_value", "block_until_ready", "_check_and_copy_array", "runtime_block_until_ready"))
# What only stands in a stack while something is compiled or built: the same packages run what they compiled.
_COMPILES = re.compile(
    r"torch/_dynamo/convert_frame\.py |torch/_inductor/compile_fx\.py \w*compile|torch/utils/cpp_extension\.py "
    r"|torch/_inductor/runtime/triton_heuristics\.py (?:precompile|autotune|benchmark)|triton/compiler/\w+\.py compile"
    r"|triton/runtime/autotuner\.py \w*bench|jax/_src/compiler\.py \w*compile"
)
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

    @property
    def imports(self) -> bool:
        return self.name == "_find_and_load" and self.file.startswith("<frozen importlib")

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line}"


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """`number` is the kernel's; frames are innermost first."""

    number: int | None
    main: bool
    frames: tuple[StackFrame, ...]
    store: bool = False
    """Whether its innermost frame has a store of PyTorch's in hand, as its memory shows."""

    @property
    def library_frames(self) -> list[StackFrame]:
        """The frames inside the innermost line of the user's own code."""
        return list(takewhile(lambda frame: frame.library, self.frames))

    @property
    def own_frame(self) -> StackFrame | None:
        """The innermost line of the user's own code."""
        return next((frame for frame in self.frames if not frame.library), None)

    @property
    def in_backward(self) -> bool:
        return any(frame.name == _ENGINE for frame in self.library_frames)


@dataclass(frozen=True, slots=True)
class ThreadWait:
    """What a rank waits in. `call` is as the user knows it, `in_init` while the job only comes together.

    `polls`: it is a collective or its like, in which no work of the rank's own is done, however busy the thread is.
    `on_gpu`: it waits for its own GPU, which may be at work: by itself that is no sign of anything.
    """

    call: str
    at: StackFrame | None
    thread: int | None
    in_init: bool = False
    polls: bool = False
    on_gpu: bool = False

    def __str__(self) -> str:
        return f"{self.call} ({self.at})" if self.at is not None else self.call


def parse_stacks(value: object) -> list[ThreadStack]:
    """Out of the companion's answer, or py-spy's JSON; whatever does not look like one is left out."""
    rows = value.get("threads") if isinstance(value, dict) else value
    found = []
    for row in rows[:MOST_THREADS] if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("frames"), list):
            frames = [_parse_frame(each) for each in row["frames"][:MOST_FRAMES]]
            number = row.get("os_thread_id")
            main = row.get("main") is True or row.get("thread_name") == "MainThread"
            known = tuple(frame for frame in frames if frame is not None)
            own = number if isinstance(number, int) else None
            found.append(ThreadStack(own, main, known, row.get("store") is True))
    return found


def _parse_frame(value: object) -> StackFrame | None:
    if not isinstance(value, dict) or not isinstance(value.get("filename"), str):
        return None
    line = value.get("line")
    # py-spy gives qualified names: `_exception_logger.<locals>.wrapper`.
    name = str(value.get("name"))[:200].rpartition(".")[2]
    return StackFrame(value["filename"][:1000], line if isinstance(line, int) else 0, name)


def find_wait(
    stacks: Sequence[ThreadStack],
    counters: Mapping[str, Any],
    source_line: Callable[[StackFrame], str],
    *,
    counted: bool = True,
    cuda: bool = False,
) -> ThreadWait | None:
    """What the rank waits in: its main thread, or where that only waits for others, any of them.

    DDP waits for its peers inside autograd, below Python. Where the rank's operations are `counted`, they tell; else a
    backward in which nothing moves is a wait as well. With `cuda`, a line that reads a value off the GPU waits for it.
    """
    main = next((stack for stack in stacks if stack.main), None)
    if main is None or not main.frames:
        return None
    candidates = [main]
    if _waits_for_threads(main):
        candidates += [stack for stack in stacks if stack is not main]
    open_calls = _open_store_calls(counters)
    for stack in candidates:
        wait = _wait_of(stack, open_calls | _STORE_CALLS if stack.store else open_calls, source_line)
        if wait is not None:
            return wait
    if not counted and main.in_backward:
        return ThreadWait(BACKWARD, main.own_frame, main.number)
    return _wait_for_gpu(main, source_line) if cuda else None


def is_preparing(stacks: Iterable[ThreadStack]) -> bool:
    """Whether a thread is inside a compiler (torch.compile, Triton, JAX, a build of an extension), or the user's line
    imports a library."""
    return any(
        any(_COMPILES.search(f"{frame.file} {frame.name}") for frame in stack.frames)
        or any(frame.imports for frame in stack.library_frames)
        for stack in stacks
    )


def _wait_for_gpu(main: ThreadStack, source_line: Callable[[StackFrame], str]) -> ThreadWait | None:
    inner = main.library_frames
    if any(frame.name in _JAX_WAITS and _JAX_VALUES.search(frame.file) for frame in inner):
        return ThreadWait("block_until_ready", main.own_frame, main.number, polls=True, on_gpu=True)
    if inner and inner[0].name in _GPU_WAITS and _GPU_CALLS.search(inner[0].file):
        return ThreadWait(inner[0].name, main.own_frame, main.number, polls=True, on_gpu=True)
    reads = _GPU_LINES.search(source_line(main.own_frame)) if main.own_frame is not None and not inner else None
    return ThreadWait(reads[1], main.own_frame, main.number, polls=True, on_gpu=True) if reads is not None else None


def _waits_for_threads(main: ThreadStack) -> bool:
    """Whether the main thread does nothing but wait for another one of its process."""
    innermost = main.library_frames[:4]
    return main.in_backward or any(_WAITS_FOR_THREADS.search(frame.file) for frame in innermost)


def _open_store_calls(counters: Mapping[str, Any]) -> set[str]:
    """The calls of a store that PyTorch's own counters show as open: `get`, `wait`, …"""
    found = set()
    for name, value in counters.items():
        match = _STORE.match(name)
        count = value.get("active_count") if isinstance(value, dict) else None
        if match is not None and isinstance(count, int) and count > 0:
            found.add(match[1])
    return found


def _wait_of(
    stack: ThreadStack, open_calls: AbstractSet[str], source_line: Callable[[StackFrame], str]
) -> ThreadWait | None:
    inner = list(takewhile(lambda frame: not frame.imports, stack.library_frames))
    if any(frame.distributed for frame in inner):
        return _wait_in_distributed(stack, inner)
    if jax := [frame.name for frame in inner if _JAX_CALLS.search(frame.file)]:
        return ThreadWait(jax[-1], stack.own_frame, stack.number, in_init=jax[-1] == "initialize", polls=True)
    at = stack.own_frame
    if at is None or any(not frame.file.endswith(_OPS) for frame in inner):
        return None
    return _wait_in_line(source_line(at), at, stack.number, open_calls)


def _wait_in_distributed(stack: ThreadStack, inner: Sequence[StackFrame]) -> ThreadWait:
    """By the outermost call of torch.distributed that the thread is in."""
    calls = [frame.name for frame in inner if frame.distributed]
    named = [name for name in calls if name not in _WRAPPERS] or calls
    call = named[-1]
    # Who is past this part of init_process_group has the store, and waits there for those that do not.
    if call in _INIT_CALLS and any(frame.file.endswith(_RENDEZVOUS) for frame in inner):
        call = "rendezvous"
    in_init = any(name in _INIT_CALLS for name in calls)
    return ThreadWait(call, stack.own_frame, stack.number, in_init, _polls(inner))


def _polls(inner: Sequence[StackFrame]) -> bool:
    calls = (frame for frame in inner if not frame.file.endswith(_OPS) and frame.name not in _WRAPPERS)
    deepest = next(calls, None)
    return deepest is not None and _CALLS.search(deepest.file) is not None and deepest.name not in _PICKLES


def _wait_in_line(line: str, at: StackFrame, thread: int | None, open_calls: AbstractSet[str]) -> ThreadWait | None:
    """By the line of the user's own code that calls into C."""
    compiled = _COMPILED.search(line)
    if compiled is not None:
        return ThreadWait(compiled[1], at, thread, polls=True)
    waits = _WAITS.search(line)
    if waits is not None:
        return ThreadWait(f"{waits[1] or ''}{waits[2]}", at, thread)
    if open_calls and "Store(" in line:
        return ThreadWait("a store's first connection", at, thread, in_init=True)
    # `get`, `set` and `check` of a store have common names: PyTorch's own counter must say that one is open.
    for name in sorted(open_calls):
        if f".{name}" in line:
            return ThreadWait(f"store.{name}", at, thread)
    return None
