"""What is wrong with the job now: a rank that ended badly, a stall, a watchdog that gives up, a dump that it wrote."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection
from typing import NamedTuple

from hangscope.recorder.agent.dump_watch import DumpWatch
from hangscope.recorder.agent.job_events import JobEvents
from hangscope.recorder.agent.stall_watch import StallWatch
from hangscope.recorder.live.job_pace import JobPace
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.rundir.reasons import Reason

_INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)
_ALL_HAVE_IT_S = 10.0
"""Ranks that have not ended so long after one that Ctrl-C ended did not get it."""


class Trouble(NamedTuple):
    """`reason` is a `Reason`, or what another node's mark says; `detail` says what was seen."""

    reason: str
    detail: str


class Watcher:
    def __init__(
        self, polling: Polling, events: JobEvents, stalls: StallWatch, dumps: DumpWatch, pace: JobPace
    ) -> None:
        self._polling = polling
        self._events = events
        self._stalls = stalls
        self._dumps = dumps
        self._pace = pace

    def trouble(
        self, *, captured: bool, known_stalled: Collection[int], ended_by_us: Collection[int]
    ) -> Trouble | None:
        """What is wrong now, the most certain first.

        `captured`: the hang of now was captured already; ranks in `known_stalled` are in it. Processes in `ended_by_us`
        end because we ended them.
        """
        excused = captured or self._events.asked_to_end or self.interrupted()
        bad_end = None if excused else self.bad_end(ended_by_us)
        if bad_end is not None:
            return Trouble(Reason.RANK_EXIT, bad_end)
        now = time.monotonic()
        stall = self._stalls.stall(known_stalled)
        if stall is not None and not any(rank.is_ending(now) for rank in self._polling):
            return Trouble(Reason.STALL, stall)
        alarm = self._events.take_alarm()
        if alarm is not None:
            return Trouble(Reason.WATCHDOG, alarm)
        dumps = self._dumps.fresh(self._polling)
        if dumps:
            return Trouble(Reason.DUMP_FILE, f"PyTorch wrote {dumps[0].name}")
        return None

    def forget_attempt(self) -> None:
        """The ranks were started anew: what those before left is no trouble of theirs."""
        self._events.take_alarm()
        self._dumps.fresh(self._polling)

    def interrupted(self) -> bool:
        """Whether Ctrl-C ended a job that moved until then: nothing hangs, and whoever pressed it knows why.

        Ctrl-C reaches all ranks, or the command; what one of several ranks alone got is how
        that one failed.
        """
        ranks = list(self._polling)
        by_hand = [rank for rank in ranks if rank.ended and rank.exit_status in _INTERRUPTED]
        alone = len(by_hand) == 1 < len(ranks) and not self._events.asked_to_end
        if alone and all(rank.ended or time.time() - (by_hand[0].ended_at or 0.0) > _ALL_HAVE_IT_S for rank in ranks):
            return False
        return bool(by_hand) and self._pace.stood_still is False

    def bad_end(self, ended_by_us: Collection[int]) -> str | None:
        """The rank that ended badly first, in words."""
        ended = [rank for rank in self._polling if self._ended_badly(rank, ended_by_us)]
        first = min(ended, key=lambda rank: rank.ended_at or 0.0, default=None)
        if first is None:
            return None
        return f"{first.said} (pid {first.process.pid}) {how_ended(first.exit_status)}"

    def _ended_badly(self, rank: WatchedRank, ended_by_us: Collection[int]) -> bool:
        if not rank.ended or rank.exit_status in (0, None) or rank.process.pid in ended_by_us:
            return False
        # Ray ends an actor with 1, also after training: that is a failure where it cut something short.
        return not rank.ended_by_ray or any(each.progress.oldest() for each in self._polling)


def how_ended(code: int | None) -> str:
    """In words: "was killed by SIGKILL", "ended with status 1"."""
    if code is None:
        return "ended"
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
