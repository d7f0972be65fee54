"""Which ranks run on this node: those that registered, those that only /proc shows, and those of the next attempt."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hangscope.processes import linux_process, process_roles
from hangscope.recorder.live import companion_hook, find_ranks, outside_look
from hangscope.recorder.live.boxes import box_identity
from hangscope.recorder.live.boxes.box_watch import BoxWatch
from hangscope.recorder.live.find_ranks import RankProcess, Registry
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.live.worker_server import Asker, Question, Topic

LOOK_S = 5.0
"""Between two looks, once all that were announced are there."""
SCAN_S = 10.0
"""Between two looks through the processes below the command; a fifth of it while some are missing."""
COMPANION_S = 20.0
"""A process with RANK in its environment that has not registered after this long has no companion."""
BOX_S = 5.0
"""So long a process with a black box may take to say itself which rank it is, and to make its largest communicator."""
STRANGER_S = 20.0
"""So long a number may be another's before it is said that a process is not watched."""
STARTED_S = 30.0
"""Processes that share no communicator for so long are programs of their own."""
COMES_TOGETHER_S = 60.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


class NodeRanks:
    """The ranks by their number. `sockets` is where their companions register. `tasks_are_ranks`: a task of Slurm is a
    rank where nothing in its environment says so, and no companion will."""

    def __init__(self, sockets: Path, *, tasks_are_ranks: bool = False) -> None:
        self._tasks_are_ranks = tasks_are_ranks
        self.by_number: dict[int, WatchedRank] = {}
        self.earlier: set[int] = set()
        """The processes of attempts before this one."""
        self.restarted = False
        """Whether the launcher has started ranks anew; `take_restart` clears it."""
        self._strangers: dict[int, tuple[RankProcess, float]] = {}
        """Processes whose numbers other ranks have, and since when (monotonic)."""
        self._registry = Registry(sockets)
        self._foreign: set[int] = set()
        """Processes that are no rank, or one of an earlier attempt."""
        self._ask_again: dict[int, tuple[float, float]] = {}
        """Of processes that have not said which rank they are: when to ask next, and the pause after that."""
        self._next_look = 0.0
        self._next_scan = 0.0
        self._first_at = 0.0

    def __iter__(self) -> Iterator[WatchedRank]:
        """In the order of their numbers."""
        return iter([self.by_number[number] for number in sorted(self.by_number)])

    def __len__(self) -> int:
        return len(self.by_number)

    def take_restart(self) -> bool:
        """Whether the launcher has started ranks anew since this was last asked."""
        restarted = self.restarted
        self.restarted = False
        return restarted

    def look(self, now: float, command: int | None, asker: Asker) -> None:
        """Look who is there. The answers of who was asked come to `identify`."""
        if now < self._next_look:
            return
        for process in self._registry.processes():
            if not self._is_known(process):
                self._take_registered(process, now, asker)
        if command is not None and now >= self._next_scan:
            self._next_scan = now + (SCAN_S if self._all_there() else SCAN_S / 5)
            for process in self._below(command):
                self._take_unregistered(process)
            self._look_at_titles()
        self._next_look = now + (LOOK_S if self._all_there() else 0.0)

    def _look_at_titles(self) -> None:
        living = {rank.process.pid: rank for rank in self.by_number.values() if not rank.ended}
        for pid, role in process_roles.roles_of(living).items():
            living[pid].role = role

    def _below(self, command: int) -> list[RankProcess]:
        found = outside_look.ranks_below(command) or self._unnamed(command)
        if not found and self._tasks_are_ranks:
            return find_ranks.tasks_below(command)
        return found

    def _unnamed(self, command: int) -> list[RankProcess]:
        """Ranks without RANK in which no companion runs: workers of an engine by their titles, others by memory."""
        registered = {process.pid for process in self._registry.processes()}
        found = find_ranks.ranks_by_title(command)
        if not found and not registered:
            found = outside_look.ranks_by_memory(command)
        return found if registered.isdisjoint(process.pid for process in found) else []

    def _is_known(self, process: RankProcess) -> bool:
        """On a slow file system the import of torch takes longer than anybody waits: the companion may come later."""
        if process.pid in self._foreign:
            return True
        ranks = (rank.process for rank in self.by_number.values())
        return any(known.pid == process.pid and known.registered for known in ranks)

    def _take_registered(self, process: RankProcess, now: float, asker: Asker) -> None:
        if process.rank is not None:
            self.add(process)
        elif process.socket is None or process.asks_python:
            self._ask_who(process, now, asker)

    def _ask_who(self, process: RankProcess, now: float, asker: Asker) -> None:
        """Which rank a process of mp.spawn is, only it knows; many processes are none and never will be."""
        pid = process.pid
        due, pause = self._ask_again.get(pid, (0.0, FIRST_PAUSE_S))
        if linux_process.stat(pid) is None:
            self._foreign.add(pid)
        elif now >= due or self._expects_more(now):
            if process.socket is not None:
                asker.ask(Question(Topic.WHO, pid), process.socket, "hangscope_progress?groups=1")
            else:
                self.identify(pid, outside_look.who(pid))
            self._ask_again[pid] = (now + pause, min(LONGEST_PAUSE_S, 1.2 * pause))

    def _take_unregistered(self, process: RankProcess) -> None:
        stat = linux_process.stat(process.pid)
        known = self.by_number.get(process.rank) if process.rank is not None else None
        if stat is None or process.pid in self._foreign or (known is not None and not known.ended):
            return
        if linux_process.age_s(stat) > COMPANION_S or companion_hook.cannot_come(process.pid):
            self.add(process)

    def take_boxes(self, boxes: BoxWatch, now: float) -> None:
        """Processes that call NCCL and that nothing of torch.distributed makes known: engines, MPI, plain C."""
        known = {rank.process.pid: number for number, rank in self.by_number.items() if not rank.ended}
        waited = {
            pid: box
            for pid, box in boxes.boxes.items()
            if pid in known or (boxes.seen_for_s(pid, now) >= BOX_S and pid not in self._foreign)
        }
        if len(waited) <= len(known.keys() & waited.keys()):
            return
        others = {number for pid, number in known.items() if pid not in waited}
        mine = {pid: known[pid] for pid in known if pid in waited}
        started = all(boxes.seen_for_s(pid, now) >= STARTED_S for pid in waited if pid not in known)
        for process in box_identity.identify(waited, mine, others, started=started):
            self.add(process)

    def identify(self, pid: int, answer: dict[str, Any]) -> None:
        """A registered process has answered which rank it is."""
        for process in self._registry.processes():
            if process.pid == pid:
                known = find_ranks.with_own_answer(process, answer)
                if known.rank is not None and not self._is_of_another_program(known):
                    self.add(known)

    def _is_of_another_program(self, process: RankProcess) -> bool:
        """Whether the number that a process says is one of a rank that lives and has nothing to do with it: replicas of
        an engine each count from 0."""
        before = self.by_number.get(process.rank) if process.rank is not None else None
        if before is None or before.ended or before.process.pid == process.pid:
            self._strangers.pop(process.pid, None)
            return False
        if before.handle.ended():
            return True  # nobody has noted its end so far; this one is asked again
        if not before.process.registered or _is_later(process, before.process):
            return False
        if linux_process.are_related(before.process.pid, process.pid):
            return False
        # It is asked again: a script that starts its ranks anew has both for a moment.
        self._strangers.setdefault(process.pid, (process, time.monotonic()))
        return True

    def strangers(self, now: float) -> dict[int, RankProcess]:
        """Processes of another program that counts its ranks from 0 as well, so that their numbers are taken."""
        found = {pid: process for pid, (process, since) in self._strangers.items() if now - since >= STRANGER_S}
        return {pid: process for pid, process in found.items() if linux_process.stat(pid) is not None}

    def renumber(self, rank: WatchedRank, answer: dict[str, Any]) -> None:
        """What a rank says itself wins over the RANK that it was started with."""
        before = rank.number
        rank.process = find_ranks.with_own_answer(rank.process, answer)
        if rank.number != before:
            self.by_number.pop(before, None)
            self.by_number[rank.number] = rank

    def add(self, process: RankProcess) -> None:
        """A process that is a rank: new, of the next attempt, or with a companion that came late."""
        assert process.rank is not None
        self._forget_other_numbers(process)
        before = self.by_number.get(process.rank)
        if before is not None and (before.ended or _is_later(process, before.process)):
            self._begin_attempt(process.restart)
        elif before is not None:
            if before.process.registered and find_ranks.one_per_rank([before.process, process])[0] is before.process:
                self._foreign.add(process.pid)  # a helper process of the rank that inherited RANK
                return
            before.forget()
        if not self.by_number:
            self._first_at = time.monotonic()
        self.by_number[process.rank] = WatchedRank.of(process)

    def _forget_other_numbers(self, process: RankProcess) -> None:
        """A process that was known by NCCL's number may say later that it is another rank of the job."""
        for number, rank in list(self.by_number.items()):
            if rank.process.pid == process.pid and number != process.rank:
                del self.by_number[number]
                rank.forget()

    def _begin_attempt(self, restart: int | None) -> None:
        """The launcher starts the ranks anew. Those of before belong to what was captured, if anything was.

        Their registrations stay where they are: they must not be taken for ranks that have just come.
        """
        for number, rank in list(self.by_number.items()):
            if rank.ended or (restart or 0) > (rank.process.restart or 0):
                del self.by_number[number]
                rank.forget()
                self._foreign.add(rank.process.pid)
                self.earlier.add(rank.process.pid)
        self.restarted = True

    def _all_there(self) -> bool:
        """As many ranks as the launcher announced, and none of them ended: nobody else is to be expected soon."""
        living = sum(not rank.ended for rank in self.by_number.values())
        sizes = [rank.process.local_world_size for rank in self.by_number.values()]
        announced = [size for size in sizes if size is not None]
        return bool(announced) and living >= max(announced)

    def _expects_more(self, now: float) -> bool:
        """Whether the job has only just come together, and not all of it is known: one may fail before it is asked."""
        sizes = [rank.process.world_size for rank in self.by_number.values()]
        world_size = max((size for size in sizes if size is not None), default=0)
        return len(self.by_number) < world_size and now < self._first_at + COMES_TOGETHER_S


def _is_later(process: RankProcess, before: RankProcess) -> bool:
    """Whether the launcher says that this process is of a later attempt."""
    return (process.restart or 0) > (before.restart or 0)
