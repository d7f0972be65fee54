"""What a process and all that it started use between two looks: CPU, reads and writes, TCP, page faults; and whether it
wakes up again and again without any of those, as a loop does that polls.

This is where it is decided what counts as work. Not seen: the GPU, and send() and recv() over unix sockets, which show
as a loop that polls.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from hangscope.processes import linux_process, socket_bytes, thread_activity

BUSY = 0.05
"""More than this share of one core is work: what asks a rank for its state costs it less."""
BYTES_PER_S = 64 << 10
"""More reads and writes than the companion's own, and than what a store or a watchdog says over its sockets."""
POLLS_PER_S = 0.8
"""Wakes of the main thread. PyTorch's data loader, which looks every 5 s whether its workers live, has fewer."""
SLEEPS = ("clock_nanosleep", "nanosleep")
PAGE = 4096


@dataclass(frozen=True, slots=True)
class ActivitySample:
    """What a process and all that it started had used at one moment: loaders' workers and compilers work for it."""

    at: float
    cpu_s: float
    bytes: int
    sockets: dict[int, int] = field(default_factory=dict)
    """TCP's bytes, by socket: those that come and go are not counted together."""
    switches: int | None = None
    """How often the main thread has gone to sleep."""
    sleeps: bool = False
    """It is in a sleep of a given length."""

    @classmethod
    def of(cls, pid: int, now: float, *, answering: bool = False) -> ActivitySample:
        """`answering`: it is at work on a question of ours, in a thread for that; so its main thread counts alone."""
        children = [child for child, _ in linux_process.descendants(pid)]
        places = [linux_process.PROC / str(each) for each in children]
        stats = [linux_process.stat(each) for each in children]
        cpu_s = sum(stat.cpu_seconds for stat in stats if stat is not None)
        main = thread_activity.sample(pid, None, now)
        process = linux_process.stat(pid)
        if answering and main is not None:
            cpu_s += main.cpu_s
        elif not answering and process is not None:
            cpu_s += process.cpu_seconds
        own = linux_process.PROC / str(pid)
        places.append(own / "task" / str(pid) if answering else own)
        faults = sum(stat.major_faults for stat in (*stats, process) if stat is not None)
        return cls(
            now,
            cpu_s,
            sum(map(_bytes, places)) + PAGE * faults,
            socket_bytes.by_socket((pid, *children)),
            main.switches if main is not None else None,
            linux_process.system_call(pid)[0] in SLEEPS,
        )

    def since(self, before: ActivitySample) -> Activity:
        seconds = max(self.at - before.at, 1e-3)
        tcp = sum(max(0, count - before.sockets.get(inode, 0)) for inode, count in self.sockets.items())
        wakes = 0
        if self.switches is not None and before.switches is not None:
            wakes = self.switches - before.switches
        return Activity(
            (self.cpu_s - before.cpu_s) / seconds,
            (self.bytes - before.bytes + tcp) / seconds,
            polls=wakes / seconds > POLLS_PER_S or (wakes > 0 and self.sleeps),
        )


@dataclass(frozen=True, slots=True)
class Activity:
    """What a rank used between two looks: its share of one core, and its reads and writes, TCP's among them.

    `polls`: its main thread woke up and went to sleep again. Whether that gets anywhere is not known.
    """

    cpu_share: float
    bytes_per_s: float
    polls: bool = False

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
