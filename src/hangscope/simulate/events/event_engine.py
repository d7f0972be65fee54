"""Runs every rank's program as a discrete-event simulation, with one fault, and says when what happened.

A rank has a CPU that launches and a GPU that executes. The CPU runs ahead of the GPU by a number of operations or until
it has to wait for a result; the GPU starts an operation when the one before it is done, and a collective is done when
everybody in it has started. Nothing here knows what the fault is called: it only stops a CPU or a GPU, changes a
program or loses the messages of one link, and the rest follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hangscope.simulate.events.message_ring import Ring
from hangscope.simulate.program.step_operations import Op
from hangscope.simulate.spec.job_layout import Groups

NEVER = -1
LAUNCH_NS = 12_000
"""From the CPU's call to the earliest start on an idle GPU."""
NS_PER_BYTE = 1 / 100
"""100 GB/s: slow enough to be seen, fast enough not to dominate."""
EAGER_BYTES = 1 << 20
"""A send up to this size fits into the buffers of a pair."""
BUFFERED_BYTES = 4 << 20
"""A broadcast up to this size fits into the buffers on the way: nobody waits for those behind it."""


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
    matching_until: dict[int, int] = field(default_factory=dict)
    """group → number of its collectives that still match; from there on members may disagree."""


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


@dataclass(slots=True)
class _OpenCollective:
    """A collective that waits for its members."""

    there: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Position in the group → (rank, number, start) of those that are there."""
    done: int = 0
    """Of a broadcast or a reduce: how many have passed it on."""


@dataclass(slots=True)
class _OpenTransfers:
    """One operation's transfers that are not done, and when the last of the others was."""

    left: int
    end: int


