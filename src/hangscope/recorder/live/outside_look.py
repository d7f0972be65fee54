"""Ranks in which no companion answers, read from outside: counters once a turn, rings where there is a doubt, and now
and then the members of its groups.

Nothing is asked of such a rank and nothing runs in it for us: its flight recorder is read out of its memory. What that
needs is the right to read it. Where it cannot be read, that is kept with the reason, and it is tried again ever more
seldom: before torch is loaded there is nothing to read.
"""

from __future__ import annotations

import contextlib
import time
from itertools import islice
from typing import Any

from hangscope.processes import linux_process
from hangscope.recorder.live import find_ranks, ring_age
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.sources import stacks
from hangscope.sources.distributed_state import DistributedState
from hangscope.sources.flight_recorder.outside import CannotRead, dump_bytes, open_process

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0
TIMES_PAUSE = 1.05
"""So a pause is a twentieth of the wait so far. On a busy machine torch takes half a minute to load, and a job may hang
and be cancelled within seconds of its first operation: it is not to be seen only after that."""
GROUPS_S = 30.0
"""Groups seldom change; sooner where its recorder counts more of them than are known."""
INIT_S = 1.0
LONGEST_INIT_S = 3.0
TIMES_INIT = 1.3
MOST_BELOW = 256
DUTY = 0.01
"""The share of one core that reading the rings of one rank may take, where nothing is urgent."""


class OutsideLook:
    def __init__(self) -> None:
        self._next_try: dict[int, tuple[float, float]] = {}
        """By process, when (monotonic) its memory is opened next, and the pause after that."""
        self._next_ring: dict[tuple[int, str], float] = {}
        self._met: set[tuple[int, str]] = set()
        """The recorders of processes that have been read as a whole once: how long an operation is unfinished, and how
        long a rank has stood still, began before somebody looked."""
        self.spent_once = 0.0
        """CPU seconds for what is done once a process, since somebody took note of it: to open it, its first ring."""
        self._next_groups: dict[int, tuple[float, float]] = {}
        """By process, when (monotonic) its groups are read next, and the pause after that while it has none."""

    def read_counters(self, rank: WatchedRank, now: float) -> None:
        """How far a rank is, by the counters of its recorders."""
        known = bool(rank.last_status)
        begun = time.thread_time()
        self._read_counters(rank, now)
        if not known:
            self.spent_once += time.thread_time() - begun

    def _read_counters(self, rank: WatchedRank, now: float) -> None:
        if rank.outside is None and not self._open(rank, now):
            return
        assert rank.outside is not None
        self._read_distributed(rank, now)
        rank.finalizing = rank.distributed is not None and rank.distributed.finalizing
        try:
            if not rank.last_status and not self._has_recorder(rank, now):
                return
            counted = rank.outside.counters()
        except CannotRead as error:
            self._give_up(rank, error, now)
            return
        now_ns = time.time_ns()
        for recorder, groups in counted.items():
            status = {
                str(group): {
                    "last_enqueued_collective": enqueued,
                    "last_started_collective": started,
                    "last_completed_collective": completed,
                }
                for group, (enqueued, started, completed) in groups.items()
            }
            if status:
                rank.note_counters(recorder, status)
                rank.progress.take_counters(recorder, status, now, now_ns)
                self._meet(rank, recorder)
        rank.unread = None
        rank.last_poll_at = now_ns / 1e9

    def _meet(self, rank: WatchedRank, recorder: str) -> None:
        """At the first look at a recorder: since when it stands."""
        key = (rank.process.pid, recorder)
        if key in self._met:
            return
        self._met.add(key)
        dump = self._read_ring(rank, recorder)
        if dump is not None:
            rank.progress.take_ages(recorder, ring_age.newest_by_group(dump), time.monotonic(), time.time_ns())

    def _read_distributed(self, rank: WatchedRank, now: float) -> None:
        """The members of its groups, or where it looks for the others while it has none."""
        pid = rank.process.pid
        due, pause = self._next_groups.get(pid, (0.0, INIT_S))
        if now < due and _counted(rank) <= len(rank.groups):
            return
        if now < due - GROUPS_S + INIT_S:
            return  # groups that it made for others are counted and not listed
        try:
            rank.distributed = rank.distributed or DistributedState(pid)
            rank.take_groups({"groups": rank.distributed.groups()})
            arguments = None if rank.groups else rank.distributed.init_arguments()
        except CannotRead:
            arguments = None
        rank.note_init(now, inside=arguments is not None)
        rank.meets_at = _meets_at(pid, arguments) if arguments is not None else rank.meets_at
        longer = pause if rank.groups else min(LONGEST_INIT_S, TIMES_INIT * pause)
        self._next_groups[pid] = (now + (GROUPS_S if rank.groups else pause), longer)

    def read_doubtful_rings(self, rank: WatchedRank, now: float, threshold: float) -> None:
        """The rings that the counters leave in doubt."""
        urgent, some_time = rank.progress.doubtful(now, time.time_ns(), threshold)
        for recorder in urgent | some_time:
            key = (rank.process.pid, recorder)
            if recorder in urgent or now >= self._next_ring.get(key, 0.0):
                begun = time.thread_time()
                self._read_ring(rank, recorder)
                self._next_ring[key] = now + (time.thread_time() - begun) / DUTY

    def read_before_the_end(self, rank: WatchedRank) -> None:
        """Where a rank is and what it has recorded last: it may be killed in a moment."""
        with contextlib.suppress(CannotRead):
            rank.last_stack = stacks.python_stacks(rank.process.pid)
        for recorder in list(rank.last_status):
            dump = self._read_ring(rank, recorder)
            if dump is not None:
                rank.last_full[recorder] = dump
                if isinstance(dump.get("pg_status"), dict) and dump["pg_status"]:
                    rank.note_counters(recorder, dump["pg_status"])

    def dump_with_stacks(self, rank: WatchedRank, recorder: str) -> bytes:
        """As torch itself would write it; empty where it cannot be read now."""
        try:
            return dump_bytes(rank.outside.dump(recorder)) if rank.outside is not None else b""
        except CannotRead:
            return b""

    def _read_ring(self, rank: WatchedRank, recorder: str) -> dict[str, Any] | None:
        if rank.outside is None:
            return None
        try:
            dump = rank.outside.dump(recorder, stacks=False)
        except CannotRead:
            return None  # torn by a rank that moves, or not of a layout that is known: the counters tell all the same
        rank.take_full(recorder, dump)
        return dump

    def _has_recorder(self, rank: WatchedRank, now: float) -> bool:
        """Whether there is something to read: a recorder begins with the first operation."""
        assert rank.outside is not None
        due, pause = self._next_try.get(rank.process.pid, (0.0, FIRST_PAUSE_S))
        if now < due:
            return False
        if rank.outside.recorders():
            return True
        rank.unread = next(((why, "") for why in rank.outside.reasons.values()), None)
        self._next_try[rank.process.pid] = (now + pause, min(LONGEST_PAUSE_S, TIMES_PAUSE * pause))
        return False

    def _open(self, rank: WatchedRank, now: float) -> bool:
        pid = rank.process.pid
        due, pause = self._next_try.get(pid, (0.0, FIRST_PAUSE_S))
        if now < due:
            return False
        try:
            rank.outside = open_process(pid)
        except CannotRead as error:
            rank.unread = (error.reason, error.cure or "")
            self._next_try[pid] = (now + pause, min(LONGEST_PAUSE_S, TIMES_PAUSE * pause))
            return False
        rank.progress.counts_alone = True
        self._next_try.pop(pid, None)  # torch is there: its first operation may come at once
        return True

    def _give_up(self, rank: WatchedRank, error: CannotRead, now: float) -> None:
        """For now: the process may have ended, or replaced what it runs."""
        rank.close_outside()
        rank.unread = (error.reason, error.cure or "")
        self._next_try[rank.process.pid] = (now + FIRST_PAUSE_S, FIRST_PAUSE_S)


