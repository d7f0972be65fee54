"""Ranks that are stuck in a wait which no recorder counts; those in an unfinished operation show without this.

Nothing is sampled while a rank's counters move. A rank whose counters stand still is asked now and then where its
threads are, or its memory is, however busy the kernel sees them: NCCL polls its sockets while it connects. One that
py-spy alone can look at is sampled once its main thread has been idle for half of the threshold, else seldom.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hangscope.processes import linux_process, thread_activity
from hangscope.processes.process_activity import ActivitySample
from hangscope.recorder.live.pyspy_sampler import PySpySampler
from hangscope.recorder.live.thread_waits import (
    BACKWARD,
    ThreadStack,
    ThreadWait,
    find_wait,
    is_preparing,
    parse_stacks,
)
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.live.worker_server import Asker, Question, Topic
from hangscope.sources.source_code.source_lines import SourceLines

STACKS = "hangscope_stacks"
BEGINS = 0.5
BETWEEN_S = 5.0
"""Samples are a fifth of the threshold apart, or this where that is less."""
LEAST_S = 0.9
TIMES_WORKING = 2.0
"""Others may still be at work on what the rank waits for: so many times the threshold then."""
TIMES_IN_INIT = 4.0
"""While the job only comes together and somebody has yet to come: ranks start at different times."""
TIMES_FIRST = 10.0
"""At the start ranks come one by one, as down a pipeline, and NCCL connects: at most so many thresholds."""
FEW = 3
"""Where all others wait for their GPUs, at most one rank in so many is what they wait for."""


@dataclass(frozen=True, slots=True)
class StuckRank:
    """A rank that does not move in a wait, and for how long."""

    rank: WatchedRank
    wait: ThreadWait
    seconds: float

    def __str__(self) -> str:
        return f"{self.rank.said} waits in {self.wait}"


class UnrecordedWaits:
    def __init__(self) -> None:
        self._pyspy = PySpySampler()
        self._lines = SourceLines()
        self._signatures: dict[int, tuple[Any, ...]] = {}
        self._next_sample: dict[int, float] = {}
        self._closely_until = 0.0
        self._cpu_used: dict[int, tuple[float, float]] = {}
        """By process: when (monotonic) it was last asked what it used, and how many seconds of CPU that was."""
        self._prepared: dict[int, ActivitySample] = {}
        """By process: what it had used when it was last seen to compile or to import."""

    def close(self) -> None:
        self._pyspy.close()

    def sample_closely(self, until: float) -> None:
        """Do not wait for ranks to have been quiet for long: somebody wants to know where they are."""
        self._closely_until = until
        self._next_sample.clear()

    @property
    def refused(self) -> str:
        """Why py-spy may not look at ranks that cannot be asked; empty where it may, or was not needed."""
        return self._pyspy.refused

    # ---- sampling ----------------------------------------------------------------------------------------------------

    def turn(self, ranks: Iterable[WatchedRank], asker: Asker, threshold: float, now: float) -> None:
        """Note which ranks move, and sample those that do not. Answers of the asker come to `take`."""
        by_number = {rank.number: rank for rank in ranks if not rank.ended}
        for rank in by_number.values():
            if self._moves(rank, now):
                rank.quiet_since = now
                rank.position.note_move()
            pause = self._pause(rank, threshold, now)
            if now - rank.still_since >= pause and now >= self._next_sample.get(rank.process.pid, 0.0):
                self._next_sample[rank.process.pid] = now + pause
                self._sample(rank, asker, eagerly=now < self._closely_until)
        for number, pid, value in self._pyspy.finished():
            seen = by_number.get(number)
            if seen is not None and seen.process.pid == pid:
                self.take(seen, value, now)

    def _pause(self, rank: WatchedRank, threshold: float, now: float) -> float:
        """Seconds from one sample of a rank to the next, and from its last move to the first."""
        if now < self._closely_until:
            return LEAST_S
        idle = now - rank.quiet_since >= BEGINS * threshold
        cheap = _can_be_asked(rank) or rank.outside is not None
        return min(BETWEEN_S, threshold / 5) if idle or cheap else threshold

    def _moves(self, rank: WatchedRank, now: float) -> bool:
        """Whether it got anywhere since the last turn: by its counters, else by what the kernel saw its thread do."""
        pid = rank.process.pid
        position = rank.position
        signature = rank.progress.signature()
        before = self._signatures.get(pid)
        self._signatures[pid] = signature
        if before not in (None, signature):
            rank.still_since = now
            position.works = True
            position.prepares = False
            return True
        works = position.note_activity(thread_activity.sample(pid, None, now), may_spin=position.wait is not None)
        if position.wait is None or not position.wait.polls:
            return works
        position.works = False
        position.spins = works
        return False

    def _sample(self, rank: WatchedRank, asker: Asker, *, eagerly: bool) -> None:
        socket = rank.process.socket
        if socket is None or not _can_be_asked(rank):
            self._pyspy.request(rank.number, rank.process.pid, eagerly=eagerly)
            return
        if "wait_counter_values" in rank.process.handlers:
            asker.ask(Question(Topic.WAIT_COUNTERS, rank.number), socket, "wait_counter_values")
        asker.ask(Question(Topic.STACKS, rank.number), socket, STACKS)

    def take(self, rank: WatchedRank, value: Any, now: float) -> None:
        """One sample of where the threads of a rank are."""
        stacks = parse_stacks(value)
        rank.position.prepares = self._prepares(rank.process.pid, stacks, now)
        if rank.outside is not None:
            cuda = rank.outside.for_gpus
        else:  # a build for CPU has no such handler
            cuda = rank.process.socket is None or "dump_nccl_trace_json" in rank.process.handlers
        wait = find_wait(
            stacks,
            rank.wait_counters,
            lambda frame: self._lines.line(rank, frame.file, frame.line),
            counted=rank.counted,
            cuda=cuda,
        )
        if wait is not None and self._works_meanwhile(rank, wait, now):
            rank.position.note_move()
        else:
            rank.position.take(stacks, wait, rank.quiet_since, now)

    def _prepares(self, pid: int, stacks: Sequence[ThreadStack], now: float) -> bool:
        """Whether it compiles, mostly in processes of its own, or imports: at work, and not waiting for a lock."""
        before = self._prepared.pop(pid, None)
        if not is_preparing(stacks):
            return False
        self._prepared[pid] = ActivitySample.of(pid, now)
        return before is None or self._prepared[pid].since(before).works

    def _works_meanwhile(self, rank: WatchedRank, wait: ThreadWait, now: float) -> bool:
        """Whether the wait is only the main thread's, and another thread of the rank is at work."""
        pid = rank.process.pid
        if wait.call == BACKWARD and self._computes(pid, now):
            return True  # autograd's own threads work while the main one waits for them
        if wait.polls or wait.thread in (None, pid):
            return False
        activity = thread_activity.sample(pid, wait.thread, now)
        return rank.position.note_activity(activity, wait.thread, may_spin=True)

    def _computes(self, pid: int, now: float) -> bool:
        """Whether any thread of a process did something since it was last asked."""
        stat = linux_process.stat(pid)
        used = stat.cpu_seconds if stat is not None else 0.0
        at, before = self._cpu_used.get(pid, (now, used))
        self._cpu_used[pid] = (now, used)
        return used - before > thread_activity.BUSY * (now - at)

    # ---- judgement ---------------------------------------------------------------------------------------------------

    def stuck(
        self, ranks: Iterable[WatchedRank], known: Collection[int], threshold: float, now: float
    ) -> list[StuckRank]:
        """The ranks that have been in such a wait for too long, the longest first."""
        living = [rank for rank in ranks if not rank.ended]
        starts = _still_starts(living, now - threshold)
        usual = _patience(living, threshold, now, starts=starts)
        in_init = usual if _all_in_init(living, now - threshold) else TIMES_IN_INIT * threshold
        one_is_missed = _all_but_few_wait_for_gpu(living, now - threshold)
        moved_at = max((rank.still_since for rank in living), default=now) if starts else 0.0
        found = []
        for seen in _waits_seen_twice(living, now):
            if seen.rank.number in known or (seen.wait.on_gpu and not one_is_missed):
                continue
            first = not seen.wait.in_init and seen.seconds < TIMES_FIRST * threshold
            counts_s = min(seen.seconds, now - moved_at) if first else seen.seconds
            if counts_s > (in_init if seen.wait.in_init else usual):
                found.append(seen)
        return sorted(found, key=lambda stuck: (-stuck.seconds, stuck.rank.number))


