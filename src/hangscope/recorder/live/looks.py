"""When a node's ranks are asked for their rings with stacks, all of them at once, and what they answered.

The rings show from where each rank calls what, for a later hang, and whether all ranks still call the same at the same
number. To be compared they have to be of one moment: so all ranks of a node are asked in one turn, and all nodes at the
same times by the clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

FIRST_S = 10.0
NEXT_S = 120.0
LONGEST_S = 900.0
"""A ring with stacks costs a rank some 10 ms: the first look comes after the start, the later ones ever more seldom."""
ANSWERS_S = 8.0
"""For the answers of one look; who has not answered then is not in it."""
RECENTLY_S = 10.0
"""A rank that has not moved for longer may hang, and is not asked: its answer needs the GIL."""


@dataclass(frozen=True, slots=True)
class Look:
    """`at` by the clock; `launched`: how many operations the rank that is furthest behind had launched in all.
    `rings`: by rank and recorder the pickled dump."""

    at: float
    launched: int
    rings: Mapping[int, Mapping[str, bytes]]


@dataclass(slots=True)
class _Open:
    """A look that is under way, from `begun` (monotonic) on."""

    begun: float
    at: float
    launched: int
    unanswered: set[tuple[int, str]]
    rings: dict[int, dict[str, bytes]] = field(default_factory=dict)


class Looks:
    """`every`: the user's own pause between two looks; None means ever longer ones."""

    def __init__(self, every: float | None = None) -> None:
        self.every = every
        self._pause = NEXT_S if every is None else every
        self._due: float | None = None
        self._open: _Open | None = None
        self.last: Look | None = None

    def is_due(self, now: float, moving: bool) -> bool:
        """Whether to look now (monotonic). The first look comes some time after the first rank was seen to move."""
        if not moving:
            return False
        if self._due is None:
            self._due = now + min(FIRST_S, self._pause)
        return now >= self._due and self._open is None

    def begin(self, now: float, launched: int, asked: Iterable[tuple[int, str]]) -> None:
        """These recorders of these ranks are asked now."""
        self._open = _Open(now, time.time(), launched, set(asked))
        self._due = now + until_next(time.time(), self._pause)
        if self.every is None:
            self._pause = min(LONGEST_S, 2 * self._pause)

    def bring_forward(self, after_s: float) -> None:
        """The next look comes so soon, unless it does anyway."""
        at = time.monotonic() + after_s
        self._due = at if self._due is None else min(self._due, at)

    def take(self, rank: int, recorder: str, body: bytes) -> None:
        """An answer; empty where the rank could not give one."""
        if self._open is None or (rank, recorder) not in self._open.unanswered:
            return
        self._open.unanswered.discard((rank, recorder))
        if body:
            self._open.rings.setdefault(rank, {})[recorder] = body

    def finished(self, now: float) -> Look | None:
        """The look whose answers are all there, or have had their time; once."""
        done = self._open
        if done is None or (done.unanswered and now < done.begun + ANSWERS_S):
            return None
        self._open = None
        self.last = Look(done.at, done.launched, done.rings)
        return self.last


def until_next(clock: float, pause: float) -> float:
    """Seconds to the next time by the clock that all nodes look at, at least half a pause from now."""
    return math.ceil((clock + pause / 2) / pause) * pause - clock
