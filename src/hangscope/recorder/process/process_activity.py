"""What a process and all that it started use between two looks: their share of a core, and their reads and writes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from hangscope.recorder.process import linux_process, thread_activity

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
    def of(cls, pid: int, now: float, *, answering: bool = False) -> ActivitySample:
        """`answering`: it is at work on a question of ours, in a thread for that; so its main thread counts alone."""
        children = [child for child, _ in linux_process.descendants(pid)]
        places = [linux_process.PROC / str(each) for each in children]
        stats = [linux_process.stat(each) for each in children]
        cpu_s = sum(stat.cpu_seconds for stat in stats if stat is not None)
        main = thread_activity.sample(pid, None, now) if answering else linux_process.stat(pid)
        if isinstance(main, thread_activity.Sample):
            cpu_s += main.cpu_s
        elif main is not None:
            cpu_s += main.cpu_seconds
        own = linux_process.PROC / str(pid)
        places.append(own / "task" / str(pid) if answering else own)
        return cls(now, cpu_s, sum(map(_bytes, places)))

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


def _bytes(place: Path) -> int:
    """What a process or thread has read and written so far, to files or their cache; 0 where that cannot be seen."""
    total = 0
    with contextlib.suppress(OSError, ValueError):
        for row in (place / "io").read_text().splitlines():
            name, _, count = row.partition(":")
            if name in ("rchar", "wchar", "read_bytes", "write_bytes"):
                total += int(count)
    return total
