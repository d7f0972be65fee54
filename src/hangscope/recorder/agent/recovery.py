"""A stall that went on by itself: evaluation, a checkpoint, a slow reader. When it is over, and where it was.

A place that stalls again and again is worth one full report. From then on it has a threshold of its own, twice the
longest that it took to recover; what stays below costs a line.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hangscope.recorder.live.polling import Polling
from hangscope.recorder.live.unfinished_ops import ProgressSample
from hangscope.recorder.live.watched_rank import WatchedRank

MOVES_S = 1.5
"""So long every rank must be seen to move: a rank whose peer was ended moves too, and dies."""
TIMES_BEFORE = 2.0

StallSite = tuple[str, str]
"""A group and the name of an operation on it, or a call that waits and its line. Sequence numbers go on."""


def sites_of(rank: WatchedRank) -> frozenset[StallSite]:
    """Where a rank is held up, by its oldest operation and by its threads: one pause may show as either."""
    found = []
    oldest = rank.progress.oldest()
    if oldest is not None:
        found.append((oldest.group, oldest.name))
    wait = rank.position.wait
    if wait is not None:
        found.append((wait.call, str(wait.at)))
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class CapturedStall:
    """Since when the job has not moved, by its operations, else by the ranks' own threads, and where."""

    since_ns: int | None = None
    sites: frozenset[StallSite] = frozenset()

    @classmethod
    def of(cls, ranks: Iterable[WatchedRank]) -> CapturedStall:
        living = [rank for rank in ranks if not rank.ended]
        oldest = [rank.progress.oldest() for rank in living]
        created = [each.created_ns for each in oldest if each is not None and each.created_ns]
        begun = min(created) if created else _waiting_since_ns(living)
        return cls(begun, frozenset().union(*(sites_of(rank) for rank in living)))

    def seconds(self) -> float:
        return 0.0 if self.since_ns is None else max(0.0, (time.time_ns() - self.since_ns) / 1e9)


def _waiting_since_ns(ranks: Iterable[WatchedRank]) -> int:
    """When the first of them came to where it waits; now, where none does."""
    now = time.monotonic()
    positions = [rank.position for rank in ranks if rank.position.wait is not None]
    waited = [now - position.since for position in positions if position.since is not None]
    return time.time_ns() - int(1e9 * max(waited, default=0.0))


@dataclass(slots=True)
class RecoveredStalls:
    """Where the job has gone on by itself before, and how long that took at most."""

    _longest: dict[StallSite, float] = field(default_factory=dict)
    _said_at: float = -1.0

    def add(self, sites: Iterable[StallSite], seconds: float) -> None:
        """A stall at these places ended by itself after `seconds`."""
        for site in sites:
            self._longest[site] = max(seconds, self._longest.get(site, 0.0))

    def threshold(self, sites: Iterable[StallSite], usual_s: float) -> float:
        """For what is held up at these places."""
        return max((usual_s, *(TIMES_BEFORE * self._longest[site] for site in sites if site in self._longest)))

    @property
    def longest_s(self) -> float:
        """The slowest pause of the job so far."""
        return max(self._longest.values(), default=0.0)

    def line(self, sites: Iterable[StallSite], what: str, age_s: float, usual_s: float) -> str | None:
        """What to say of something past the usual threshold at a place that recovered before.

        Once a stall: what had begun when the last line was said belongs to the same one, on other ranks or in a wait.
        """
        known = [site for site in sites if site in self._longest]
        now = time.monotonic()
        if not known or now - age_s <= self._said_at:
            return None
        self._said_at = now
        return (
            f"{what} for {age_s:.1f} s; the job resumed by itself here before, after"
            f" {max(self._longest[site] for site in known):.1f} s, so evidence is saved in full only after"
            f" {self.threshold(known, usual_s):.1f} s"
        )


@dataclass(frozen=True, slots=True)
class Trace:
    """How far a rank was: by its counters, else by where its threads were."""

    progress: ProgressSample
    moves: int

    @classmethod
    def of(cls, rank: WatchedRank) -> Trace:
        return cls(rank.progress.sample(time.time_ns()), rank.position.moves)

    def left_by(self, rank: WatchedRank) -> bool:
        """Whether the rank has got anywhere since. What its threads do counts where it is in no operation."""
        if rank.progress.moved_since(self.progress):
            return True
        return rank.progress.oldest() is None and rank.position.moves != self.moves