def _can_be_asked(rank: WatchedRank) -> bool:
    socket = rank.process.socket
    return socket is not None and STACKS in rank.process.handlers and os.path.exists(socket)


def _waits_seen_twice(living: Sequence[WatchedRank], now: float) -> Iterator[StuckRank]:
    """Each rank that more than one sample showed in the same wait, and for how long it has been there."""
    for rank in living:
        position = rank.position
        if position.wait is not None and position.since is not None and position.samples > 1:
            yield StuckRank(rank, position.wait, now - position.since)


def _patience(living: Sequence[WatchedRank], threshold: float, now: float, *, starts: bool) -> float:
    """For how long a wait is usual: longer while others work, longest while the job comes together."""
    busy = any(rank.position.works or now - rank.quiet_since < BEGINS * threshold for rank in living)
    spins = any(rank.position.spins for rank in living)
    if _all_connect(living) or (starts and (busy or spins)):
        return TIMES_IN_INIT * threshold
    return TIMES_WORKING * threshold if busy else threshold


def _all_connect(living: Sequence[WatchedRank]) -> bool:
    """Whether nobody is missing: every rank is at work inside a collective, as while NCCL makes a communicator."""
    if not any(rank.position.spins for rank in living):
        return False
    waits = [rank.position.wait for rank in living]
    return all(wait is not None and wait.polls and not wait.on_gpu for wait in waits)


def _still_starts(living: Sequence[WatchedRank], before: float) -> bool:
    """Whether the job comes together: a rank has yet to complete its first collective, and nobody idles elsewhere.

    A rank that has been outside of everything since before then, and does nothing there, is what the others wait for.
    """
    if all(rank.progress.ever for rank in living):
        return False
    outside = [rank.position for rank in living if rank.position.outside and rank.position.samples > 1]
    return not any(position.since is not None and position.since < before for position in outside)


def _all_but_few_wait_for_gpu(living: Sequence[WatchedRank], before: float) -> bool:
    """Whether a few ranks have been outside of everything since before then, while all others wait for their GPUs.

    A rank that works is not there: whoever sees it work forgets where it was.
    """
    outside = [rank.position for rank in living if rank.position.wait is None or not rank.position.wait.on_gpu]
    if not outside or len(outside) * FEW > len(living):
        return False
    return all(
        position.outside and position.samples > 1 and position.since is not None and position.since < before
        for position in outside
    )


def _all_in_init(living: Sequence[WatchedRank], before: float) -> bool:
    """Whether every rank of the job is here and has been in init_process_group since before then: nobody is to come."""
    for rank in living:
        position = rank.position
        if position.wait is None or not position.wait.in_init:
            return False
        if position.since is None or position.since >= before:
            return False
        if rank.process.world_size is None or rank.process.world_size > len(living):
            return False
    return True
