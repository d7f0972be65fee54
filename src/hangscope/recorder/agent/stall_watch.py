"""Whether a rank waits for too long: in an unfinished operation, in init_process_group, in a wait nobody records."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from hangscope.recorder.agent import announced_pauses
from hangscope.recorder.agent.announced_pauses import Pause
from hangscope.recorder.agent.recovery import RecoveredStalls, StallSite, sites_of
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.live.unfinished_ops import BOX
from hangscope.recorder.live.unrecorded_waits import TIMES_FIRST
from hangscope.recorder.rundir import run_directory
from hangscope.recorder.rundir.run_directory import RunFolders

STATUS_AGE_S = 3.0
"""So old another node's status may be."""
FIRST_OPERATIONS = 10
"""These of a group wait for ranks that still compile, load or import: as long as a start may take, while one is seen at
work that is in no operation."""
COMING_S = 3.0
"""Processes that are known by their black boxes alone come one by one, and are numbered anew with each: while they do,
an old operation of one is no stall yet."""
TIMES_PREPARING = 10.0
"""A rank that compiles or imports keeps the others waiting for as long as that takes, and not at a start alone."""


@dataclass(frozen=True, slots=True)
class LateWait:
    """A wait past the usual threshold, in words, and the places that it is known by."""

    what: str
    seconds: float
    sites: frozenset[StallSite]


class StallWatch:
    def __init__(
        self, polling: Polling, folders: RunFolders, recovered: RecoveredStalls, say: Callable[[str], None]
    ) -> None:
        self._polling = polling
        self._folders = folders
        self._recovered = recovered
        self._say = say
        self._seen: frozenset[int] = frozenset()
        self._came_at = 0.0

    def stall(self, known: Collection[int]) -> str | None:
        """What stalls now, in words. Ranks in `known` are in a stall that was captured already."""
        return self._late_operation(known) or self._late_init(known) or self._late_unrecorded_wait(known)

    def standstill(self) -> str | None:
        """What stands still now, in words, though not for long enough to be a stall: the job is about to be ended.

        Also where only other nodes have launched anything, and by ranks that were ended a moment ago. Not in a pause
        that was announced.
        """
        pause = self._newest_pause()
        if pause is not None and pause.ago_s == 0:
            return None
        least_s = self._polling.standstill_threshold()
        now = time.monotonic()
        found = [
            (now - counter.since, rank.number, number, counter.enqueued)
            for rank in self._polling
            for (_, number), counter in rank.progress.counters.items()
            if counter.enqueued > counter.completed
        ]
        seconds, rank, _, seq = max(found, default=(0.0, 0, "", 0))
        if seconds >= least_s:
            return f"rank {rank}: operation #{seq} unfinished for {seconds:.1f} s"
        stuck = self._polling.unrecorded_waits.stuck(self._polling, (), least_s, now)
        if stuck:
            return f"{stuck[0]} for {stuck[0].seconds:.1f} s"
        return self._standstill_elsewhere(least_s)

    def _standstill_elsewhere(self, least_s: float) -> str | None:
        for folder, status in run_directory.statuses(self._folders.root, self._folders.own):
            if folder == self._folders.own or status.ended:
                continue
            for row in status.live:
                still = [group for group in row.groups if group.enqueued > group.completed]
                seconds = max((group.still_s for group in still), default=0.0)
                if seconds + STATUS_AGE_S >= least_s:
                    return f"rank {row.rank} on {status.node}: an operation unfinished for {seconds:.1f} s"
        return None

    def _late_operation(self, known: Collection[int]) -> str | None:
        """The oldest unfinished operation of all ranks, if it is older than the threshold."""
        usual = self._polling.threshold()
        now_ns = time.time_ns()
        late = []
        somebody_works = self._somebody_works()
        still_come = self._still_come(time.monotonic())
        for rank in self._polling.living:
            oldest = rank.progress.oldest()
            if oldest is None or rank.number in known or (still_come and oldest.source == BOX):
                continue
            starts = somebody_works and oldest.seq <= FIRST_OPERATIONS
            if oldest.age_s(now_ns) > (TIMES_FIRST * usual if starts else usual):
                late.append((oldest.age_s(now_ns), rank.number, rank.said, oldest))
        late.sort(key=lambda found: found[:2], reverse=True)
        waits = [
            LateWait(f"{said}: {oldest.label} unfinished", age, frozenset([(oldest.group, oldest.name)]))
            for age, _, said, oldest in late
        ]
        pause = self._newest_pause() if late else None
        found = self._first_too_late(waits, pause, usual)
        if found is None:
            return None
        overdue = f"; the pause for {pause.reason} is over its bound" if pause is not None and pause.overdue else ""
        return f"{found.what} for {found.seconds:.1f} s{overdue}"

    def _still_come(self, now: float) -> bool:
        """Whether a process was seen for the first time a moment ago."""
        pids = frozenset(rank.process.pid for rank in self._polling)
        if pids - self._seen:
            self._came_at = now
        self._seen = pids
        return now - self._came_at < COMING_S

    def _somebody_works(self) -> bool:
        """Whether a rank is at work that is in no operation: the others may wait for it, and it may come."""
        return any(rank.position.works and rank.progress.oldest() is None for rank in self._polling.living)

    def _late_init(self, known: Collection[int]) -> str | None:
        """A rank that never gets out of init_process_group."""
        now = time.monotonic()
        for rank in self._polling.living:
            since = rank.init_since
            if since is None or rank.number in known:
                continue
            if now - since > self._polling.init_threshold():
                return f"{rank.said}: init_process_group unfinished for {now - since:.1f} s"
        return None

    def _late_unrecorded_wait(self, known: Collection[int]) -> str | None:
        """A rank that does not move in a wait which no recorder counts."""
        usual = self._polling.threshold()
        stuck = self._polling.unrecorded_waits.stuck(self._polling, known, usual, time.monotonic())
        waits = [LateWait(str(each), each.seconds, sites_of(each.rank)) for each in stuck]
        found = self._first_too_late(waits, self._newest_pause() if waits else None, usual)
        return f"{found.what} for {found.seconds:.1f} s, and nothing of it moves" if found is not None else None

    def _first_too_late(self, waits: Iterable[LateWait], pause: Pause | None, usual: float) -> LateWait | None:
        """The first that is too late for its place as well. None during a pause that was announced, and shortly after.

        A wait at a place where the job went on by itself before, and that may do so again, costs a line.
        """
        if pause is not None and pause.ago_s <= usual:
            return None
        waits = list(waits)
        if waits and self._somebody_prepares():
            waits = [wait for wait in waits if wait.seconds > TIMES_PREPARING * usual]
        for wait in waits:
            if wait.seconds > self._recovered.threshold(wait.sites, usual):
                return wait
            line = self._recovered.line(wait.sites, wait.what, wait.seconds, usual)
            if line is not None:
                self._say(line)
        return None

    def _somebody_prepares(self) -> bool:
        """Whether a rank compiles or imports, of this node, or by its status of another."""
        if any(rank.position.prepares for rank in self._polling.living):
            return True
        statuses = run_directory.statuses(self._folders.root, self._folders.own)
        others = [status for folder, status in statuses if folder != self._folders.own and not status.ended]
        return any(row.prepares for status in others for row in status.live)

    def _newest_pause(self) -> Pause | None:
        """A pause that training code announced on any node: the one that holds or ended last."""
        return announced_pauses.of_all_nodes(self._polling, self._folders)
