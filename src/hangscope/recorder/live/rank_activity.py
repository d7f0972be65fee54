"""Whether a rank works: its processes use the CPU, or its reads and writes go on, between two looks.

A rank that saves, evaluates, compiles or reads keeps the others waiting just as one that hangs does. What it costs the
machine tells them apart: a rank that waits, sleeps or is stopped costs nothing. Of a loop that polls it is not known.
"""

from __future__ import annotations

from collections.abc import Iterable

from hangscope.processes.process_activity import ActivitySample
from hangscope.recorder.live.watched_rank import WatchedRank

LOOK_S = 2.0
REMEMBERED_S = 15.0
"""So long a rank that was seen to work counts as working."""


class RankActivity:
    """What the ranks of a node were seen doing."""

    def __init__(self) -> None:
        self._before: dict[int, ActivitySample] = {}
        self._worked_at: dict[int, float] = {}
        self._idle_since: dict[int, float] = {}
        self._polling: set[int] = set()

    def look(self, ranks: Iterable[WatchedRank], now: float) -> None:
        """Compare each rank with the last look, where that is long enough ago."""
        for rank in ranks:
            pid = rank.process.pid
            before = self._before.get(pid)
            if before is not None and now - before.at < LOOK_S:
                continue
            sample = ActivitySample.of(pid, now)
            self._before[pid] = sample
            if before is None:
                continue
            activity = sample.since(before)
            if activity.polls:
                self._polling.add(pid)
            if activity.works:
                self._worked_at[pid] = now
                self._idle_since.pop(pid, None)
            else:
                self._idle_since.setdefault(pid, before.at)

    def works(self, rank: WatchedRank, now: float) -> bool:
        """Whether it was seen to work lately."""
        worked_at = self._worked_at.get(rank.process.pid)
        return worked_at is not None and now - worked_at < REMEMBERED_S

    def polls(self, rank: WatchedRank) -> bool:
        """Whether its main thread was ever seen to wake up by itself, as a loop does that polls or tries again."""
        return rank.process.pid in self._polling

    def idle_s(self, rank: WatchedRank) -> float:
        """For how long it was looked at and never seen to work; 0 where nobody could compare: that it does not work is
        not known then."""
        pid = rank.process.pid
        since = self._idle_since.get(pid)
        return self._before[pid].at - since if since is not None else 0.0
