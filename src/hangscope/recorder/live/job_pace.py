"""Whether the job was getting on, or stood still, when somebody ended it: by how long it usually takes to get on."""

from __future__ import annotations

import time
from collections.abc import Iterable

from hangscope.recorder.live.unfinished_ops import ProgressSample, RankProgress
from hangscope.recorder.live.watched_rank import WatchedRank

TIMES_LONGEST = 1.5
TIMES_INTERVAL = 2.0
"""What got on since the last look may not be seen yet."""
STARTS_S = 10.0
"""A job that has yet to get anywhere comes together, which takes its time."""
FAILS_S = 5.0
"""So long before a rank's end its peers' operations may have ended already: they fail as it closes its connections."""


class JobPace:
    """`look` after every turn of polling, until a rank ends: an end moves counters, too."""

    def __init__(self) -> None:
        self.stood_still: bool | None = None
        """Whether ranks waited, and nothing had moved for longer than it ever took before, when the first rank ended;
        None while all are there."""
        self._samples: dict[int, ProgressSample] = {}
        self._waited = False
        """Whether a rank waited, when that was known last."""
        self._nothing_open_at: float | None = None
        self._moved_at: float | None = None
        self._longest_s = 0.0
        self._ever = False

    def restart(self) -> None:
        """The ranks were started anew. How long a step takes stays as it was."""
        self.stood_still = None
        self._moved_at = None
        self._nothing_open_at = None
        self._ever = False

    def look(self, ranks: Iterable[WatchedRank], interval_s: float, now: float) -> None:
        ranks = list(ranks)
        if any(rank.ended for rank in ranks):
            if self.stood_still is None:
                self.stood_still = self._was_stuck(interval_s, now)
            return
        found = {rank.process.pid: rank.progress for rank in ranks}
        if self._moved_at is None and found:
            self._moved_at = now
        known = [(progress, self._samples[pid]) for pid, progress in found.items() if pid in self._samples]
        moved = any(_got_on(progress, before) for progress, before in known)
        if any(progress.only_ended_since(before) for progress, before in known):
            self._nothing_open_at = now
        if moved or self._nothing_open_at is None or now - self._nothing_open_at > FAILS_S:
            self._waited = any(map(_waits, ranks))
        now_ns = time.time_ns()
        self._samples = {pid: progress.sample(now_ns) for pid, progress in found.items()}
        if moved and self._moved_at is not None:
            self._longest_s = max(self._longest_s, now - self._moved_at if self._ever else 0.0)
            self._moved_at = now
            self._ever = True

    def _was_stuck(self, interval_s: float, now: float) -> bool:
        if self._moved_at is None:
            return False
        usual_s = max(TIMES_LONGEST * self._longest_s, TIMES_INTERVAL * interval_s) if self._ever else STARTS_S
        return now - self._moved_at > usual_s and self._waited


def _got_on(progress: RankProgress, before: ProgressSample) -> bool:
    """Whether it launched something, or what it launched goes on. That all it had open has ended may be a failure: a
    peer's end does that, before anybody sees that one end. If it is none, a launch follows."""
    if progress.counters.keys() - before.counters.keys():
        return True
    return progress.moved_since(before) and not progress.only_ended_since(before)


def _waits(rank: WatchedRank) -> bool:
    """Whether it was inside anything that may wait for others; where nothing is counted nobody can tell."""
    if not rank.counted:
        return True
    counters = rank.progress.counters.values()
    inside = any(counter.enqueued > counter.completed for counter in counters) or rank.progress.oldest() is not None
    return inside or rank.position.wait is not None or rank.init_since is not None
