"""`--on-hang kill`: this node's ranks are ended once the evidence is safe, if they are still stuck by our own eyes.

That a job stands still does not say that it hangs: a rank may save, evaluate or compile. So it is ended only after a
time of its own (`--kill-after`), later than its slowest pause so far, twice as late where the verdict is not sure, and
not while the rank that the others wait for is seen to work, or to wake up again and again (`--kill-idle-only`, the
default). When that will be is said before.

Before that their GPUs are asked what they run, where they can be: it takes their CUDA contexts. Then ranks get SIGTERM,
and SIGKILL after a grace period. Only ranks are ended, never the launcher: it decides what comes next, a restart or the
end.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hangscope.processes import linux_process
from hangscope.recorder.agent.captures import Captures
from hangscope.recorder.agent.on_hang import OnHang
from hangscope.recorder.agent.recovery import RecoveredStalls, Recovery
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.live.rank_activity import REMEMBERED_S, RankActivity
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.text import duration, rank_list
from hangscope.verdict_words import still_runs

AFTER_KILL_S = 5.0
TIMES_UNSURE = 2.0
"""So many times later a job is ended whose verdict is not sure."""
_MOST_NAMED = 16
_MAY_WORK = ("absent", "frozen", "slow", "unknown")
_IDLE_S = 6.0
"""A rank that was seen idle for less may be between two pieces of its work."""


class RankEnder:
    """`works_elsewhere` says which ranks of other nodes are seen to work there. `ask_gpus` takes cores of the GPUs,
    which ends what runs there: there is no way back."""

    def __init__(
        self,
        on_hang: OnHang,
        polling: Polling,
        recovery: Recovery,
        recovered: RecoveredStalls,
        activity: RankActivity,
        say: Callable[[str], None],
        works_elsewhere: Callable[[], Collection[int]] = frozenset,
        ask_gpus: Callable[[], None] = lambda: None,
    ) -> None:
        self.pids: set[int] = set()
        """Processes that we ended, or are about to: their end is no news."""
        self._on_hang = on_hang
        self._polling = polling
        self._recovery = recovery
        self._recovered = recovered
        self._activity = activity
        self._say = say
        self._works_elsewhere = works_elsewhere
        self._ask_gpus = ask_gpus
        self._announced: tuple[Path, str] | None = None
        """The incident, and what was said last about when it will be ended."""

    def turn(self, captures: Captures) -> None:
        """End the ranks, if it is time for that. Nobody else's word is needed for it, and nobody else's word is enough:
        a directory may be shared with others."""
        hang = captures.hang
        if not self._on_hang.kill or self.pids or not captures.is_safe(hang):
            return
        verdict = captures.verdict(hang)
        if still_runs(verdict.get("outcome")) or not self.still_stuck():
            return
        left_s = self._after_s(verdict) - self._recovery.stalled_s()
        working = self._working(verdict)
        if working:
            works = f"{rank_list(working, _MOST_NAMED)} {'is' if len(working) == 1 else 'are'} still working"
            self._announce(hang, "works", f"{works}: the job will not be ended in the meantime")
            return
        if left_s > 0:
            self._announce(hang, "later", f"will end the job in {duration(left_s)} unless it resumes")
            return
        if not self._seen_idle(hang, verdict):
            return
        ranks = self._polling.living
        self.pids = {rank.process.pid for rank in ranks}
        threading.Thread(target=self.end, args=(ranks,), name="end", daemon=True).start()

    def _after_s(self, verdict: Mapping[str, Any]) -> float:
        """How long a job must have stood still before it is ended. A rank that has ended does not come back."""
        if verdict.get("kind") == "dead" and verdict.get("confidence") != "low":
            return 0.0
        times = 1.0 if verdict.get("confidence") in ("high", "medium") else TIMES_UNSURE
        if self._on_hang.kill_after_s == 0:
            return 0.0  # who asks for no wait at all has no pauses to spare
        return max(times * self._on_hang.kill_after_s, self._recovered.longest_s)

    def _working(self, verdict: Mapping[str, Any]) -> list[int]:
        """The ranks that the others wait for, of those that are seen to work. Of a stuck GPU or link, or calls that do
        not fit, work is no sign of life."""
        if self._on_hang.kill_working or verdict.get("kind") not in _MAY_WORK:
            return []
        return self._seen_working(verdict)

    def _seen_idle(self, hang: Path, verdict: Mapping[str, Any]) -> bool:
        """Whether those that the others wait for were looked at for long enough to say that they do not work. On a busy
        machine the agent may have had no time for that."""
        if self._on_hang.kill_working or self._on_hang.kill_after_s == 0 or verdict.get("kind") not in _MAY_WORK:
            return True
        living = self._polling.living
        accused = _accused(verdict)
        awaited = [rank for rank in living if rank.number in accused]
        if not accused:
            awaited = [rank for rank in living if rank.progress.oldest() is None]
        polling = [rank.number for rank in awaited if self._activity.polls(rank)]
        if polling and verdict.get("kind") != "frozen":  # what wakes a frozen rank is our signal for its stack
            may = f"{rank_list(polling, _MOST_NAMED)} may be polling for something, or trying it again"
            self._announce(hang, "polls", f"{may}: the job will not be ended (--kill-working ends it)")
            return False
        return all(self._activity.idle_s(rank) >= _IDLE_S for rank in awaited)

    def stopped_working(self, captures: Captures) -> bool:
        """Whether the rank that the others waited for while it worked works no longer, and the job does not go on."""
        hang = captures.hang
        verdict = captures.verdict(hang) if captures.is_safe(hang) else {}
        waited_long = captures.done_for_s(hang) > REMEMBERED_S
        return (
            verdict.get("outcome") == "wait" and waited_long and self.still_stuck() and not self._seen_working(verdict)
        )

    def _seen_working(self, verdict: Mapping[str, Any]) -> list[int]:
        now = time.monotonic()
        living = self._polling.living
        working = {rank.number for rank in living if self._activity.works(rank, now)}
        accused = _accused(verdict)
        if not accused:
            return sorted(working - {rank.number for rank in living if rank.progress.oldest() is not None})
        if accused - {rank.number for rank in living}:
            working |= set(self._works_elsewhere())
        return sorted(working & accused)

    def _announce(self, hang: Path, what: str, text: str) -> None:
        """Once, until something else is to be said."""
        if self._announced != (hang, what):
            self._announced = (hang, what)
            self._say(f"--on-hang kill: {text}")

    def end(self, ranks: Sequence[WatchedRank]) -> None:
        """End these ranks, unless the job has begun to move again: the last look decides."""
        grace = self._on_hang.grace_s
        named = rank_list([rank.number for rank in ranks], _MOST_NAMED)
        get = "gets" if len(ranks) == 1 else "get"
        self._say(f"--on-hang kill: {named} {get} SIGTERM, and SIGKILL after {grace:g} s")
        if not self.still_stuck():
            return
        try:
            self._ask_gpus()
        except Exception as error:
            self._say(f"the GPU cores are left out: {type(error).__name__}: {error}")
        left = end_ranks(ranks, grace)
        if left:
            left_ranks = rank_list(left, _MOST_NAMED)
            self._say(f"warning: {left_ranks} still alive after SIGKILL: uninterruptible, or not ours")

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


def _accused(verdict: Mapping[str, Any]) -> set[Any]:
    return {culprit.get("rank") for culprit in verdict.get("culprits") or () if isinstance(culprit, dict)}
