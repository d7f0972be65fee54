"""What a process and all that it started use between two looks: their share of a core, and their reads and writes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from hangscope.recorder.process import linux_process

BUSY = 0.05
"""More than this share of one core is work: what asks a rank for its state costs it less."""
BYTES_PER_S = 64 << 10
"""More reads and writes than the companion's own."""


@dataclass(frozen=True, slots=True)
class ActivitySample:
    """What a process and all that it started had used at one moment: loaders' workers and compilers work for it."""

    at: float
    cpu_s: float
    bytes: int

    @classmethod
    def of(cls, pid: int, now: float) -> ActivitySample:
        pids = [pid, *(child for child, _ in linux_process.descendants(pid))]
        stats = [linux_process.stat(each) for each in pids]
        return cls(now, sum(stat.cpu_seconds for stat in stats if stat is not None), sum(map(_bytes, pids)))

    def since(self, before: ActivitySample) -> Activity:
        seconds = max(self.at - before.at, 1e-3)
        return Activity((self.cpu_s - before.cpu_s) / seconds, (self.bytes - before.bytes) / seconds)


@dataclass(frozen=True, slots=True)
class Activity:
    """What a rank used between two looks: its share of one core, and its reads and writes."""

    cpu_share: float
    bytes_per_s: float

    @property
    def works(self) -> bool:
        return self.cpu_share > BUSY or self.bytes_per_s > BYTES_PER_S


def _bytes(pid: int) -> int:
    """What a process has read and written so far, to files or their cache; 0 where that cannot be seen."""
    total = 0
    with contextlib.suppress(OSError, ValueError):
        for row in (linux_process.PROC / str(pid) / "io").read_text().splitlines():
            name, _, count = row.partition(":")
            if name in ("rchar", "wchar", "read_bytes", "write_bytes"):
                total += int(count)
    return total
