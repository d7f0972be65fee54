"""The questions to this node's ranks: how far each one is, once a second, at a bounded cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hangscope.recorder.live.boxes.box_watch import BoxWatch
from hangscope.recorder.live.looks import RECENTLY_S, Looks
from hangscope.recorder.live.node_ranks import NodeRanks
from hangscope.recorder.live.outside_look import OutsideLook
from hangscope.recorder.live.recorder_questions import MOST_MEMORY, json_question, recorders
from hangscope.recorder.live.unfinished_ops import slowest
from hangscope.recorder.live.unrecorded_waits import TIMES_IN_INIT, UnrecordedWaits
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.live.worker_server import Asker, Question, ServerAnswer, Topic
from hangscope.safeio import bounded_json
from hangscope.sources.call_sites import learn as learn_sites

POLL_S = 1.0
LONGEST_POLL_S = 5.0
ANSWER_S = 0.5
DUTY = 0.0005
"""The share of one core that the questions to one rank may cost it, and the same again for asking them."""
STALL_S = 30.0
TIMES_SLOWEST = 5.0
GROUPS_S = 30.0
FAILURE_PAUSE_S = 5.0
"""Several ranks may fail one after the other: so long nobody is asked again for it."""
QUICK_S = 0.15
RING_S = 2.0
STANDSTILL_S = 5.0
TIMES_SLOWEST_STANDSTILL = 2.0
MOST_STACK = 4 << 20


class Polling:
    """`stall_after` is the user's threshold; None means the larger of 30 s and five times the slowest so far.

    `boxes` is where the ranks' black boxes lie. `look_every`: the pause between two looks at the rings with stacks.
    """

    def __init__(
        self,
        sockets: Path,
        stall_after: float | None = None,
        boxes: Path | None = None,
        look_every: float | None = None,
        *,
        tasks_are_ranks: bool = False,
    ) -> None:
        self.sockets = sockets
        self.ranks = NodeRanks(sockets, tasks_are_ranks=tasks_are_ranks)
        self.boxes = BoxWatch(boxes)
        self.unrecorded_waits = UnrecordedWaits()
        self.looks = Looks(look_every)
        self.outside = OutsideLook()
        self.known_stalled: set[int] = set()
        """Ranks whose stall is captured: nothing needs to be confirmed about them."""
        self._stall_after = stall_after
        self._asker = Asker()
        self._cost = 0.0
        self._next_groups = 0.0
        self._next_ring: dict[tuple[int, str], float] = {}

    def __iter__(self) -> Iterator[WatchedRank]:
        """The ranks in order."""
        return iter(self.ranks)

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def living(self) -> list[WatchedRank]:
        return [rank for rank in self if not rank.ended]

    @property
    def _read_from_outside(self) -> list[WatchedRank]:
        """The ranks that no companion speaks for."""
        return [rank for rank in self.living if rank.process.socket is None]

    def close(self) -> None:
        self._asker.close()
        self.unrecorded_waits.close()
        for rank in self:
            rank.close_outside()

    def threshold(self) -> float:
        if self._stall_after is not None:
            return self._stall_after
        return max(STALL_S, TIMES_SLOWEST * slowest(rank.progress for rank in self))

    def standstill_threshold(self) -> float:
        """How long a job that is about to be ended must have waited to be worth a capture: longer than is normal."""
        usual = slowest(rank.progress for rank in self)
        return min(self.threshold(), max(STANDSTILL_S, TIMES_SLOWEST_STANDSTILL * usual))

    def init_threshold(self) -> float:
        """Ranks start at different times, on large jobs minutes apart: to wait for them is normal for longer."""
        return TIMES_IN_INIT * (self._stall_after if self._stall_after is not None else STALL_S)

    @property
    def interval(self) -> float:
        """Seconds from one turn to the next, by what a turn costs the ranks.

        A threshold of seconds is not to be missed by the pause between two turns. With nobody left there is nobody to
        spare: an attempt that fails soon after its start would come and go between two turns.
        """
        if not self.living:
            return POLL_S
        return max(POLL_S, min(self._cost / DUTY, LONGEST_POLL_S, self.threshold() / 5))

    def turn(self, command: int | None) -> None:
        """Look who is there, and ask everybody."""
        self._look_at_boxes(time.monotonic())
        begun = time.thread_time()
        now = time.monotonic()
        self.ranks.look(now, command, self._asker)
        if self.ranks.restarted:
            self.known_stalled.clear()
            self.looks = Looks(self.looks.every)
        self._ask_progress(now)
        for rank in self._read_from_outside:
            self.outside.read_counters(rank, now)
        self._ask_doubtful_rings(now)
        self._ask_call_sites(now)
        self.unrecorded_waits.turn(self, self._asker, self.threshold(), now)
        self._take(self._asker.wait(ANSWER_S))
        spent, self.outside.spent_once = time.thread_time() - begun - self.outside.spent_once, 0.0
        cost = spent / max(1, len(self))
        self._cost += 0.2 * (cost - self._cost)

    def _look_at_boxes(self, now: float) -> None:
        """Read what NCCL does in every process: files in memory, so that it costs the ranks nothing."""
        threshold = self.threshold()
        if not self.boxes.look(now, threshold):
            return
        self.ranks.take_boxes(self.boxes, now)
        unfinished = self.boxes.unfinished(threshold)
        for rank in self.living:
            box = self.boxes.boxes.get(rank.process.pid)
            if box is not None:
                rank.progress.take_box(unfinished[rank.process.pid], box.signature(), time.time_ns())

    # ---- the end of a rank -------------------------------------------------------------------------------------------

    def note_ends(self) -> None:
        failed = False
        for rank in self:
            if rank.note_end():
                failed |= rank.exit_status != 0
                self._asker.forget_rank(rank.number)
        if failed:
            self._ask_before_all_are_killed()

    def _ask_before_all_are_killed(self) -> None:
        """A rank has failed: within a tenth of a second its launcher kills the others, so they are asked now.

        The recorders themselves answer, without the GIL, in milliseconds; so do stacks where nothing holds it.
        """
        now = time.monotonic()
        for rank in self._read_from_outside:
            if now >= rank.asked_at_failure + FAILURE_PAUSE_S:
                rank.asked_at_failure = now
                self.outside.read_before_the_end(rank)
                rank.note_failure(self)
        rings: list[Question] = []
        for rank in self.living:
            socket = rank.process.socket
            if socket is None or now < rank.asked_at_failure + FAILURE_PAUSE_S:
                continue
            rank.asked_at_failure = now
            for recorder, _ in recorders(rank.process):
                ring = Question(Topic.RING, rank.number, recorder)
                rings.append(ring)
                self._asker.ask(ring, socket, json_question(recorder))
            if "dump_traceback" in rank.process.handlers:
                self._asker.ask(Question(Topic.TRACEBACK, rank.number), socket, "dump_traceback")
        answers = self._asker.wait(QUICK_S) if rings else []
        for question, answer in answers:
            value = json_object(answer) if question in rings else None
            if value is not None:
                self.ranks.by_number[question.number].last_full[question.recorder] = value
        self._take(answers)

    # ---- questions ---------------------------------------------------------------------------------------------------

    def _ask_progress(self, now: float) -> None:
        """The cheap questions, to every rank in every turn. The groups seldom change, and are asked for seldom."""
        with_groups = now >= self._next_groups
        if with_groups:
            self._next_groups = now + GROUPS_S
        for rank in self.living:
            if rank.process.socket is not None:
                self._ask_progress_of(rank, rank.process.socket, with_groups or not rank.groups)
        self._take(self._asker.wait(ANSWER_S))

    def _ask_progress_of(self, rank: WatchedRank, socket: str, with_groups: bool) -> None:
        handlers = rank.process.handlers
        nccl = "dump_nccl_trace_json" in handlers  # CUDA builds from 2.5 on
        if nccl:
            self._asker.ask(Question(Topic.ACTIVE, rank.number), socket, "dump_nccl_trace_json?onlyactive=true")
        if rank.process.asks_python and (with_groups or not nccl or rank.last_status):
            handler = "hangscope_progress?groups=1" if with_groups else "hangscope_progress"
            self._asker.ask(Question(Topic.PROGRESS, rank.number), socket, handler)
        if "wait_counter_values" in handlers and (rank.init_since is not None or not rank.groups):  # 2.10
            self._asker.ask(Question(Topic.WAIT_COUNTERS, rank.number), socket, "wait_counter_values")

    def _ask_doubtful_rings(self, now: float) -> None:
        """Ask for the whole ring where the cheap answers leave a doubt. One that costs much is asked for rarely."""
        threshold = self.threshold()
        asked = False
        for rank in self.living:
            if rank.number in self.known_stalled:
                continue
            if rank.process.socket is None:
                self.outside.read_doubtful_rings(rank, now, threshold)
            else:
                asked |= self._ask_doubtful_rings_of(rank, rank.process.socket, now, threshold)
        if asked:
            self._take(self._asker.wait(RING_S))

    def _ask_doubtful_rings_of(self, rank: WatchedRank, socket: str, now: float, threshold: float) -> bool:
        urgent, some_time = rank.progress.doubtful(now, time.time_ns(), threshold)
        unanswered_s = self._asker.open_for(Question(Topic.PROGRESS, rank.number)) or 0.0
        if unanswered_s > threshold and "fr_trace_json" in rank.process.handlers:
            some_time.add("gloo")  # the recorder itself needs no GIL to answer
        asked = False
        for recorder in urgent | some_time:
            if recorder in urgent or now >= self._next_ring.get((rank.number, recorder), 0.0):
                question = Question(Topic.RING, rank.number, recorder)
                asked |= self._asker.ask(question, socket, json_question(recorder))
        return asked

    def _ask_call_sites(self, now: float) -> None:
        """Now and then ask all ranks that move from where they call: the answer needs the GIL, so not in a hang.

        Where lines would cost an import, the ring comes without: operations and sizes can be compared all the same.
        """
        for rank in self:
            before = rank.seen_at
            rank.seen_at = rank.progress.signature()
            if before and rank.seen_at != before:
                rank.moved_at = now
        recently = now - RECENTLY_S
        moving = [rank for rank in self.living if rank.moved_at is not None and rank.moved_at >= recently]
        if not self.looks.is_due(now, any(rank.moved_at == now for rank in moving)):
            return
        outside = [(rank, recorder) for rank in moving if rank.process.socket is None for recorder in rank.last_status]
        asked = [
            (rank.number, recorder)
            for rank in moving
            if rank.process.socket is not None
            for recorder, handler in (learn_sites.questions if rank.has_symbols else recorders)(rank.process)
            if self._asker.ask(Question(Topic.CALL_SITES, rank.number, recorder), rank.process.socket, handler)
        ]
        asked += [(rank.number, recorder) for rank, recorder in outside]
        self.looks.begin(now, min((_launched(rank) for rank in moving), default=0), asked)
        for rank, recorder in outside:
            self._take_look(rank, recorder, self.outside.dump_with_stacks(rank, recorder), with_stacks=True)

    # ---- answers -----------------------------------------------------------------------------------------------------

    def _take(self, answers: list[tuple[Question, ServerAnswer]]) -> None:
        for question, answer in answers:
            if question.topic is Topic.WHO:
                value = json_object(answer)
                if value is not None:
                    self.ranks.identify(question.number, value)
                continue
            rank = self.ranks.by_number.get(question.number)
            if rank is not None:
                self._take_of_rank(rank, question, answer)

    def _take_of_rank(self, rank: WatchedRank, question: Question, answer: ServerAnswer) -> None:
        if answer.status is not None:
            rank.server_answers = True
        if question.topic is Topic.CALL_SITES:
            self._take_look(rank, question.recorder, answer.body if answer.ok else b"", with_stacks=rank.has_symbols)
            return
        if question.topic is Topic.TRACEBACK:
            if answer.ok:
                rank.last_stack = answer.body[:MOST_STACK].decode(errors="replace")
            return
        if question.topic is Topic.PROGRESS and answer.ok:
            rank.python_answers = True
        value = json_object(answer)
        if value is not None:
            rank.last_poll_at = time.time()
            self._take_json(rank, question, value, answer.seconds)

    def _take_look(self, rank: WatchedRank, recorder: str, body: bytes, *, with_stacks: bool) -> None:
        """Kept for a later hang: a rank that has ended by then is neither asked nor read."""
        if with_stacks:
            rank.call_sites.take(recorder, body)
        self.looks.take(rank.number, recorder, body)

    def _take_json(self, rank: WatchedRank, question: Question, value: dict[str, Any], seconds: float) -> None:
        now = time.monotonic()
        if question.topic is Topic.STACKS:
            self.unrecorded_waits.take(rank, value, now)
        elif question.topic is Topic.WAIT_COUNTERS:
            rank.take_wait_counters(value, now)
        elif question.topic is Topic.ACTIVE:
            rank.take_active(value)
        elif question.topic is Topic.PROGRESS:
            rank.take_progress(value, now)
            self.ranks.renumber(rank, value)
        elif question.topic is Topic.RING:
            rank.take_full(question.recorder, value)
            self._next_ring[rank.number, question.recorder] = time.monotonic() + seconds / DUTY


def _launched(rank: WatchedRank) -> int:
    return sum(counter.enqueued for counter in rank.progress.counters.values())


def json_object(answer: ServerAnswer) -> dict[str, Any] | None:
    if not answer.ok:
        return None
    try:
        value = bounded_json.loads(answer.body, most=MOST_MEMORY)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
