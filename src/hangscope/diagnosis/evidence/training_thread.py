"""Which thread of a rank trains, and at which line of the user's code it is, out of all stacks that were taken.

The training thread is not always the main one: Ray Train runs it beside a loop of its own, hooks of backward run on
autograd's thread, and people start it in a `Thread` or an executor. It is chosen by what is on the stacks. A rank may
also be held up by a process that it started: then that process's line is the one to look at.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from hangscope.diagnosis.evidence.code_lines import function_through, own_frames, through, user_frame
from hangscope.model import FATAL_ERROR, Frame, Job, Source, ThreadStack
from hangscope.text import is_own_code

Frames = tuple[Frame, ...]

_WAITS_FOR_THREAD = re.compile(r"(^|/)(threading|concurrent/futures/(_base|thread)|asyncio/\w+|queue)\.py$")
_WAITS_FOR_CHILD = re.compile(
    r"(^|/)(multiprocessing/\w+|concurrent/futures/process|subprocess|joblib/.*|torch/utils/data/dataloader)\.py$"
)
_CHILD_STARTS = re.compile(
    r"(^|/)(multiprocessing/(process|pool)|torch/utils/data/_utils/worker|concurrent/futures/process)\.py$"
)
"""Below these frames a forked process has those of its parent at the moment of the fork."""
_JOINS = ("join", "result", "run_until_complete")
"""Functions in which a thread waits for another one's end or result."""
_NOT_THE_GPU = frozenset(
    (
        *("open", "openat", "read", "write", "pread64", "pwrite64", "fsync", "flock", "fcntl", "connect", "accept"),
        *("recvfrom", "recvmsg", "wait4", "waitid", "nanosleep", "clock_nanosleep", "epoll_wait"),
    )
)
"""Calls of the kernel that wait for a file, a peer, a child or the clock."""
_LONGEST_PATH = 400
_CUDA = re.compile(r"(^|/)lib(cuda|cudart|nvidia)[\w-]*\.so")
_CUDA_NAME = re.compile(r"cu[A-Z]\w+|cuda[A-Z]\w+")


@dataclass(frozen=True, slots=True)
class Where:
    """A line at which a rank is that the user can change. `moves`: the next sample found it at another one in there.
    `through`: where it is inside of an installed package that this line called."""

    frame: Frame
    stack: ThreadStack
    moves: bool = False
    through: Frame | None = None

    @property
    def text(self) -> str:
        """``main (train.py:20)``, and through what."""
        return function_through(self.frame, self.through)