def who(pid: int) -> dict[str, Any]:
    """Which rank a process is and of how many, as its companion would answer; nothing where it is none so far."""
    try:
        with DistributedState(pid) as state:
            own = state.own_rank()
            if own is not None:
                return {"rank": own[0], "world_size": own[1]}
            arguments = state.init_arguments()
    except CannotRead:
        return {}
    if arguments is None:
        return {}
    environ = linux_process.environment(pid)
    given = {name: arguments[name] for name in ("rank", "world_size")}
    return {
        name: value if value is not None and value >= 0 else linux_process.whole_number(environ.get(name.upper(), ""))
        for name, value in given.items()
    }


def ranks_below(pid: int, beside: int | None = None) -> list[RankProcess]:
    """The ranks below a process, and itself, by their environment; where those are helpers of processes that say
    themselves that they are the ranks, by these: a script may set RANK in `os.environ`, and its children alone show
    that. `beside`: only those of the job that this rank is of."""
    found = find_ranks.ranks_below(pid, beside)
    parents = {stat.parent for each in found if (stat := linux_process.stat(each.pid)) is not None} - {pid}
    if any(who(parent).get("rank") is not None for parent in parents if find_ranks.is_python(parent)):
        return ranks_by_memory(pid)
    return found


def ranks_by_memory(pid: int) -> list[RankProcess]:
    """The ranks below a process, and itself, that their own torch.distributed alone tells: those of mp.spawn and its
    like, which have no RANK in their environment."""
    found: dict[int, RankProcess] = {}
    below = [pid, *(each for each, _ in islice(linux_process.descendants(pid), MOST_BELOW))]
    for each in below:
        answer = who(each) if find_ranks.is_python(each) else {}
        number = answer.get("rank")
        if number is not None and number not in found:
            found[number] = RankProcess(pid=each, rank=number, world_size=answer["world_size"])
    return [found[number] for number in sorted(found)]


def _counted(rank: WatchedRank) -> int:
    return max((len(groups) for groups in rank.last_status.values()), default=0)


def _meets_at(pid: int, arguments: dict[str, Any]) -> str:
    """Where init_process_group looks for the others: host and port, or a file."""
    method = arguments.get("init_method")
    if isinstance(method, str) and method.startswith(("tcp://", "file://")):
        return method.partition("?")[0].replace("tcp://", "")[:200]
    environ = linux_process.environment(pid)
    if method in (None, "env://") and "MASTER_ADDR" in environ:
        return f"{environ['MASTER_ADDR']}:{environ.get('MASTER_PORT', '')}"[:200]
    return ""
