"""Where one rank's threads are, over several samples: since when it has not moved, and what it waits in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hangscope.processes import thread_activity
from hangscope.processes.thread_activity import Sample
from hangscope.recorder.live.thread_waits import StackFrame, ThreadStack, ThreadWait


@dataclass(slots=True)
class RankPosition:
    """`since` is when it was first seen where it is, None before the first sample; `samples` counts those since."""

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
    prepares: bool = False
    """It was last seen to compile or to import, and it or what it started was at work."""
    seen: tuple[Any, ...] = ()
    """Where it was at its last sample, whatever was noted since."""
    _frames: tuple[Any, ...] = ()
    _before: dict[int | None, Sample] = field(default_factory=dict)

    def note_move(self) -> None:
        """Its counters moved, or the kernel saw it at work: what was seen before is over."""
        if self.samples:
            self.moves += 1
        self.since = None
        self.samples = 0
        self.wait = None
        self._frames = ()

    def note_activity(self, now: Sample | None, thread: int | None = None, *, may_spin: bool = False) -> bool:
        """Take what the kernel counts for a thread; whether it worked since the last time."""
        if now is None:
            return False
        before = self._before.get(thread)
        works = thread_activity.works(before, now, may_spin=may_spin) if before is not None else None
        if before is None or works is not None:
            self._before[thread] = now
        if thread is None and works is not None:
            self.works = works
        return bool(works)

    def take(self, stacks: Sequence[ThreadStack], wait: ThreadWait | None, quiet_since: float, now: float) -> None:
        """One sample. The first of a row counts from when the rank's counters last moved."""
        main_first = sorted(stacks, key=lambda stack: not stack.main)
        own_frames = (stack.own_frame for stack in main_first)
        self.at = next((frame for frame in own_frames if frame is not None), None)
        frames = tuple(stack.frames for stack in stacks if stack.main or _waits(stack, wait))
        self.seen = frames
        if self.samples and frames == self._frames and (wait is None) == (self.wait is None):
            self.samples += 1
            return
        if self.samples:
            self.moves += 1
        self.since = now if self.samples else quiet_since
        self.samples = 1
        self.wait = wait
        self._frames = frames
        self.outside = wait is None and not any(stack.in_backward for stack in stacks if stack.main)


def _waits(stack: ThreadStack, wait: ThreadWait | None) -> bool:
    return wait is not None and stack.number == wait.thread
