"""Where the job has stood still before and went on by itself: evaluation, a checkpoint, a slow reader.

A place that stalls again and again is worth one full report. From then on it has a threshold of its own, twice the
longest that it took to recover; what stays below costs a line.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from hangscope.recorder.live.watched_rank import WatchedRank

TIMES_BEFORE = 2.0

Site = tuple[str, str]
"""A group and the name of an operation on it, or a call that waits and its line. Sequence numbers go on."""


def sites_of(rank: WatchedRank) -> frozenset[Site]:
    """Where a rank is held up, by its oldest operation and by where it stands: one pause may show as either."""
    oldest, wait = rank.progress.oldest(), rank.position.wait
    found = [(oldest.group, oldest.name)] if oldest is not None else []
    return frozenset([*found, (wait.call, str(wait.at))] if wait is not None else found)


@dataclass(slots=True)
class Sites:
    _longest: dict[Site, float] = field(default_factory=dict)
    _said_at: float = -1.0

    def went_on(self, sites: Iterable[Site], seconds: float) -> None:
        """A stall at these places ended by itself after `seconds`."""
        for site in sites:
            self._longest[site] = max(seconds, self._longest.get(site, 0.0))

    def threshold(self, sites: Iterable[Site], usual_s: float) -> float:
        """For what is held up at these places."""
        return max((usual_s, *(TIMES_BEFORE * self._longest[site] for site in sites if site in self._longest)))

    def line(self, sites: Iterable[Site], what: str, age_s: float, usual_s: float) -> str | None:
        """What to say of something past the usual threshold at a place that recovered before.

        Once a stall: what had begun when the last line was said belongs to the same one, on other ranks or in a wait.
        """
        known = [site for site in sites if site in self._longest]
        now = time.monotonic()
        if not known or now - age_s <= self._said_at:
            return None
        self._said_at = now
        return (
            f"{what} for {age_s:.1f} s; here the job went on by itself before, after"
            f" {max(self._longest[site] for site in known):.1f} s, so it is saved in full only after"
            f" {self.threshold(known, usual_s):.1f} s"
        )


@dataclass(frozen=True, slots=True)
class Stall:
    """Since when the job has stood still, as the operations tell it, else the ranks' own threads, and where."""

    since_ns: int | None = None
    sites: frozenset[Site] = frozenset()

    @classmethod
    def of(cls, ranks: Iterable[WatchedRank]) -> Stall:
        living = [rank for rank in ranks if not rank.ended]
        found = [each.created_ns for rank in living if (each := rank.progress.oldest()) is not None]
        begun = min((created for created in found if created), default=None) or _stand_since(living)
        return cls(begun, frozenset().union(*(sites_of(rank) for rank in living)))

    def seconds(self) -> float:
        return 0.0 if self.since_ns is None else max(0.0, (time.time_ns() - self.since_ns) / 1e9)


def _stand_since(ranks: Iterable[WatchedRank]) -> int:
    """When the first of them came to where it waits; now, where none does."""
    now = time.monotonic()
    stood = [now - rank.position.since for rank in ranks if rank.position.wait and rank.position.since is not None]
    return time.time_ns() - int(1e9 * max(stood, default=0.0))
