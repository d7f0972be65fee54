"""Runs every rank's program as a discrete-event simulation, with one fault, and says when what happened.

A rank has a CPU that launches and a GPU that executes. The CPU runs ahead of the GPU by a number of operations or until
it has to wait for a result; the GPU starts an operation when the one before it is done, and a collective is done when
everybody in it has started. Nothing here knows what the fault is called: it only stops a CPU or a GPU, changes a
program or loses the messages of one link, and the rest follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hangscope.simulate.layouts import Groups
from hangscope.simulate.message_rings import Ring
from hangscope.simulate.program import Op

NEVER = -1
LAUNCH_NS = 12_000
"""From the CPU's call to the earliest start on an idle GPU."""
NS_PER_BYTE = 1 / 100
"""100 GB/s: slow enough to be seen, fast enough not to dominate."""
EAGER_BYTES = 1 << 20
"""A send up to this size fits into the buffers of a pair."""
BUFFERED_BYTES = 4 << 20
"""A broadcast up to this size fits into the buffers on the way: nobody waits for those behind him."""


@dataclass(slots=True)
class Interference:
    """What goes wrong, in terms of the machine. Numbers are positions in the rank's program."""

    cpu_stops: dict[int, int] = field(default_factory=dict)
    """rank → the operation that its CPU never launches."""
    inside_batch: frozenset[int] = frozenset()
    """Of those, the ranks that launched the parts of that batch and never closed it."""
    gpu_stops: dict[int, int] = field(default_factory=dict)
    """rank → the operation that its GPU never starts."""
    late_cpu_ns: dict[int, int] = field(default_factory=dict)
    """rank → extra CPU time at the first operation of every step."""
    late_gpu_ns: dict[int, int] = field(default_factory=dict)
    """rank → extra GPU time before the first operation of every step."""
    lost_link: tuple[int, int, int] | None = None
    """(sender, receiver, first operation of the sender whose messages do not arrive)."""
    odd_groups: dict[int, int] = field(default_factory=dict)
    """group → number of its collectives that still fit together; from there on members may disagree."""


@dataclass(slots=True)
class Timeline:
    """When one rank launched, started and finished each operation of its program, in ns; NEVER where it did not."""

    created: list[int]
    started: list[int]
    finished: list[int]

    @property
    def launched(self) -> int:
        """How many operations the CPU launched."""
        return len(self.created)


class _Meeting:
    """A collective that waits for its members: (rank, number, start) of those that are there."""

    __slots__ = ("arrived", "done")

    def __init__(self) -> None:
        self.arrived: list[tuple[int, int, int]] = []
        self.done = 0