class Stacks:
    """What the ranks' threads, and the processes that they started, were doing."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def main(self, rank: int) -> ThreadStack | None:
        """The newest sample of the thread that decides what the rank does next: its training thread."""
        return next(self._samples(rank), None)

    def of_all(self, ranks: Iterable[int]) -> dict[int, ThreadStack]:
        return {rank: stack for rank in ranks if (stack := self.main(rank)) is not None}

    def where(self, rank: int) -> Where | None:
        """The user's line at which the rank is, or that of the process which it waits for; None where no stack has
        one."""
        samples = [*self._samples(rank)][:2]
        if not samples:
            return None
        child = self._awaited(rank, samples[0])
        if child is not None:
            frames = inside_child(child)
            return Where(user_frame(frames) or own_frames(frames)[0], child, through=through(frames))
        return _common(samples[0], samples[-1])

    def advances(self, rank: int) -> bool:
        """Whether two samples found its training thread on a core, at two places: it imports, compiles or computes."""
        samples = [*self._samples(rank)][:2]
        at = [[(frame.filename, frame.name, frame.line) for frame in sample.frames] for sample in samples]
        return len(samples) == 2 and all(sample.active for sample in samples) and at[0] != at[1]

    def waits_in_cuda(self, rank: int) -> str | None:
        """The call of CUDA that the rank's CPU is in, by the native frames of any sample; None where there are no
        such frames. Empty: there are native frames, and none is CUDA's."""
        native = [stack.native for stack in self._samples(rank) if stack.native]
        if not native:
            return None
        calls = [frame for frame in native[0] if _CUDA.search(frame.filename)]
        named = [frame.name for frame in calls if _CUDA_NAME.fullmatch(frame.name)]
        # The outermost is what PyTorch called, those inside are the driver's own.
        return named[-1] if named else "a CUDA call" if calls else ""

    def holds_gil_in(self, rank: int) -> str | None:
        """The CUDA call in which a rank that does not answer holds its GIL; empty where its own code holds it, None
        where nothing tells."""
        call = self.waits_in_cuda(rank)
        process = self._job.processes.get(rank)
        stack = self.main(rank)
        syscall, file = (process.syscall, process.syscall_file) if process is not None else (None, None)
        if call is not None:
            return call
        if file is not None and file.startswith("/dev/nvidia"):
            return f"{syscall} of the NVIDIA driver"
        # A launch that waits for room in the queue spins; what sleeps outside PyTorch waits for something else.
        asleep = stack is not None and stack.active is False and not _path(stack.frames[0]).count("torch/")
        idle = process is not None and process.gpu_busy_percent == 0.0  # there is no kernel that it could wait for
        return "" if asleep or idle or syscall in _NOT_THE_GPU or not self.on_gpu else None

    @cached_property
    def on_gpu(self) -> bool:
        """Whether the job may use GPUs."""
        job = self._job
        others = any(dump.backend != "gloo" for dumps in job.dumps.values() for dump in dumps) or not job.dumps
        seen = job.facts.communicators or job.facts.blackboxes or any(p.gpu for p in job.processes.values())
        return others or bool(seen)

    @cached_property
    def answered(self) -> dict[int, Source]:
        """Ranks whose process gave its own stack, with the source. One that was read from outside proves no life."""
        job = self._job
        by_pid = {p.pid: r for r, p in job.processes.items() if p.pid is not None}
        crashed = {(e.source.file, e.rank) for e in job.facts.errors if e.type == FATAL_ERROR}
        found: dict[int, Source] = {}
        for stack in job.facts.stacks:
            rank = stack.rank if stack.rank is not None else by_pid.get(stack.pid) if stack.pid is not None else None
            if rank is not None and not stack.outside and (stack.source.file, rank) not in crashed:
                found.setdefault(rank, stack.source)
        return found

    def _samples(self, rank: int) -> Iterator[ThreadStack]:
        """The training thread in every sample, the newest first."""
        process = self._job.processes.get(rank)
        mine = self._by_owner.get((rank, None), [])
        if process is not None and process.pid is not None:
            mine = [*mine, *self._by_owner.get((None, process.pid), [])]
        silent = process is not None and process.python_answers is False
        samples: dict[tuple[int, str], list[ThreadStack]] = {}
        for stack in mine:
            if not stack.child:
                samples.setdefault((stack.sample, stack.source.file), []).append(stack)
        for key in sorted(samples, key=lambda key: -key[0]):
            yield _training(samples[key], silent=silent)

    def _awaited(self, rank: int, stack: ThreadStack) -> ThreadStack | None:
        """The process below the rank that keeps it: the rank waits for one, and this one is busy in the user's code.

        Where several are, the line at which most of them are; the others have given what was asked of them.
        """
        if not any(_WAITS_FOR_CHILD.search(_path(frame)) for frame in _library_frames(stack)):
            return None
        children = [s for s in self._by_owner.get((rank, None), []) if s.child and own_frames(inside_child(s))]
        newest = max((s.sample for s in children), default=0)
        busy = {s: own_frames(inside_child(s))[0] for s in children if s.sample == newest}
        if not busy:
            return None
        usual = Counter(busy.values()).most_common(1)[0][0]
        return next(child for child, frame in busy.items() if frame == usual)

    @cached_property
    def _by_owner(self) -> dict[tuple[int | None, int | None], list[ThreadStack]]:
        """By rank or, where that is not known, by pid."""
        found: dict[tuple[int | None, int | None], list[ThreadStack]] = {}
        for stack in self._job.facts.stacks:
            found.setdefault((stack.rank, None if stack.rank is not None else stack.pid), []).append(stack)
        return found


# ---- one sample ------------------------------------------------------------------------------------------------------


