"""The stragglers of a slow job: those for which the others wait again and again, as far as somebody watches.

At any one moment some rank is last, in every healthy job. So looks are counted, and only a rank that is last far more
often than its share is named.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hangscope.recorder.rundir.live_view import GroupLine, LiveView

LEAST_LOOKS = 8
SHARE = 0.5
"""Of the looks in which others were seen to wait for anybody."""
TIMES = 3
"""And so many times as often as if all ranks took turns, or nearly always."""
NEARLY_ALWAYS = 0.9
MOST_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Straggler:
    rank: int
    node: str
    times: int
    looks: int
    code: str


@dataclass(slots=True)
class Stragglers:
    """Counts what each look at the job shows. A look at status files that are as before is none."""

    looks: int = 0
    _ranks: int = 0
    _last: Counter[int] = field(default_factory=Counter)
    _about: dict[int, tuple[str, str]] = field(default_factory=dict)
    _before: tuple[GroupLine, ...] = ()

    def take(self, now: LiveView) -> None:
        if now.groups == self._before:
            return
        self._before = now.groups
        stalled = any(each.still_s > (now.threshold_s or 30.0) / 2 for each in now.groups if each.behind)
        if not now.late or stalled:
            return  # nobody waits; or the job is not slow but stands still
        self.looks += 1
        self._ranks = len(now.ranks)
        lines = {line.rank: line for line in now.ranks}
        for rank in now.late:
            line = lines.get(rank)
            known = self._about.get(rank, ("", ""))[1]
            self._last[rank] += 1
            self._about[rank] = (line.node, line.code or known) if line is not None else ("", known)

    def found(self) -> list[Straggler]:
        """The one that is last most often first."""
        if self.looks < LEAST_LOOKS:
            return []
        least = max(SHARE, min(NEARLY_ALWAYS, TIMES / max(1, self._ranks))) * self.looks
        often = [(rank, times) for rank, times in self._last.most_common(MOST_SHOWN) if times >= least]
        return [Straggler(rank, self._about[rank][0], times, self.looks, self._about[rank][1]) for rank, times in often]
