"""The barrier over the store that makes a group at the start: how many came, and who where every rank says so.

PyTorch 1.x logs each rank that adds itself; later versions only those that wait for long, or in vain. A note that a
rank still waits is no failure where the barrier is completed later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hangscope.model.numbers import integer
from hangscope.reader.logs.log_lines import Line

_KEY = r"(?:key:? ?)(?P<key>store_based_barrier_key:[\w./-]{1,80})"
_ADDED = re.compile(_KEY + r" to store for rank: (?P<rank>\d{1,6})")
_COMPLETED = re.compile(r"Completed store-based barrier for " + _KEY)
_WAITING = re.compile(
    r"(?P<how>Timed out|Waiting).{0,80}? store[ -]based barrier.{0,120}?\brank:? (?P<rank>\d{1,6}),.{0,20}?"
    + _KEY
    + r" \(world_size=(?P<size>\d{1,7}), (?:worker_count|num_workers_joined)=(?P<came>\d{1,7})"
)
PARTS = ("store_based_barrier", "store-based barrier", "store based barrier")
"""Every line about such a barrier holds one of these."""


@dataclass
class StoreBarrier:
    """One barrier. `line` is the last that says that somebody waits, or waited in vain."""

    added: set[int] = field(default_factory=set)
    line: Line | None = None
    waiter: int | None = None
    came: int = 0
    size: int = 0
    over: bool = False
    """Whether it was completed."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Who did not come: known where every rank that came said so, and their numbers fit the size.

        Where most did not come, whoever came is as likely the odd one.
        """
        if not self.added or len(self.added) != self.came or self.came * 2 < self.size or max(self.added) >= self.size:
            return ()
        return tuple(sorted(set(range(self.size)) - self.added))


class StoreBarriers:
    """The barriers of one file, by their keys."""

    MOST = 1000

    def __init__(self) -> None:
        self._by_key: dict[str, StoreBarrier] = {}

    def feed(self, line: Line) -> bool:
        """Take one line. True where it is about such a barrier."""
        text = line.text
        if match := _WAITING.search(text):
            self._waits(line, match)
        elif match := _ADDED.search(text):
            rank = integer(match["rank"])
            self._of(match["key"]).added.add(rank)
        elif match := _COMPLETED.search(text):
            self._of(match["key"]).over = True
        else:
            return False
        return True

    def _waits(self, line: Line, match: re.Match[str]) -> None:
        waiter, came, size = (integer(match[name]) for name in ("rank", "came", "size"))
        barrier = self._of(match["key"])
        barrier.line = line
        barrier.waiter = waiter
        barrier.came = came
        barrier.size = size

    def _of(self, key: str) -> StoreBarrier:
        if key not in self._by_key and len(self._by_key) >= self.MOST:
            return StoreBarrier()
        return self._by_key.setdefault(key, StoreBarrier())

    @property
    def not_completed(self) -> list[StoreBarrier]:
        """Those in which somebody waits to the end of the file."""
        return [barrier for barrier in self._by_key.values() if barrier.line is not None and not barrier.over]
