"""`--on-hang kill`: this node's ranks are ended once the evidence is safe, if they are still stuck by our own eyes.

They get SIGTERM, and SIGKILL after a grace period. Only ranks are ended, never the launcher: it decides what comes
next, a restart or the end.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence

from hangscope.recorder.agent.captures import Captures
from hangscope.recorder.agent.conclusions import QUIET
from hangscope.recorder.agent.on_hang import OnHang
from hangscope.recorder.agent.recovery import Recovery
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.process import linux_process

AFTER_KILL_S = 5.0
_MOST_NAMED = 16


class RankEnder:
    def __init__(self, on_hang: OnHang, polling: Polling, recovery: Recovery, say: Callable[[str], None]) -> None:
        self.pids: set[int] = set()
        """Processes that we ended, or are about to: their end is no news."""
        self._on_hang = on_hang
        self._polling = polling
        self._recovery = recovery
        self._say = say

    def turn(self, captures: Captures) -> None:
        """End the ranks, if it is time for that. Nobody else's word is needed for it, and nobody else's word is enough:
        a directory may be shared with others."""
        hang = captures.hang
        if not self._on_hang.kill or self.pids or not captures.is_safe(hang):
            return
        if captures.outcome(hang) in QUIET or not self.still_stuck():
            return
        ranks = self._polling.living
        self.pids = {rank.process.pid for rank in ranks}
        threading.Thread(target=self.end, args=(ranks,), name="end", daemon=True).start()

    def end(self, ranks: Sequence[WatchedRank]) -> None:
        """End these ranks, unless the job has begun to move again: the last look decides."""
        named = ", ".join(str(rank.number) for rank in ranks[:_MOST_NAMED]) + (" …" if len(ranks) > _MOST_NAMED else "")
        grace = self._on_hang.grace_s
        self._say(f"--on-hang kill: ranks {named} get SIGTERM, and SIGKILL after {grace:g} s")
        if not self.still_stuck():
            return
        left = end_ranks(ranks, grace)
        if left:
            self._say(f"warning: ranks {', '.join(map(str, left))} live on after SIGKILL: uninterruptible, or not ours")

    def still_stuck(self) -> bool:
        """Whether ranks of this node are stuck now: as they were when it was captured, or in something too old."""
        now_ns = time.time_ns()
        threshold = self._polling.threshold()
        for rank in self._polling.living:
            oldest = rank.progress.oldest()
            if oldest is not None and oldest.age_s(now_ns) > threshold:
                return True
            if self._recovery.is_stuck(rank):
                return True
        return False


def end_ranks(ranks: Sequence[WatchedRank], grace_s: float) -> list[int]:
    """SIGTERM to these ranks, SIGKILL to those left after `grace_s`. Returns the ranks that live on all the same."""
    for rank in ranks:
        _send(rank, signal.SIGTERM)
    _await_ends(ranks, grace_s)
    for rank in ranks:
        _send(rank, signal.SIGKILL)
    _await_ends(ranks, AFTER_KILL_S)
    return [rank.number for rank in ranks if not rank.handle.ended()]


def _await_ends(ranks: Sequence[WatchedRank], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not all(rank.handle.ended() for rank in ranks):
        time.sleep(0.05)


def _send(rank: WatchedRank, number: signal.Signals) -> None:
    """To that process and no other: its number may have been given to a new one."""
    handle = rank.handle
    try:
        if handle.ended():
            return
        if handle.fd is not None:
            signal.pidfd_send_signal(handle.fd, number)
            return
        stat = linux_process.stat(handle.pid)
        if stat is not None and stat.started_ticks == handle.started_ticks:
            os.kill(handle.pid, number)
    except OSError:
        pass  # it has just ended, or is somebody else's: `end_ranks` says who lives on