class Recovery:
    """Whether the stall that was captured last has ended by itself."""

    def __init__(self, polling: Polling) -> None:
        self.stalled: dict[int, Trace] = {}
        """The ranks in the captured stall, and how far each was then."""
        self._polling = polling
        self._incident: Path | None = None
        self._stall = CapturedStall()
        self._waiting: set[int] = set()
        """Those of them that were inside an operation: what they wait for is what holds the job up."""
        self._left_after: float | None = None
        """How long the stall had lasted when the first of those was seen to get anywhere."""
        self._moving: tuple[float, float] | None = None
        """Since when (monotonic) every rank has been seen to move, and how long the stall had lasted then."""
        self._after: float | None = None

    def begin(self, incident: Path) -> None:
        """The hang of now is being captured: every rank that lives is in it."""
        self.stalled = {rank.number: Trace.of(rank) for rank in self._polling.living}
        self._polling.known_stalled = set(self.stalled)
        self._incident = incident
        self._stall = CapturedStall.of(self._polling)
        self._waiting = {rank.number for rank in self._polling.living if rank.progress.oldest() is not None}
        self._left_after = None
        self._moving = None
        self._after = None

    def forget(self) -> frozenset[StallSite]:
        """The captured stall is over, or its ranks were started anew. Returns where it was."""
        self.stalled = {}
        self._polling.known_stalled = set()
        self._incident = None
        self._moving = None
        self._after = None
        return self._stall.sites

    def update(self) -> float | None:
        """After how many seconds the captured stall ended by itself; None while it lasts, or where there is none."""
        if self.stalled and self._after is None:
            if self._left_after is None and any(map(self._has_moved, self._waiting)):
                self._left_after = self._stall.seconds()
            self._after = self._seconds_once_moving()
        return self._after

    def note_clean_end(self) -> None:
        """The job has ended. Where every rank of the captured stall ended well, that stall had ended by itself, too."""
        ranks = [self._polling.ranks.by_number.get(number) for number in self.stalled]
        ended_at = [rank.ended_at for rank in ranks if rank is not None and rank.exit_status == 0]
        first = min((at for at in ended_at if at is not None), default=None)
        if self._after is not None or first is None or len(ended_at) < len(self.stalled):
            return
        begun_ns = self._stall.since_ns
        to_first_end = self._stall.seconds() if begun_ns is None else max(0.0, first - begun_ns / 1e9)
        self._after = self._left_after if self._left_after is not None else to_first_end

    def after(self, incident: Path) -> float | None:
        """As `update` found last, where that stall is the one of `incident`."""
        return self._after if incident == self._incident else None

    def stalled_s(self) -> float:
        """For how long the captured stall has lasted; 0 where there is none."""
        return self._stall.seconds() if self.stalled else 0.0

    def is_stuck(self, rank: WatchedRank) -> bool:
        """Whether a rank has not got anywhere since its stall was captured."""
        before = self.stalled.get(rank.number)
        return before is not None and not before.left_by(rank)

    def _seconds_once_moving(self) -> float | None:
        if not self._all_moved():
            self._moving = None
            return None
        if self._moving is None:
            lasted = self._stall.seconds() if self._left_after is None else self._left_after
            self._moving = (time.monotonic(), lasted)
        since, seconds = self._moving
        return seconds if time.monotonic() - since >= MOVES_S else None

    def _has_moved(self, number: int) -> bool:
        """Whether a rank has got somewhere, or ended, since its stall was captured."""
        rank = self._polling.ranks.by_number.get(number)
        return rank is not None and (rank.ended or self.stalled[number].left_by(rank))

    def _all_moved(self) -> bool:
        """Whether every rank that was stalled has got somewhere since."""
        for number, before in self.stalled.items():
            rank = self._polling.ranks.by_number.get(number)
            if rank is None or rank.ended or not before.left_by(rank):
                return False
        return True
