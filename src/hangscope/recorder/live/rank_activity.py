"""Whether a rank works: its processes use the CPU, or its reads and writes go on, between two looks.

A rank that saves, evaluates, compiles or reads keeps the others waiting just as one that hangs does. What it costs the
machine tells them apart: a rank that waits, sleeps or is stopped costs nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.process import linux_process

BUSY = 0.05
"""More than this share of one core is work: what asks a rank for its state costs it less."""
BYTES_PER_S = 64 << 10
"""More reads and writes than the companion's own."""
LOOK_S = 2.0
REMEMBERED_S = 15.0
"""So long a rank that was seen to work counts as working."""


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    cpu_s: float
    bytes: int


class RankActivity:
    """What the ranks of a node were seen doing."""

    def __init__(self) -> None:
        self._before: dict[int, _Sample] = {}
        self._worked_at: dict[int, float] = {}

    def look(self, ranks: Iterable[WatchedRank], now: float) -> None:
        """Compare each rank with the last look, where that is long enough ago."""
        for rank in ranks:
            pid = rank.process.pid
            before = self._before.get(pid)
            if before is not None and now - before.at < LOOK_S:
                continue
            sample = _sample(pid, now)
            self._before[pid] = sample
            if before is not None and _is_work(before, sample):
                self._worked_at[pid] = now

    def works(self, rank: WatchedRank, now: float) -> bool:
        """Whether it was seen to work lately."""
        worked_at = self._worked_at.get(rank.process.pid)
        return worked_at is not None and now - worked_at < REMEMBERED_S


def _is_work(before: _Sample, after: _Sample) -> bool:
    seconds = after.at - before.at
    busy = (after.cpu_s - before.cpu_s) / seconds > BUSY
    return busy or (after.bytes - before.bytes) / seconds > BYTES_PER_S


def _sample(pid: int, now: float) -> _Sample:
    """Of a process with all that it started: loaders' workers and compilers work for it."""
    pids = [pid, *(child for child, _ in linux_process.descendants(pid))]
    stats = [linux_process.stat(each) for each in pids]
    return _Sample(now, sum(stat.cpu_seconds for stat in stats if stat is not None), sum(map(_bytes, pids)))


def _bytes(pid: int) -> int:
    """What a process has read and written so far, to files or their cache; 0 where that cannot be seen."""
    total = 0
    with contextlib.suppress(OSError, ValueError):
        for row in (linux_process.PROC / str(pid) / "io").read_text().splitlines():
            name, _, count = row.partition(":")
            if name in ("rchar", "wchar", "read_bytes", "write_bytes"):
                total += int(count)
    return total
