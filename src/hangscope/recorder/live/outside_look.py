"""Ranks in which no companion answers, read from outside: counters once a turn, rings where there is a doubt.

Nothing is asked of such a rank and nothing runs in it for us: its flight recorder is read out of its memory. What that
needs is the right to read it. Where it cannot be read, that is kept with the reason, and it is tried again ever more
seldom: before torch is loaded there is nothing to read.
"""

from __future__ import annotations

import time
from typing import Any

from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.sources.flight_recorder.outside import CannotRead, dump_bytes, open_process

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0
TIMES_PAUSE = 1.3
DUTY = 0.01
"""The share of one core that reading the rings of one rank may take, where nothing is urgent."""


class OutsideLook:
    def __init__(self) -> None:
        self._next_try: dict[int, tuple[float, float]] = {}
        """By process, when (monotonic) its memory is opened next, and the pause after that."""
        self._next_ring: dict[tuple[int, str], float] = {}

    def read_counters(self, rank: WatchedRank, now: float) -> None:
        """How far a rank is, by the counters of its recorders."""
        if rank.outside is None and not self._open(rank, now):
            return
        assert rank.outside is not None
        try:
            if not rank.last_status and not self._has_recorder(rank, now):
                return
            counted = rank.outside.counters()
        except CannotRead as error:
            self._give_up(rank, error, now)
            return
        now_ns = time.time_ns()
        for recorder, groups in counted.items():
            status = {
                str(group): {
                    "last_enqueued_collective": enqueued,
                    "last_started_collective": started,
                    "last_completed_collective": completed,
                }
                for group, (enqueued, started, completed) in groups.items()
            }
            if status:
                rank.last_status[recorder] = status
                rank.progress.take_counters(recorder, status, now, now_ns)
        rank.unread = None
        rank.last_poll_at = now_ns / 1e9

    def read_doubtful_rings(self, rank: WatchedRank, now: float, threshold: float) -> None:
        """The rings that the counters leave in doubt."""
        urgent, some_time = rank.progress.doubtful(now, time.time_ns(), threshold)
        for recorder in urgent | some_time:
            key = (rank.process.pid, recorder)
            if recorder in urgent or now >= self._next_ring.get(key, 0.0):
                begun = time.thread_time()
                self._read_ring(rank, recorder)
                self._next_ring[key] = now + (time.thread_time() - begun) / DUTY

    def read_before_the_end(self, rank: WatchedRank) -> None:
        """What a rank has recorded last: it may be killed in a moment."""
        for recorder in list(rank.last_status):
            dump = self._read_ring(rank, recorder)
            if dump is not None:
                rank.last_full[recorder] = dump

    def dump_with_stacks(self, rank: WatchedRank, recorder: str) -> bytes:
        """As torch itself would write it; empty where it cannot be read now."""
        try:
            return dump_bytes(rank.outside.dump(recorder)) if rank.outside is not None else b""
        except CannotRead:
            return b""

    def _read_ring(self, rank: WatchedRank, recorder: str) -> dict[str, Any] | None:
        if rank.outside is None:
            return None
        try:
            dump = rank.outside.dump(recorder, stacks=False)
        except CannotRead:
            return None  # torn by a rank that moves, or not of a layout that is known: the counters tell all the same
        rank.take_full(recorder, dump)
        return dump

    def _has_recorder(self, rank: WatchedRank, now: float) -> bool:
        """Whether there is something to read: a recorder begins with the first operation."""
        assert rank.outside is not None
        due, pause = self._next_try.get(rank.process.pid, (0.0, FIRST_PAUSE_S))
        if now < due:
            return False
        if rank.outside.recorders():
            return True
        rank.unread = next(((why, "") for why in rank.outside.reasons.values()), None)
        self._next_try[rank.process.pid] = (now + pause, min(LONGEST_PAUSE_S, TIMES_PAUSE * pause))
        return False

    def _open(self, rank: WatchedRank, now: float) -> bool:
        pid = rank.process.pid
        due, pause = self._next_try.get(pid, (0.0, FIRST_PAUSE_S))
        if now < due:
            return False
        try:
            rank.outside = open_process(pid)
        except CannotRead as error:
            rank.unread = (error.reason, error.cure or "")
            self._next_try[pid] = (now + pause, min(LONGEST_PAUSE_S, TIMES_PAUSE * pause))
            return False
        rank.progress.counts_alone = True
        return True

    def _give_up(self, rank: WatchedRank, error: CannotRead, now: float) -> None:
        """For now: the process may have ended, or replaced what it runs."""
        rank.close_outside()
        rank.unread = (error.reason, error.cure or "")
        self._next_try[rank.process.pid] = (now + FIRST_PAUSE_S, FIRST_PAUSE_S)
