"""The user's own lines: in the frames of a call, and in the stacks of processes."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import takewhile

from hangscope.model import Frame, Job, Operation, ThreadStack
from hangscope.words import is_own_code

Frames = tuple[Frame, ...]


def own_frames(frames: Frames) -> list[Frame]:
    return [f for f in frames if is_own_code(f.filename)]


def user_frame(frames: Frames) -> Frame | None:
    """The innermost frame of the user's own code; None where PyTorch made the call by itself."""
    return next(iter(own_frames(frames)), None)


def line(frame: Frame) -> str:
    return f"{frame.filename}:{frame.line}"


def at(frames: Frames, word: str = "at") -> str:
    """`` at train.py:88``, for the end of a phrase; empty where no frame is the user's."""
    frame = user_frame(frames)
    return f" {word} {line(frame)}" if frame else ""


def shown(frames: Frames, limit: int = 3) -> tuple[str, ...]:
    """The user's frames as lines to show, or the innermost ones where there is none."""
    return tuple(f"{line(f)}  {f.name}" for f in (own_frames(frames) or list(frames))[:limit])


def place(frames: Frames) -> str:
    """The innermost line of the user's code, or else of any; empty where there is none."""
    return next((line(f) for f in own_frames(frames) or frames), "")


def two_lines(odd: Operation, reference: Operation) -> str:
    """From which lines two ranks made what should be one call."""
    mine, theirs = user_frame(odd.frames), user_frame(reference.frames)
    if mine is None or theirs is None:
        return "their stacks differ"
    return f"rank {odd.rank} at {line(mine)}, rank {reference.rank} at {line(theirs)}"


class Stacks:
    """What the ranks' threads were doing."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def main(self, rank: int) -> ThreadStack | None:
        """The newest sample of the thread that decides what the rank does next: its main thread, mostly.

        While that is in autograd's backward, hooks and the user's own backwards run on autograd's own thread.
        """
        process = self._job.processes.get(rank)
        mine = self._by_owner.get((rank, None), [])
        if process is not None and process.pid is not None:
            mine = [*mine, *self._by_owner.get((None, process.pid), [])]
        main = max([s for s in mine if s.main] or mine, key=lambda s: s.sample, default=None)
        if main is None or not _in_backward(main):
            return main
        beside = [s for s in mine if s.sample == main.sample and not s.main and s.source.file == main.source.file]
        return next((s for s in beside if _runs_hook(s)), main)

    def of_all(self, ranks: Iterable[int]) -> dict[int, ThreadStack]:
        return {rank: stack for rank in ranks if (stack := self.main(rank)) is not None}

    @cached_property
    def _by_owner(self) -> dict[tuple[int | None, int | None], list[ThreadStack]]:
        """By rank or, where that is not known, by pid."""
        found: dict[tuple[int | None, int | None], list[ThreadStack]] = {}
        for stack in self._job.facts.stacks:
            found.setdefault((stack.rank, None if stack.rank is not None else stack.pid), []).append(stack)
        return found


def _library_frames(stack: ThreadStack) -> Iterator[Frame]:
    """The frames inside the innermost line of the user's code."""
    return takewhile(lambda frame: not is_own_code(frame.filename), stack.frames)


def in_collective(stack: ThreadStack) -> bool:
    """Whether a thread stands inside torch.distributed, called from the user's code or not."""
    return any("torch/distributed/" in frame.filename.replace("\\", "/") for frame in _library_frames(stack))


def _in_backward(stack: ThreadStack) -> bool:
    """Whether a thread waits in autograd."""
    return any(frame.name == "_engine_run_backward" for frame in _library_frames(stack))


def _runs_hook(stack: ThreadStack) -> bool:
    """Whether a thread is autograd's and runs the user's code. Threads that Python made start in threading.py."""
    started = stack.frames[-1] if stack.frames else None
    python_made = started is None or started.filename.replace("\\", "/").rsplit("/", 1)[-1] == "threading.py"
    return not python_made and bool(own_frames(stack.frames))
