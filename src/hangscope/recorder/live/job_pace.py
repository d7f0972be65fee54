"""Whether the job was getting on, or stood still, when somebody ended it: by how long it usually takes to get on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hangscope.recorder.live.watched_rank import WatchedRank

TIMES_LONGEST = 1.5
TIMES_INTERVAL = 2.0
"""What got on since the last look may not be seen yet."""
STARTS_S = 10.0
"""A job that has yet to get anywhere comes together, which takes its time."""


class JobPace:
    """`look` after every turn of polling, until a rank ends: an end moves counters, too."""

    def __init__(self) -> None:
        self.stood_still: bool | None = None
        """Whether ranks waited, and nothing had moved for longer than it ever took before, when the first rank ended;
        None while all are there."""
        self._signatures: dict[int, tuple[Any, ...]] = {}
        self._moved_at: float | None = None
        self._longest_s = 0.0
        self._ever = False

    def restart(self) -> None:
        """The ranks were started anew. How long a step takes stays as it was."""
        self.stood_still = None
        self._moved_at = None
        self._ever = False

    def look(self, ranks: Iterable[WatchedRank], interval_s: float, now: float) -> None:
        ranks = list(ranks)
        if any(rank.ended for rank in ranks):
            if self.stood_still is None:
                self.stood_still = self._was_stuck(ranks, interval_s, now)
            return
        found = {rank.process.pid: rank.progress.signature() for rank in ranks}
        if self._moved_at is None and found:
            self._moved_at = now
        moved = any(self._signatures.get(pid, signature) != signature for pid, signature in found.items())
        self._signatures = found
        if moved and self._moved_at is not None:
            self._longest_s = max(self._longest_s, now - self._moved_at if self._ever else 0.0)
            self._moved_at = now
            self._ever = True

    def _was_stuck(self, ranks: Iterable[WatchedRank], interval_s: float, now: float) -> bool:
        if self._moved_at is None:
            return False
        usual_s = max(TIMES_LONGEST * self._longest_s, TIMES_INTERVAL * interval_s) if self._ever else STARTS_S
        return now - self._moved_at > usual_s and any(map(_waits, ranks))


def _waits(rank: WatchedRank) -> bool:
    """Whether it was inside anything that may wait for others; where nothing is counted nobody can tell."""
    if not rank.counted:
        return True
    counters = rank.progress.counters.values()
    inside = any(counter.enqueued > counter.completed for counter in counters) or rank.progress.oldest() is not None
    return inside or rank.position.wait is not None or rank.init_since is not None
