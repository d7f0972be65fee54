"""Where the job has stood still before and went on by itself: evaluation, a checkpoint, a slow reader.

A place that stalls again and again is worth one full report. From then on it has a threshold of its own, twice the
longest that it took to recover; what stays below costs a line.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from hangscope.recorder.ranks import Rank

TIMES_BEFORE = 2.0

Site = tuple[str, str]
"""A group and the name of an operation on it. Sequence numbers go on, and code lines are not known at every poll."""


@dataclass(slots=True)
class Sites:
    _longest: dict[Site, float] = field(default_factory=dict)
    _said: set[tuple[Site, int]] = field(default_factory=set)

    def went_on(self, sites: Iterable[Site], seconds: float) -> None:
        """A stall at these places ended by itself after `seconds`."""
        for site in sites:
            self._longest[site] = max(seconds, self._longest.get(site, 0.0))

    def threshold(self, site: Site, usual_s: float) -> float:
        before = self._longest.get(site)
        return usual_s if before is None else max(usual_s, TIMES_BEFORE * before)

    def line(self, site: Site, record: int, rank: int, label: str, age_s: float, usual_s: float) -> str | None:
        """What to say, once, of an operation that is past the usual threshold at a place that recovered before."""
        before = self._longest.get(site)
        if before is None or (site, record) in self._said:
            return None
        self._said.add((site, record))
        return (
            f"rank {rank}: {label} unfinished for {age_s:.1f} s; here the job went on by itself before, after"
            f" {before:.1f} s, so it is saved in full only after {self.threshold(site, usual_s):.1f} s"
        )


@dataclass(frozen=True, slots=True)
class Stall:
    """Since when the job has stood still, as the operations themselves tell it, and where."""

    since_ns: int | None = None
    sites: frozenset[Site] = frozenset()

    @classmethod
    def of(cls, ranks: Iterable[Rank]) -> Stall:
        found = [each for rank in ranks if not rank.ended and (each := rank.progress.oldest()) is not None]
        begun = min((each.created_ns for each in found if each.created_ns), default=time.time_ns())
        return cls(begun, frozenset((each.group, each.name) for each in found))

    def seconds(self) -> float:
        return 0.0 if self.since_ns is None else max(0.0, (time.time_ns() - self.since_ns) / 1e9)
