"""The ranks of this node and the questions to them: who is there, how far each one is, at a bounded cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hangscope.recorder.live import companion_hook, find_ranks, learn_sites
from hangscope.recorder.live.recorder_questions import json_question, recorders
from hangscope.recorder.live.unfinished_ops import slowest
from hangscope.recorder.live.unrecorded_waits import UnrecordedWaits
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.live.worker_server import Asker, ServerAnswer
from hangscope.recorder.process import linux_process
from hangscope.safeio import bounded_json

POLL_S = 1.0
LONGEST_POLL_S = 5.0
ANSWER_S = 0.5
DUTY = 0.0005
"""The share of one core that the questions to one rank may cost it, and the same again for asking them."""
STALL_S = 30.0
TIMES_SLOWEST = 5.0
TIMES_IN_INIT = 4.0
SCAN_S = 10.0
COMPANION_S = 20.0
"""A process with RANK in its environment that has not registered after this long has no companion."""
COMES_TOGETHER_S = 60.0
GROUPS_S = 30.0
LAST_WORDS_S = 5.0
QUICK_S = 0.15
MOST_STACK = 4 << 20
MOST_MEMORY = 320 << 20
"""For one parsed answer: a ring of 90,000 operations."""
_QUESTIONS = ("nccl", "python", "waits", "stacks", "traceback")
_BACKENDS = ("nccl", "gloo", "nccl2")
_KEYS = (
    *((name,) for name in _QUESTIONS),
    *((what, backend) for what in ("full", "sites") for backend in _BACKENDS),
)


class Polling:
    """`stall_after` is the user's threshold; None means the larger of 30 s and five times the slowest so far."""

    def __init__(self, sockets: Path, stall_after: float | None = None) -> None:
        self.sockets = sockets
        self.ranks: dict[int, WatchedRank] = {}
        self.restarted = False
        """Set when the launcher has started ranks anew after some had ended; whoever cares clears it."""
        self.earlier: set[int] = set()
        """The processes of attempts before this one."""
        self.known_stalled: set[int] = set()
        """Ranks whose stall is known: nothing needs to be confirmed about them."""
        self._stall_after = stall_after
        self._registry = find_ranks.Registry(sockets)
        self._asker = Asker()
        self.unrecorded_waits = UnrecordedWaits()
        self._cost = 0.0
        self._unknown: dict[int, tuple[float, float]] = {}
        self._foreign: set[int] = set()
        self._next_discovery = 0.0
        self._first_at = 0.0
        self._next_scan = 0.0
        self._next_groups = 0.0
        self._next_full: dict[tuple[int, str], float] = {}

    def __iter__(self) -> Iterator[WatchedRank]:
        """The ranks in order."""
        return iter([self.ranks[number] for number in sorted(self.ranks)])

    def close(self) -> None:
        self._asker.close()
        self.unrecorded_waits.close()

    def threshold(self) -> float:
        if self._stall_after is not None:
            return self._stall_after
        return max(STALL_S, TIMES_SLOWEST * slowest(rank.progress for rank in self.ranks.values()))

    def init_threshold(self) -> float:
        """Ranks start at different times, on large jobs minutes apart: to wait for them is normal for longer."""
        return TIMES_IN_INIT * (self._stall_after if self._stall_after is not None else STALL_S)

    def note_ends(self) -> None:
        failed = False
        for rank in self.ranks.values():
            if rank.note_end():
                failed |= rank.exit_status != 0
                for key in _KEYS:
                    self._asker.forget((*key, rank.number))
        if failed:
            self._hear_last_words()

    def _hear_last_words(self) -> None:
        """A rank has failed: within a tenth of a second its launcher kills the others, so they are asked now.

        The recorders themselves answer, without the GIL, in milliseconds; so do stacks where nothing holds it.
        """
        now = time.monotonic()
        keys: list[Any] = []
        for rank in self.ranks.values():
            socket = rank.process.socket
            if rank.ended or socket is None or now < rank.last_words_at + LAST_WORDS_S:
                continue
            rank.last_words_at = now
            for source, _ in recorders(rank.process):
                keys.append(("full", source, rank.number))
                self._asker.ask(keys[-1], socket, json_question(source))
            if "dump_traceback" in rank.process.handlers:
                self._asker.ask(("traceback", rank.number), socket, "dump_traceback")
        answers: list[tuple[Any, ServerAnswer]] = self._asker.wait(QUICK_S) if keys else []
        for key, answer in answers:
            value = json_object(answer) if key in keys else None
            if value is not None:
                self.ranks[key[-1]].last_full[key[1]] = value
        self._take(answers)

    def turn(self, command: int | None) -> None:
        """Look who is there, and ask everybody."""
        begun = time.thread_time()
        now = time.monotonic()
        if now >= self._next_discovery:
            self._discover(now, command)
            self._next_discovery = now + (LONGEST_POLL_S if self._all_there() else 0.0)
        self._ask(now)
        self._confirm(now)
        self._learn_sites(now)
        self.unrecorded_waits.turn(self.ranks.values(), self._asker, self.threshold(), now)
        self._take(self._asker.wait(ANSWER_S))
        cost = (time.thread_time() - begun) / max(1, len(self.ranks))
        self._cost += 0.2 * (cost - self._cost)

    @property
    def interval(self) -> float:
        """Seconds from one turn to the next, by what a turn costs the ranks.

        A threshold of seconds is not to be missed by the pause between two looks. With nobody left there is nobody to
        spare: an attempt that fails soon after its start would come and go between two turns.
        """
        if all(rank.ended for rank in self.ranks.values()):
            return POLL_S
        return max(POLL_S, min(self._cost / DUTY, LONGEST_POLL_S, self.threshold() / 5))

    def _all_there(self) -> bool:
        """As many ranks as the launcher announced, and none of them ended: nobody else is to be expected soon."""
        living = sum(not rank.ended for rank in self.ranks.values())
        announced = [size for rank in self.ranks.values() if (size := rank.process.local_world_size) is not None]
        return bool(announced) and living >= max(announced)

    # ---- who is there ------------------------------------------------------------------------------------------------

    def _discover(self, now: float, command: int | None) -> None:
        for process in self._registry.processes():
            mine = [rank.process for rank in self.ranks.values() if rank.process.pid == process.pid]
            # On a slow file system the import of torch takes longer than anybody waits: the companion may come later.
            if process.pid in self._foreign or any(before.registered for before in mine):
                continue
            if process.rank is not None:
                self._add(process)
            elif process.asks_python and process.socket:
                # Which rank a process of mp.spawn is, only it knows; many processes are none and never will be.
                due, pause = self._unknown.get(process.pid, (0.0, POLL_S))
                if linux_process.stat(process.pid) is None:
                    self._foreign.add(process.pid)
                elif now >= due or self._expects_more(now):
                    self._asker.ask(("who", process.pid), process.socket, "hangscope_progress?groups=1")
                    self._unknown[process.pid] = (now + pause, min(30.0, 1.2 * pause))
        if command is not None and now >= self._next_scan:
            self._next_scan = now + (SCAN_S if self._all_there() else SCAN_S / 5)
            for process in find_ranks.below(command):
                stat = linux_process.stat(process.pid)
                known = self.ranks.get(process.rank) if process.rank is not None else None
                if stat is None or process.pid in self._foreign or (known is not None and not known.ended):
                    continue
                if linux_process.age_s(stat) > COMPANION_S or companion_hook.cannot_come(process.pid):
                    self._add(process)

    def _expects_more(self, now: float) -> bool:
        """Whether the job has only just come together, and not all of it is known: one may fail before it is asked."""
        sizes = [size for rank in self.ranks.values() if (size := rank.process.world_size) is not None]
        return len(self.ranks) < max(sizes, default=0) and now < self._first_at + COMES_TOGETHER_S

    def _add(self, process: find_ranks.RankProcess) -> None:
        assert process.rank is not None
        before = self.ranks.get(process.rank)
        anew = before is not None and (before.ended or (process.restart or 0) > (before.process.restart or 0))
        if before is not None and not anew:
            if before.process.registered and find_ranks.one_per_rank([before.process, process])[0] is before.process:
                self._foreign.add(process.pid)  # a helper process of the rank that inherited RANK
                return
            before.handle.close()
        elif anew:
            self._next_attempt(process.restart)
        if not self.ranks:
            self._first_at = time.monotonic()
        self.ranks[process.rank] = WatchedRank.of(process)

    def _next_attempt(self, restart: int | None) -> None:
        """The launcher starts the ranks anew. Those of before belong to what was captured, if anything was.

        Their registrations stay where they are: they must not be taken for ranks that have just come.
        """
        old = [
            number for number, rank in self.ranks.items() if rank.ended or (restart or 0) > (rank.process.restart or 0)
        ]
        for number in old:
            rank = self.ranks.pop(number)
            rank.handle.close()
            self._foreign.add(rank.process.pid)
            self.earlier.add(rank.process.pid)
        self.known_stalled.clear()
        self.restarted = True

    # ---- questions ---------------------------------------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        with_groups = now >= self._next_groups
        if with_groups:
            self._next_groups = now + GROUPS_S
        for rank in self.ranks.values():
            socket = rank.process.socket
            if rank.ended or socket is None:
                continue
            nccl = "dump_nccl_trace_json" in rank.process.handlers  # CUDA builds from 2.5 on
            if nccl:
                self._asker.ask(("nccl", rank.number), socket, "dump_nccl_trace_json?onlyactive=true")
            if rank.process.asks_python and (with_groups or not rank.groups or not nccl or rank.last_status):
                question = "hangscope_progress" + ("?groups=1" if with_groups or not rank.groups else "")
                self._asker.ask(("python", rank.number), socket, question)
            if "wait_counter_values" in rank.process.handlers and (rank.init_since is not None or not rank.groups):
                self._asker.ask(("waits", rank.number), socket, "wait_counter_values")  # 2.10
        self._take(self._asker.wait(ANSWER_S))

    def _confirm(self, now: float) -> None:
        """Ask for the whole ring where the cheap answers leave a doubt. One that costs much is asked for rarely."""
        threshold = self.threshold()
        asked = False
        for rank in self.ranks.values():
            socket = rank.process.socket
            if rank.ended or socket is None or rank.number in self.known_stalled:
                continue
            urgent, some_time = rank.progress.doubtful(now, time.time_ns(), threshold)
            silent = (self._asker.open_for(("python", rank.number)) or 0.0) > threshold
            if silent and "fr_trace_json" in rank.process.handlers:
                some_time.add("gloo")  # the recorder itself needs no GIL to answer
            for source in urgent | some_time:
                if source in urgent or now >= self._next_full.get((rank.number, source), 0.0):
                    asked |= self._asker.ask(("full", source, rank.number), socket, json_question(source))
        if asked:
            self._take(self._asker.wait(2.0))

    def _learn_sites(self, now: float) -> None:
        """Now and then ask one rank that moves from where it calls: its answer needs the GIL, so not in a hang."""
        for rank in self.ranks.values():
            socket, before = rank.process.socket, rank.seen_at
            rank.seen_at = rank.progress.signature()
            moves = bool(before) and rank.seen_at != before
            if rank.ended or socket is None or not moves or not rank.has_symbols:
                continue
            rank.call_sites.due = rank.call_sites.due if rank.call_sites.due is not None else now + learn_sites.FIRST_S
            if now >= rank.call_sites.due:
                rank.call_sites.due = now + learn_sites.NEXT_S
                for backend, question in learn_sites.questions(rank.process):
                    self._asker.ask(("sites", backend, rank.number), socket, question)
                return

    def _take(self, answers: list[tuple[Any, ServerAnswer]]) -> None:
        for key, answer in answers:
            if key[0] == "who":
                self._take_who(key[1], answer)
                continue
            rank = self.ranks.get(key[-1])
            if rank is None:
                continue
            if key[0] == "python" and answer.ok:
                rank.python_answers = True
            if answer.status is not None:
                rank.server_answers = True
            if key[0] == "sites":
                rank.call_sites.take(key[1], answer.body if answer.ok else b"", time.monotonic())
                continue
            if key[0] == "traceback" and answer.ok:
                rank.last_stack = answer.body[:MOST_STACK].decode(errors="replace")
            value = json_object(answer)
            if value is None:
                continue
            rank.last_poll_at = time.time()
            if key[0] == "stacks":
                self.unrecorded_waits.take(rank, value, time.monotonic())
            elif key[0] == "waits":
                rank.take_wait_counters(value, time.monotonic())
            elif key[0] == "nccl":
                rank.take_active(value)
            elif key[0] == "python":
                rank.take_progress(value, time.monotonic())
                self._learn_rank(rank, value)
            else:
                source = key[1]
                rank.take_full(source, value)
                self._next_full[rank.number, source] = time.monotonic() + answer.seconds / DUTY

    def _learn_rank(self, rank: WatchedRank, answer: dict[str, Any]) -> None:
        """What it says itself wins over the RANK that it was started with."""
        before = rank.number
        rank.process = find_ranks.with_own_answer(rank.process, answer)
        if rank.number != before:
            self.ranks.pop(before, None)
            self.ranks[rank.number] = rank

    def _take_who(self, pid: int, answer: ServerAnswer) -> None:
        value = json_object(answer)
        if value is None:
            return
        for process in self._registry.processes():
            if process.pid == pid and (known := find_ranks.with_own_answer(process, value)).rank is not None:
                self._add(known)


def json_object(answer: ServerAnswer) -> dict[str, Any] | None:
    if not answer.ok:
        return None
    try:
        value = bounded_json.loads(answer.body, most=MOST_MEMORY)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
