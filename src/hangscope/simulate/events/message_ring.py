"""One communicator at the grain of messages, for groups whose members do not all do the same thing.

NCCL's ring collectives are a fixed pattern of "receive from the previous rank, send to the next one". Nothing in a
message says which operation it belongs to, so operations that do not fit together go wrong in their own ways: some
finish with wrong data, some wait for ever, and often the hang shows several operations after the mistake. The same
patterns say who still finishes when one link dies. The rules were checked against recorded NCCL 2.28.9 jobs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hangscope.simulate.program.step_operations import Op

SLOTS = 8
"""Messages that fit between two neighbours before the sender has to wait (NCCL_STEPS)."""
LOOP_BYTES = 8 << 20
"""Bytes per rank that one turn round the ring moves: chunk size times channels."""
SMALL_BYTES = 8 << 10
"""Below this NCCL uses its low-latency protocol, whose messages the other protocol cannot read."""
HOP_NS = 4_000

Finish = Callable[[int, int, int], None]
"""(rank, number of the operation in the rank's program, time in ns)"""


@dataclass(slots=True)
class _Turn:
    """One rank's way through one operation: `done` of `total` moves."""

    rank: int
    number: int
    time: int
    protocol: str
    total: int = 1
    period: int = 1
    """Moves of one way round the ring, of which the first receives nothing and the last sends nothing."""
    receives_first: bool = False
    sends_last: bool = False
    """Where there is one move only."""
    done: int = 0
    holding: bool = False
    """It has received and not yet sent on."""

    @property
    def receives(self) -> bool:
        """Whether the next move begins with a message from the rank before."""
        return self.receives_first if self.period == 1 else self.done % self.period > 0

    @property
    def sends(self) -> bool:
        """Whether the next move ends with a message to the rank after."""
        return self.sends_last if self.period == 1 else self.done % self.period < self.period - 1


class Ring:
    """The ring of one group: each member's current operation and the messages between neighbours."""

    def __init__(self, members: Sequence[int], finish: Finish, *, lost: int | None = None) -> None:
        """`lost`: position of the member whose messages to the next one no longer arrive."""
        self.members = members
        self._finish = finish
        self._lost = lost
        self._turn: list[_Turn | None] = [None] * len(members)
        self._wire: list[deque[tuple[int, str]]] = [deque() for _ in members]
        self._sent = [0] * len(members)
        self._taken = [0] * len(members)

    def join(self, position: int, number: int, op: Op, start: int) -> None:
        """A member's stream reaches an operation of this group."""
        size = len(self.members)
        turn = _Turn(
            rank=self.members[position],
            number=number,
            time=start,
            protocol="small" if op.size <= SMALL_BYTES else "large",
        )
        distance = (position - op.root) % size
        if op.algorithm == "broadcast":
            turn.receives_first = distance > 0
            turn.sends_last = distance < size - 1
        elif op.algorithm == "reduce":
            turn.receives_first = distance != 1
            turn.sends_last = distance > 0
        else:
            loops = max(1, -(-op.size // (size * LOOP_BYTES)))
            turn.period = 2 * size - 1 if op.algorithm == "all_reduce" else size
            turn.total = turn.period * loops
        self._turn[position] = turn
        self._run(position)

    def _run(self, position: int) -> None:
        ready = [position]
        while ready:
            here = ready.pop()
            turn = self._turn[here]
            if turn is None:
                continue
            if self._move(here, turn):
                size = len(self.members)
                ready.append((here + 1) % size)
                ready.append((here - 1) % size)
            if turn.done == turn.total:
                self._turn[here] = None
                self._finish(turn.rank, turn.number, turn.time + HOP_NS)

    def _move(self, here: int, turn: _Turn) -> bool:
        """Go on until a message or a free slot is missing."""
        before = (here - 1) % len(self.members)
        moved = False
        while turn.done < turn.total:
            if turn.receives and not turn.holding:
                wire = self._wire[before]
                if not wire or wire[0][1] != turn.protocol:
                    return moved
                arrived, _ = wire.popleft()
                self._taken[before] += 1
                turn.time = max(turn.time, arrived + HOP_NS)
                turn.holding = moved = True
            if turn.sends:
                if self._sent[here] - self._taken[here] >= SLOTS:
                    return moved
                self._sent[here] += 1
                if here != self._lost:
                    self._wire[here].append((turn.time, turn.protocol))
                moved = True
            turn.holding = False
            turn.done += 1
        return moved
