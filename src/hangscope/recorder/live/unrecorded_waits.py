"""The second sense: ranks that stand still in a wait which no recorder counts. The first is an unfinished operation.

Nothing is sampled while a rank's counters move. A rank whose counters stand still is asked now and then where its
threads stand, however busy the kernel sees them: NCCL polls its sockets while it connects. One that cannot be asked is
looked at from outside, once its main thread has been idle for half of the threshold, else seldom.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hangscope.recorder.live.pyspy_sampler import PySpySampler
from hangscope.recorder.live.thread_waits import BACKWARD, StackFrame, ThreadWait, threads, where
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.live.worker_server import Asker, Question, Topic
from hangscope.recorder.process import linux_process, thread_activity

QUESTION = "hangscope_stacks"
BEGINS = 0.5
BETWEEN_S = 5.0
"""Looks are a fifth of the threshold apart, or this where that is less."""
LEAST_S = 0.9
TIMES_WORKING = 2.0
"""Others may still be at work on what the rank waits for: so many times the threshold then."""
TIMES_IN_INIT = 4.0
"""While the job only comes together and somebody has yet to come: ranks start at different times."""
_SOURCE_BYTES = 4 << 20
_MOST_FILES = 64


@dataclass(frozen=True, slots=True)
class StuckRank:
    """A rank that stands still in a wait, and for how long."""

    rank: WatchedRank
    wait: ThreadWait
    seconds: float

    def __str__(self) -> str:
        return f"rank {self.rank.number} stands in {self.wait}"


class UnrecordedWaits:
    def __init__(self) -> None:
        self._pyspy = PySpySampler()
        self._signatures: dict[int, tuple[Any, ...]] = {}
        self._next: dict[int, float] = {}
        self._closely_until = 0.0
        self._used: dict[int, tuple[float, float]] = {}
        self._sources: dict[tuple[int, str], list[bytes]] = {}

    def close(self) -> None:
        self._pyspy.close()

    def look_closely(self, until: float) -> None:
        """Do not wait for ranks to have been quiet for long: somebody wants to know where they stand."""
        self._closely_until = until
        self._next.clear()

    @property
    def refused(self) -> str:
        """Why py-spy may not look at ranks that cannot be asked; empty where it may, or was not needed."""
        return self._pyspy.refused

    def turn(self, ranks: Iterable[WatchedRank], asker: Asker, threshold: float, now: float) -> None:
        """Note who gets anywhere, and have a look at who does not. Answers of the asker come to `take`."""
        closely = now < self._closely_until
        pause_s = LEAST_S if closely else min(BETWEEN_S, threshold / 5)
        by_number = {rank.number: rank for rank in ranks if not rank.ended}
        for rank in by_number.values():
            if self._gets_on(rank, now):
                rank.quiet_since = now
                rank.position.moved()
            idle = closely or now - rank.quiet_since >= BEGINS * threshold
            pause = pause_s if idle or self._can_ask(rank) else threshold
            if now - rank.still_since >= pause and now >= self._next.get(rank.process.pid, 0.0):
                self._next[rank.process.pid] = now + pause
                self._look(rank, asker)
        for number, pid, value in self._pyspy.ready():
            seen = by_number.get(number)
            if seen is not None and seen.process.pid == pid:
                self.take(seen, value, now)

    def _gets_on(self, rank: WatchedRank, now: float) -> bool:
        pid, signature = rank.process.pid, rank.progress.signature()
        before = self._signatures.get(pid)
        self._signatures[pid] = signature
        if before not in (None, signature):
            rank.still_since, rank.position.works = now, True
            return True
        position = rank.position
        stirred = position.stir(thread_activity.sample(pid, None, now), may_spin=position.wait is not None)
        if position.wait is None or not position.wait.polls:
            return stirred
        position.works, position.spins = False, stirred
        return False

    def _can_ask(self, rank: WatchedRank) -> bool:
        socket = rank.process.socket
        return socket is not None and QUESTION in rank.process.handlers and os.path.exists(socket)

    def _look(self, rank: WatchedRank, asker: Asker) -> None:
        socket = rank.process.socket
        if socket is not None and self._can_ask(rank):
            if "wait_counter_values" in rank.process.handlers:
                asker.ask(Question(Topic.WAIT_COUNTERS, rank.number), socket, "wait_counter_values")
            asker.ask(Question(Topic.STACKS, rank.number), socket, QUESTION)
        else:
            self._pyspy.want(rank.number, rank.process.pid)

    def take(self, rank: WatchedRank, value: Any, now: float) -> None:
        """Where the threads of a rank stand."""
        found = threads(value)
        counted = rank.process.socket is not None
        wait = where(found, rank.wait_counters, lambda frame: self._line(rank, frame), counted=counted)
        if wait is not None and wait.call == BACKWARD and self._computes(rank.process.pid, now):
            rank.position.moved()  # autograd's own threads work while the main one waits for them
            return
        if wait is not None and not wait.polls and wait.thread not in (None, rank.process.pid):
            stirred = thread_activity.sample(rank.process.pid, wait.thread, now)
            if rank.position.stir(stirred, wait.thread, may_spin=True):
                rank.position.moved()
                return
        rank.position.take(found, wait, rank.quiet_since, now)

    def _computes(self, pid: int, now: float) -> bool:
        """Whether any thread of a process did something since it was last asked."""
        stat = linux_process.stat(pid)
        used = stat.cpu_seconds if stat is not None else 0.0
        at, before = self._used.get(pid, (now, used))
        self._used[pid] = (now, used)
        return used - before > thread_activity.BUSY * (now - at)

    def stuck(
        self, ranks: Iterable[WatchedRank], known: Collection[int], threshold: float, now: float
    ) -> list[StuckRank]:
        """The ranks that have stood too long in such a wait, the longest first."""
        living = [rank for rank in ranks if not rank.ended]
        others_work = any(rank.position.works or now - rank.quiet_since < BEGINS * threshold for rank in living)
        times = TIMES_WORKING if others_work else 1.0
        all_here, connects = _all_in_init(living, now - threshold), _connects(living)
        found = []
        for rank in living:
            position = rank.position
            if position.wait is None or position.since is None or position.samples < 2 or rank.number in known:
                continue
            slowly = connects or (position.wait.in_init and not all_here)
            limit = threshold * (TIMES_IN_INIT if slowly else times)
            if now - position.since > limit:
                found.append(StuckRank(rank, position.wait, now - position.since))
        return sorted(found, key=lambda stood: (-stood.seconds, stood.rank.number))

    def _line(self, rank: WatchedRank, frame: StackFrame) -> str:
        """The line of a source file as the rank sees it: its own root and working directory, with its own rights."""
        pid = rank.process.pid
        key = (pid, frame.file)
        if key not in self._sources:
            inside = "root" if frame.file.startswith("/") else "cwd"
            place = f"/proc/{pid}/{inside}/{frame.file.lstrip('/')}" if rank.rights.inside is None else frame.file
            try:
                text = rank.rights.read(Path(place), _SOURCE_BYTES)
            except (OSError, ValueError):
                text = b""
            if len(self._sources) >= _MOST_FILES:
                self._sources.clear()
            self._sources[key] = text.split(b"\n")
        lines = self._sources[key]
        return lines[frame.line - 1].decode(errors="replace")[:1000] if 0 < frame.line <= len(lines) else ""


def _connects(living: Sequence[WatchedRank]) -> bool:
    """Whether nobody is missing: every rank is at work inside a collective, as while NCCL makes a communicator."""
    waits = [(rank.position.wait, rank.position.spins) for rank in living]
    return all(wait is not None and wait.polls for wait, _ in waits) and any(spins for _, spins in waits)


def _all_in_init(living: Sequence[WatchedRank], before: float) -> bool:
    """Whether every rank of the job is here and has been in init_process_group since before then: nobody is to come."""
    sizes = [rank.process.world_size for rank in living]
    inside = [
        rank.position.wait is not None
        and rank.position.wait.in_init
        and rank.position.since is not None
        and rank.position.since < before
        for rank in living
    ]
    return all(inside) and all(size is not None and size <= len(living) for size in sizes)
