"""A rank that does not end after the others did: a thread that nobody stopped, a handler at exit that waits.

Training is over, nobody waits in torch.distributed, and what it does may be an upload that nobody should end: so it is
said in a line, and nothing else is done about it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from hangscope.processes import linux_process
from hangscope.recorder.live.watched_rank import WatchedRank

TIMES = 4.0
"""So many times the threshold after the last of the others."""
IDLE = 0.01
"""Less of a core than this, all its threads and children together, is doing nothing."""


class LingeringRanks:
    def __init__(self) -> None:
        self._begun: dict[int, tuple[int, float]] = {}
        """Of each process that lives: how many others had ended when it was last looked at anew, and its CPU then."""
        self._said: set[int] = set()

    def line(self, ranks: Sequence[WatchedRank], threshold: float) -> str | None:
        """What there is to say now of a rank that stays behind; once of each."""
        ended = [rank for rank in ranks if rank.ended]
        living = [rank for rank in ranks if not rank.ended and rank.process.pid not in self._said]
        if not ended or not living or any(rank.exit_status != 0 for rank in ended):
            return None
        seconds = time.time() - max(rank.ended_at or 0.0 for rank in ended)
        for rank in living:
            if self._is_idle(rank.process.pid, len(ended), seconds) and seconds > TIMES * threshold:
                self._said.add(rank.process.pid)
                return _sentence(rank, ended, seconds)
        return None

    def _is_idle(self, pid: int, ended: int, seconds: float) -> bool:
        """Whether a process has used next to no CPU in the `seconds` since the last of `ended` ranks did."""
        used = _cpu_s(pid)
        ended_before, used_before = self._begun.get(pid, (0, 0.0))
        if ended_before != ended:
            self._begun[pid] = (ended, used)
            return False
        return used - used_before < IDLE * seconds


def _sentence(rank: WatchedRank, ended: Sequence[WatchedRank], seconds: float) -> str:
    at = rank.position.at
    where = f": it is in {at.name} ({at})" if at is not None else ""
    others = "the others" if len(ended) > 1 else f"rank {ended[0].number}"
    return (
        f"{rank.said} (pid {rank.process.pid}) still runs {seconds:.0f} s after {others} exited with status 0,"
        f" and is idle{where}"
    )


def _cpu_s(pid: int) -> float:
    below = [child for child, _ in linux_process.descendants(pid)]
    stats = [linux_process.stat(each) for each in (pid, *below)]
    return sum(stat.cpu_seconds for stat in stats if stat is not None)