class EventEngine:
    """Executes the programs of all ranks; `timelines` says when what happened."""

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
        self.groups = groups
        self.programs = programs
        self._gaps = gaps_ns
        self._step_starts = step_starts
        self._ahead = ahead
        self._interference = interference
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
        self._collectives: dict[tuple[int, int], _OpenCollective] = {}
        """(group, its n-th collective) → who is there, until all of them are."""
        self._posts: dict[tuple[int, int, int, str], list[tuple[int, int, int, int]]] = {}
        """(group, sender, receiver, "send" or "recv") → (rank, number, size, start) that the other side has not met."""
        self._transfers: dict[tuple[int, int], _OpenTransfers] = {}
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
        """When the CPU launches an operation; None where it waits for an earlier one, which is then noted."""
        line = self.timelines[rank]
        if len(line.created) > number:
            return line.created[number]
        finished = line.finished
        op = self.programs[rank][number]
        cpu_ns = int(op.cpu_us * 1000)
        at = (line.created[-1] if number else self._begin) + cpu_ns
        held_by = number - self._ahead
        if held_by >= 0:
            if len(finished) <= held_by or finished[held_by] == NEVER:
                self._blocked_on[rank] = held_by
                return None
            at = max(at, finished[held_by])
        if number and self.programs[rank][number - 1].fence:
            fenced = self._fence_passed(rank, number)
            if fenced is None:
                return None
            at = max(at, fenced + cpu_ns)
        if number in self._step_starts[rank]:
            at += self._interference.late_cpu_ns.get(rank, 0)
        line.created.append(at)
        return at

    def _fence_passed(self, rank: int, number: int) -> int | None:
        """When everything before an operation was done; None where something is not, which is noted."""
        finished = self.timelines[rank].finished
        if len(finished) < number:
            self._blocked_on[rank] = len(finished)
            return None
        return self._latest_end(rank, (*self._open[rank], number - 1))

    def _latest_end(self, rank: int, numbers: Iterable[int]) -> int | None:
        """When the last of some operations was done; None where one is not, which is noted."""
        finished = self.timelines[rank].finished
        latest = self._begin
        for number in numbers:
            if finished[number] == NEVER:
                self._blocked_on[rank] = number
                return None
            latest = max(latest, finished[number])
        return latest

    def _advance(self, rank: int) -> None:
        """Go on until this rank's GPU has to wait for somebody, or its program ends."""
        ops = self.programs[rank]
        started = self.timelines[rank].started
        cpu_stop = self._interference.cpu_stops.get(rank, NEVER)
        gpu_stop = self._interference.gpu_stops.get(rank, NEVER)
        self._blocked_on[rank] = NEVER
        while self._stream_is_free(rank):
            number = len(started)
            if number == len(ops):
                return
            if number == cpu_stop:
                self.halted[rank] = number
                return
            created = self._launch(rank, number)
            if created is None:
                return
            if number == gpu_stop:
                self.halted[rank] = number
                return
            if not self._start(rank, number, ops[number], created):
                return

    def _stream_is_free(self, rank: int) -> bool:
        """Whether the operation before the next one is done or in the background; what is waited for is noted."""
        line = self.timelines[rank]
        last = len(line.started) - 1
        if last >= 0 and not self.programs[rank][last].background:
            end = line.finished[last]
            if end == NEVER:
                self._blocked_on[rank] = last
                return False
            if end > self._clock[rank]:
                self._clock[rank] = end
        return True

    def _start(self, rank: int, number: int, op: Op, created: int) -> bool:
        """Start an operation on the GPU, unless it has to wait for one on the same group or in the background."""
        line = self.timelines[rank]
        computed = self._clock[rank] + self._gaps[rank][number]
        if number in self._step_starts[rank]:
            computed += self._interference.late_gpu_ns.get(rank, 0)
        at = max(computed, created + LAUNCH_NS)
        last_on = self._last_on[rank]
        same_stream = last_on.get(op.role, NEVER)
        if same_stream != NEVER:
            end = line.finished[same_stream]
            if end == NEVER:
                self._blocked_on[rank] = same_stream
                return False
            at = max(at, end)
        if op.join:
            joined = self._latest_end(rank, self._open[rank])
            if joined is None:
                return False
            at = max(at, joined)
            self._open[rank].clear()
        line.started.append(at)
        line.finished.append(NEVER)
        last_on[op.role] = number
        if op.background:
            self._open[rank].append(number)
            self._clock[rank] = computed
        self._begin_operation(rank, number, op, at)
        return True

    def _run_ahead(self, rank: int) -> None:
        """What the CPU of a rank whose GPU waits for ever still launches."""
        stop = self._interference.cpu_stops.get(rank, NEVER)
        number = self.timelines[rank].launched
        while number < len(self.programs[rank]) and number != stop and self._launch(rank, number) is not None:
            number += 1

    def _done(self, rank: int, number: int, at: int) -> None:
        self.timelines[rank].finished[number] = at
        if self._blocked_on[rank] == number:
            self._blocked_on[rank] = NEVER
            self._ready.append(rank)

    # ---- with others -------------------------------------------------------------------------------------------------

    def _begin_operation(self, rank: int, number: int, op: Op, at: int) -> None:
        index = self.groups.of[rank][op.role]
        if op.p2p:
            moves = [(part.site.direction, part.peer, op.size) for part in op.parts]
            self._exchange(rank, number, index, moves, at)
            return
        joined = self._joined[rank]
        ordinal = joined.get(index, 0)
        joined[index] = ordinal + 1
        matching = self._interference.matching_until.get(index)
        if matching is not None and ordinal >= matching:
            if op.algorithm == "all_to_all":
                self._exchange(rank, number, index, self._shares(rank, index, op), at)
            else:
                self._ring(index).join(self._position[index][rank], number, op, at)
            return
        self._meet(rank, number, op, (index, ordinal), at)

    def _meet(self, rank: int, number: int, op: Op, key: tuple[int, int], at: int) -> None:
        """Join a collective in which all members do the same."""
        collective = self._collectives.get(key)
        if collective is None:
            collective = self._collectives[key] = _OpenCollective()
        index, _ = key
        collective.there[self._position[index][rank]] = (rank, number, at)
        if op.algorithm in ("broadcast", "reduce"):
            self._pass_on(index, collective, op)
        elif len(collective.there) == len(self.groups.all[index].members):
            end = max(start for _, _, start in collective.there.values()) + 8_000 + int(op.size * NS_PER_BYTE)
            for other, its_number, _ in collective.there.values():
                self._done(other, its_number, end + (other * 7919) % 3_000)
            del self._collectives[key]

    def _pass_on(self, index: int, collective: _OpenCollective, op: Op) -> None:
        """Along the ring from the root; who is early waits, who is late holds up those behind it."""
        size = len(self.groups.all[index].members)
        there = collective.there
        first = op.root + 1 if op.algorithm == "reduce" else op.root
        while collective.done < size:
            step = collective.done
            at = (first + step) % size
            if at not in there:
                return
            after = (at + 1) % size
            if op.size > BUFFERED_BYTES and step < size - 1 and after not in there:
                return
            rank, number, start = there[at]
            if step:
                previous, its_number, _ = there[(at - 1) % size]
                start = max(start, self.timelines[previous].finished[its_number])
            collective.done += 1
            self._done(rank, number, start + 6_000 + int(op.size * NS_PER_BYTE))

    def _ring(self, index: int) -> Ring:
        ring = self._rings.get(index)
        if ring is None:
            members = self.groups.all[index].members
            ring = self._rings[index] = Ring(members, self._done, lost=self._lost_position(index))
        return ring

    def _lost_position(self, index: int) -> int | None:
        """Where on a group's ring the messages are lost, None where its ring does not use the dead link."""
        if self._interference.lost_link is None:
            return None
        sender, receiver, _ = self._interference.lost_link
        position = self._position[index]
        if sender not in position or receiver not in position:
            return None
        after = (position[sender] + 1) % len(position)
        return position[sender] if after == position[receiver] else None

    def _shares(self, rank: int, index: int, op: Op) -> list[tuple[str, int, int]]:
        """An all_to_all as what it is for NCCL: to and from every other member one share each."""
        size = len(self.groups.all[index].members)
        own = self._position[index][rank]
        share = op.size // size
        moves = []
        for peer in range(size):
            if peer == own:
                continue
            extra = op.split[1] if op.split is not None and op.split[0] == peer else 0
            moves.append(("send", peer, share + extra))
            moves.append(("recv", peer, share))
        return moves

    def _exchange(self, rank: int, number: int, index: int, moves: list[tuple[str, int, int]], at: int) -> None:
        """Transfers between pairs, each (direction, position of the peer, size)."""
        if not moves:
            self._done(rank, number, at)
            return
        self._transfers[rank, number] = _OpenTransfers(len(moves), at)
        own = self._position[index][rank]
        for way, peer, size in moves:
            if way == "send":
                self._send(rank, number, (index, own, peer), size, at)
            else:
                self._receive(rank, number, (index, peer, own), size, at)

    def _send(self, rank: int, number: int, pair: tuple[int, int, int], size: int, at: int) -> None:
        """Done when the receiver is there too, wants as much, and the link works. `pair`: group, sender, receiver.

        What fits into the buffers is done before anybody receives it.
        """
        eager = size <= EAGER_BYTES
        if eager:
            self._transfer_done(rank, number, at)
        lost = self._is_lost(rank, number, pair)
        posted = self._posts.get((*pair, "recv"))
        if not posted:
            self._posts.setdefault((*pair, "send"), []).append((rank, number, NEVER if lost else size, at))
            return
        receiver, its_number, its_size, its_start = posted.pop(0)
        if lost or its_size != size:
            return
        end = max(at, its_start) + 10_000 + int(size * NS_PER_BYTE)
        self._transfer_done(receiver, its_number, end)
        if not eager:
            self._transfer_done(rank, number, end)

    def _receive(self, rank: int, number: int, pair: tuple[int, int, int], size: int, at: int) -> None:
        """Done when the sender is there too and sends as much. `pair`: group, sender, receiver."""
        posted = self._posts.get((*pair, "send"))
        if not posted:
            self._posts.setdefault((*pair, "recv"), []).append((rank, number, size, at))
            return
        sender, its_number, its_size, its_start = posted.pop(0)
        if its_size != size:
            return
        end = max(at, its_start) + 10_000 + int(size * NS_PER_BYTE)
        if size > EAGER_BYTES:
            self._transfer_done(sender, its_number, end)
        self._transfer_done(rank, number, end)

    def _is_lost(self, rank: int, number: int, pair: tuple[int, int, int]) -> bool:
        """Whether what a rank sends there does not arrive any more."""
        if self._interference.lost_link is None:
            return False
        sender, receiver, since = self._interference.lost_link
        index, _, peer = pair
        return rank == sender and self.groups.all[index].members[peer] == receiver and number >= since

    def _transfer_done(self, rank: int, number: int, end: int) -> None:
        transfers = self._transfers[rank, number]
        transfers.left -= 1
        transfers.end = max(transfers.end, end)
        if transfers.left == 0:
            self._done(rank, number, transfers.end)
