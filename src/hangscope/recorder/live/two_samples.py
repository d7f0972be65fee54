"""Two samples of a job: what got anywhere between them moves, what did not may be stuck.

A single one cannot tell: in a healthy job, too, some rank waits for another at any moment.
"""

from __future__ import annotations

import time
from typing import Any

from hangscope.recorder.live import ring_age
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.live.unfinished_ops import ProgressSample
from hangscope.recorder.live.watched_rank import WatchedRank

LEAST_S = 3.0
MOST_S = 8.0
"""The second sample comes as soon as every rank has moved, and no later than this."""
LATEST_S = 16.0
"""And as late as this where one that can be read was not sampled so far, as on a busy machine: what it waits in is not
known then, and whoever waits for a store would be said to be late."""
CONFIRM_S = 1.5
"""It comes as soon as this where the recorders of all that do not move show that they stood for `MOST_S` before."""


class TwoSamples:
    def __init__(self, polling: Polling, now: float) -> None:
        self._polling = polling
        self._begun = now
        self._first = {rank.process.pid: _sample(rank) for rank in polling}
        self._seen_at_work: set[int] = set()
        self._seen: dict[int, tuple[Any, ...]] = {}
        """Where each rank was at its first sample."""
        self._stood = {rank.process.pid: ring_age.stood_s(rank.process.pid) or 0.0 for rank in polling}
        polling.unrecorded_waits.sample_closely(now + LATEST_S + 1)

    def done(self, now: float) -> bool:
        """Whether the second sample is taken; what each rank did in between is noted in it then."""
        ranks = self._polling.living
        self._seen_at_work |= {rank.process.pid for rank in ranks if rank.position.works}
        for rank in ranks:
            if rank.position.seen:
                self._seen.setdefault(rank.process.pid, rank.position.seen)
        waited = now - self._begun
        unmoved = [rank for rank in ranks if not self._moved(rank)]
        if waited < MOST_S and not self._seen_enough(waited, unmoved):
            return False
        if waited < LATEST_S and any(rank.outside is not None and not rank.position.samples for rank in unmoved):
            return False
        for rank in ranks:
            rank.moved = self._moved(rank)
        return True

    def _seen_enough(self, waited: float, unmoved: list[WatchedRank]) -> bool:
        """Whether it is known of every rank that it moves, or has stood for long."""
        if not unmoved:
            return waited >= LEAST_S
        stood = all(self._stood.get(rank.process.pid, 0.0) >= MOST_S for rank in unmoved)
        samples = 2 if waited < LEAST_S else 1
        placed = all(rank.position.samples >= samples for rank in unmoved)
        return stood and placed and waited >= CONFIRM_S

    def _moved(self, rank: WatchedRank) -> bool | None:
        """By its counters; one that has none, by where its threads are. Who waits for a GPU, or for a file to appear,
        is at work all the time: it is not known of one that is at work at the same place."""
        pid = rank.process.pid
        before = self._first.get(pid)
        if before is None:
            return True
        progress, moves = before
        if rank.progress.moved_since(progress):
            return True
        if rank.progress.counters or rank.progress.unfinished:
            return False
        if moves == rank.position.moves and pid not in self._seen_at_work:
            return False
        return True if self._seen.get(pid, rank.position.seen) != rank.position.seen else None


def _sample(rank: WatchedRank) -> tuple[ProgressSample, int]:
    return rank.progress.sample(time.time_ns()), rank.position.moves