class Engine:
    def __init__(
        self,
        groups: Groups,
        programs: Sequence[Sequence[Op]],
        step_starts: Sequence[frozenset[int]],
        gaps_ns: Sequence[Sequence[int]],
        *,
        ahead: int,
        interference: Interference,
        begin_ns: int,
    ) -> None:
        """`programs`: rank → operations. `step_starts`: rank → numbers of the operations that begin a step.
        `gaps_ns`: rank → GPU time before each operation, jitter included. `ahead`: operations that a CPU may be in
        front of its GPU."""
        ranks = len(programs)
        self.groups, self.programs, self._gaps = groups, programs, gaps_ns
        self._step_starts, self._ahead, self._wrong = step_starts, ahead, interference
        self.timelines = [Timeline([], [], []) for _ in range(ranks)]
        self._position = {
            group.index: {rank: place for place, rank in enumerate(group.members)} for group in groups.all
        }
        self._begin = begin_ns
        self._clock = [begin_ns] * ranks
        """When each GPU's compute stream is free."""
        self._open: list[list[int]] = [[] for _ in range(ranks)]
        """Background operations of each rank that are not done as far as it has looked."""
        self._last_on: list[dict[int, int]] = [{} for _ in range(ranks)]
        """rank → role → its last operation on that group."""
        self._blocked_on = [NEVER] * ranks
        self._joined: list[dict[int, int]] = [{} for _ in range(ranks)]
        """rank → group → collectives that it has started there."""
        self._meetings: dict[tuple[int, int], _Meeting] = {}
        self._posts: dict[tuple[int, int, int, str], list[tuple[int, int, int, int]]] = {}
        self._outstanding: dict[tuple[int, int], list[int]] = {}
        self._rings: dict[int, Ring] = {}
        self._ready: list[int] = list(reversed(range(ranks)))
        self.halted: dict[int, int] = {}
        """Ranks whose CPU or GPU was stopped, with the operation where that was."""

    # ---- running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        while self._ready:
            self._advance(self._ready.pop())
        for rank in range(len(self.programs)):
            self._run_ahead(rank)

    def finished(self, rank: int) -> bool:
        """Whether a rank came to the end of its program."""
        line = self.timelines[rank]
        return len(line.finished) == len(self.programs[rank]) and NEVER not in line.finished

    def _launch(self, rank: int, number: int) -> int | None:
        """The time at which the CPU launches an operation, or the (negative) operation that it waits for."""
        line, ops = self.timelines[rank], self.programs[rank]
        if len(line.created) > number:
            return line.created[number]
        op = ops[number]
        at = (line.created[-1] if number else self._begin) + int(op.cpu_us * 1000)
        finished = line.finished
        held_by = number - self._ahead
        if held_by >= 0:
            if len(finished) <= held_by or finished[held_by] == NEVER:
                self._blocked_on[rank] = held_by
                return None
            at = max(at, finished[held_by])
        if number and ops[number - 1].fence:
            if len(finished) < number:
                self._blocked_on[rank] = len(finished)
                return None
            for other in (*self._open[rank], number - 1):
                if finished[other] == NEVER:
                    self._blocked_on[rank] = other
                    return None
                at = max(at, finished[other] + int(op.cpu_us * 1000))
        if number in self._step_starts[rank]:
            at += self._wrong.late_cpu_ns.get(rank, 0)
        line.created.append(at)
        return at

    def _advance(self, rank: int) -> None:
        """Go on until this rank's GPU has to wait for somebody, or its program ends."""
        ops, line = self.programs[rank], self.timelines[rank]
        stop, gpu_stop = self._wrong.cpu_stops.get(rank, NEVER), self._wrong.gpu_stops.get(rank, NEVER)
        started, finished, last_on = line.started, line.finished, self._last_on[rank]
        self._blocked_on[rank] = NEVER
        while True:
            number = len(started)
            if number and not ops[number - 1].background:
                if finished[number - 1] == NEVER:
                    self._blocked_on[rank] = number - 1
                    return
                self._clock[rank] = max(self._clock[rank], finished[number - 1])
            if number == len(ops):
                return
            if number == stop:
                self.halted[rank] = number
                return
            op = ops[number]
            created = self._launch(rank, number)
            if created is None:
                return
            if number == gpu_stop:
                self.halted[rank] = number
                return
            at = self._clock[rank] + self._gaps[rank][number]
            if number in self._step_starts[rank]:
                at += self._wrong.late_gpu_ns.get(rank, 0)
            computed = at
            same_stream = last_on.get(op.role, NEVER)
            if same_stream != NEVER:
                if finished[same_stream] == NEVER:
                    self._blocked_on[rank] = same_stream
                    return
                at = max(at, finished[same_stream])
            if op.join:
                for other in self._open[rank]:
                    if finished[other] == NEVER:
                        self._blocked_on[rank] = other
                        return
                    at = max(at, finished[other])
                self._open[rank].clear()
            at = max(at, created + LAUNCH_NS)
            started.append(at)
            finished.append(NEVER)
            last_on[op.role] = number
            if op.background:
                self._open[rank].append(number)
                self._clock[rank] = computed
            self._begin_operation(rank, number, op, at)

    def _run_ahead(self, rank: int) -> None:
        """What the CPU of a rank whose GPU waits for ever still launches."""
        stop = self._wrong.cpu_stops.get(rank, NEVER)
        number = self.timelines[rank].launched
        while number < len(self.programs[rank]) and number != stop and self._launch(rank, number) is not None:
            number += 1

    def _done(self, rank: int, number: int, at: int) -> None:
        self.timelines[rank].finished[number] = at
        if self._blocked_on[rank] == number:
            self._blocked_on[rank] = NEVER
            self._ready.append(rank)

    # ---- meeting others ----------------------------------------------------------------------------------------------

    def _begin_operation(self, rank: int, number: int, op: Op, at: int) -> None:
        index = self.groups.of[rank][op.role]
        group = self.groups.all[index]
        place = self._position[index][rank]
        if op.p2p:
            moves = [(part.site.direction, part.peer, op.size) for part in op.parts]
            self._exchange(rank, number, index, place, moves, at)
            return
        joined = self._joined[rank]
        ordinal = joined.get(index, 0)
        joined[index] = ordinal + 1
        odd = self._wrong.odd_groups.get(index)
        if odd is not None and ordinal >= odd:
            if op.algorithm == "all_to_all":
                self._scatter_gather(rank, number, op, index, place, at)
            else:
                self._ring(index).join(place, number, op, at)
            return
        meeting = self._meetings.get((index, ordinal))
        if meeting is None:
            meeting = self._meetings[index, ordinal] = _Meeting()
        meeting.arrived.append((rank, number, at))
        if op.algorithm in ("broadcast", "reduce"):
            self._pass_on(index, meeting, op)
        elif len(meeting.arrived) == len(group.members):
            end = max(start for _, _, start in meeting.arrived) + 8_000 + int(op.size * NS_PER_BYTE)
            for other, its_number, _ in meeting.arrived:
                self._done(other, its_number, end + (other * 7919) % 3_000)
            del self._meetings[index, ordinal]

    def _pass_on(self, index: int, meeting: _Meeting, op: Op) -> None:
        """Along the ring from the root; who is early waits, who is late holds up those behind him."""
        members = self.groups.all[index].members
        size, place = len(members), self._position[index]
        there = {place[rank]: (rank, number, start) for rank, number, start in meeting.arrived}
        towards_root = op.algorithm == "reduce"
        while meeting.done < size:
            step = meeting.done
            at = (op.root + 1 + step) % size if towards_root else (op.root + step) % size
            after = (at + 1) % size
            if at not in there:
                return
            blocked = op.size > BUFFERED_BYTES and step < size - 1 and after not in there
            if blocked:
                return
            rank, number, start = there[at]
            if step:
                previous = there[(at - 1) % size]
                start = max(start, self.timelines[previous[0]].finished[previous[1]])
            meeting.done += 1
            self._done(rank, number, start + 6_000 + int(op.size * NS_PER_BYTE))

    def _ring(self, index: int) -> Ring:
        ring = self._rings.get(index)
        if ring is None:
            members = self.groups.all[index].members
            lost = None
            if self._wrong.lost_link is not None:
                sender, receiver, _ = self._wrong.lost_link
                place = self._position[index]
                if sender in place and receiver in place and (place[sender] + 1) % len(members) == place[receiver]:
                    lost = place[sender]
            ring = self._rings[index] = Ring(members, self._done, lost=lost)
        return ring

    def _scatter_gather(self, rank: int, number: int, op: Op, index: int, place: int, at: int) -> None:
        size = len(self.groups.all[index].members)
        moves = []
        for peer in range(size):
            if peer == place:
                continue
            extra = op.split[1] if op.split is not None and op.split[0] == peer else 0
            moves.append(("send", peer, op.size // size + extra))
            moves.append(("recv", peer, op.size // size))
        self._exchange(rank, number, index, place, moves, at)

    def _exchange(
        self, rank: int, number: int, index: int, place: int, moves: list[tuple[str, int, int]], at: int
    ) -> None:
        """Transfers between pairs: done when the other side is there too, wants as much, and the link works.

        A send that fits into the buffers is done before anybody receives it.
        """
        waiting = self._outstanding[rank, number] = [len(moves), at]
        link = self._wrong.lost_link
        members = self.groups.all[index].members
        for way, peer, size in moves:
            sending = way == "send"
            pair = (place, peer) if sending else (peer, place)
            lost = link is not None and sending and (rank, members[peer]) == link[:2] and number >= link[2]
            if sending and size <= EAGER_BYTES:
                waiting[0] -= 1
            other = "recv" if sending else "send"
            posted = self._posts.get((index, *pair, other))
            if not posted:
                post = (rank, number, NEVER if lost else size, at)
                self._posts.setdefault((index, *pair, way), []).append(post)
                continue
            its_rank, its_number, its_size, its_start = posted.pop(0)
            if lost or its_size != size:
                continue
            end = max(at, its_start) + 10_000 + int(size * NS_PER_BYTE)
            if sending or size > EAGER_BYTES:
                self._part_done(its_rank, its_number, end)
            if not sending or size > EAGER_BYTES:
                waiting[0] -= 1
                waiting[1] = max(waiting[1], end)
        if waiting[0] == 0:
            self._done(rank, number, waiting[1])

    def _part_done(self, rank: int, number: int, end: int) -> None:
        waiting = self._outstanding[rank, number]
        waiting[0] -= 1
        waiting[1] = max(waiting[1], end)
        if waiting[0] == 0:
            self._done(rank, number, waiting[1])