def _training(threads: Sequence[ThreadStack], *, silent: bool) -> ThreadStack:
    """Of a process's threads the one that trains; where none answers (`silent`), the one that holds the GIL."""
    main = next((thread for thread in threads if thread.main), threads[0])
    others = [thread for thread in threads if thread is not main and own_frames(thread.frames)]
    if silent and (holder := _gil_holder([main, *others])) is not None:
        return holder
    if in_backward(main):
        return next((thread for thread in others if not _python_made(thread)), main)
    if not own_frames(main.frames):
        return _at_work(others) or main
    if not _idle(main):
        return main
    return _awaited_by(main, others) or main


def _gil_holder(threads: Sequence[ThreadStack]) -> ThreadStack | None:
    return next((thread for thread in threads if thread.holds_gil), None)


def _at_work(others: list[ThreadStack]) -> ThreadStack | None:
    """Beside a main thread that runs none of the user's code: who is in a collective, else busy, else anywhere."""
    inside = [thread for thread in others if in_collective(thread)]
    busy = [thread for thread in others if not _idle(thread)]
    return next(iter(inside or busy or others), None)


def _awaited_by(main: ThreadStack, others: list[ThreadStack]) -> ThreadStack | None:
    """What the main thread waits for: the thread that is in a collective, or whose end or result it waits for."""
    inside = [thread for thread in others if in_collective(thread)]
    if inside:
        return inside[0]
    if not any(_function(frame)[1] in _JOINS for frame in _library_frames(main)):
        return None
    busy = [thread for thread in others if not _idle(thread)]
    if busy:
        return busy[0]
    # Of several that all wait for a lock or a queue, nobody can tell which one the main thread waits for.
    return others[0] if len(others) == 1 else None


def _idle(stack: ThreadStack) -> bool:
    """Whether a thread waits for another thread's lock, queue, end or result."""
    inner = next(_library_frames(stack), None)
    return inner is not None and _WAITS_FOR_THREAD.search(_path(inner)) is not None


def in_backward(stack: ThreadStack) -> bool:
    """Whether a thread waits in autograd: hooks and the user's own backwards then run on autograd's thread."""
    return any(frame.name == "_engine_run_backward" for frame in _library_frames(stack))


def _python_made(stack: ThreadStack) -> bool:
    """Threads that Python started begin in threading.py, autograd's do not."""
    return not stack.frames or _path(stack.frames[-1]).rpartition("/")[2] == "threading.py"


def thread_name(stack: ThreadStack) -> str:
    """What to call the thread that was chosen."""
    return "main thread" if stack.main else "thread beside its main one" if _python_made(stack) else "backward thread"


def in_collective(stack: ThreadStack) -> bool:
    """Whether a thread is inside torch.distributed, called from the user's code or not."""
    return any("torch/distributed/" in _path(frame) for frame in _library_frames(stack))


def _library_frames(stack: ThreadStack) -> Iterator[Frame]:
    """The frames inside the innermost line of the user's code."""
    return takewhile(lambda frame: not is_own_code(frame.filename), stack.frames)


def inside_child(stack: ThreadStack) -> Frames:
    """What a process does since it was started."""
    return tuple(takewhile(lambda frame: not _CHILD_STARTS.search(_path(frame)), stack.frames))


def _path(frame: Frame) -> str:
    return frame.filename[-_LONGEST_PATH:].replace("\\", "/")


# ---- two samples -----------------------------------------------------------------------------------------------------


def _common(newest: ThreadStack, before: ThreadStack) -> Where | None:
    """The innermost function of the user's that both samples are in. py-spy and faulthandler name it differently."""
    common: list[Frame] = []
    still = True
    for mine, theirs in zip(reversed(newest.frames), reversed(before.frames), strict=False):
        if _function(mine) != _function(theirs):
            break
        common.append(mine)
        if is_own_code(mine.filename):
            still = mine.line == theirs.line
        if mine.line != theirs.line:
            break
    innermost_first = tuple(reversed(common))
    frame = user_frame(innermost_first)
    if frame is None:
        return None
    # Where the samples part inside of a package, the line that called it is not known to have moved.
    last = own_frames(innermost_first)[0]
    moves = not still or last is not own_frames(newest.frames)[0]
    return Where(frame, newest, moves=moves, through=through(innermost_first))


def _function(frame: Frame) -> tuple[str, str]:
    return _path(frame).rpartition("/")[2], frame.name.rpartition(".")[2]
