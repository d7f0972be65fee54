"""What a cell of the matrix says: how far one rank is known to have come with one operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.column_tools import Bools, Ints
from hangscope.diagnosis.align.lanes import Lane
from hangscope.model import UNKNOWN, Job, State
from hangscope.report.page.group_blocks import Block, place_of
from hangscope.report.page.marked_calls import MarkedCalls

Cells = npt.NDArray[np.uint8]


class Cell(IntEnum):
    """What is known of one rank at one position. NOTHING: it is no member, or nobody has come there."""

    NOTHING = 0
    DONE = 1
    STARTED = 2
    SCHEDULED = 3
    NOT_LAUNCHED = 4
    NOT_KNOWN = 5


OTHER_CALL = 8
"""Added to a cell whose rank made a different call than most of its group at that position."""
LAUNCHED = (Cell.DONE, Cell.STARTED, Cell.SCHEDULED)
STATES = {
    "not launched": Cell.NOT_LAUNCHED,
    "scheduled": Cell.SCHEDULED,
    "started": Cell.STARTED,
    "completed": Cell.DONE,
    "unknown": Cell.NOT_KNOWN,
}
"""As the verdict says them."""
_OF_STATE = {
    State.UNKNOWN: Cell.NOT_KNOWN,
    State.SCHEDULED: Cell.SCHEDULED,
    State.STARTED: Cell.STARTED,
    State.COMPLETED: Cell.DONE,
}
_BY_STATE = np.array([_OF_STATE[state] for state in State], dtype=np.uint8)
_LETTERS = " CSs-?"
_OTHER_LETTERS = {Cell.DONE: "D", Cell.STARTED: "T", Cell.SCHEDULED: "t"}
_SAYS = {
    "C": "completed",
    "S": "started, not finished",
    "s": "scheduled, not started",
    "-": "not launched",
    "?": "unknown",
}


def text_of(cells: Cells) -> str:
    """Cells as the page's data has them: a letter each, another one where the call differs from the others'."""
    return "".join(_letter(cell) for cell in cells.tolist())


def _letter(cell: int) -> str:
    if cell & OTHER_CALL:
        return _OTHER_LETTERS.get(Cell(cell - OTHER_CALL), "?")
    return _LETTERS[cell]


def legend(looks: Sequence[str]) -> list[tuple[str, str]]:
    """The letters that occur, with what they say."""
    used = set("".join(looks))
    found = [(letter, text) for letter, text in _SAYS.items() if letter in used]
    if used & set(_OTHER_LETTERS.values()):
        found.append(("D", "a different call than most of its group"))
    return found


def by_state(state: Ints) -> Cells:
    return _BY_STATE[np.clip(state, 0, State.COMPLETED)]


@dataclass(frozen=True, slots=True)
class Window:
    """The columns of one block: `low` to `high` positions from the frontier, which is at `zero` of each group."""

    zero: dict[int, int]
    low: int
    high: int

    @property
    def width(self) -> int:
        return self.high - self.low + 1

    def positions(self, lane: Lane) -> range:
        """The places in a lane that are in view."""
        zero = self.zero[lane.group.index]
        first, last = np.searchsorted(lane.seqs, [zero + self.low, zero + self.high + 1]).tolist()
        return range(first, last)

    def column(self, lane: Lane, index: int) -> int:
        return int(lane.seqs[index]) - self.zero[lane.group.index] - self.low


def fill(alignment: Alignment, ranks: Ints, block: Block, last: Ints, window: Window, marked: MarkedCalls) -> Cells:
    """The cells of one block. `last` is the last position that each rank recorded in its group."""
    ops = alignment.job.ops
    cells = _without_record(alignment, ranks, block, last, window)
    for lane in (alignment.lanes[g.index] for g in block.groups if g.index in alignment.lanes):
        for index in window.positions(lane):
            rows = lane.rows_at(index)
            states = by_state(ops.column("state")[rows])
            other = marked.at(lane, index) & (states != Cell.NOT_KNOWN)
            places = place_of(ranks, ops.column("rank")[rows])
            cells[places, window.column(lane, index)] = states | np.where(other, OTHER_CALL, 0).astype(np.uint8)
    return cells


def _without_record(alignment: Alignment, ranks: Ints, block: Block, last: Ints, window: Window) -> Cells:
    """What is said of members that have no record of a position: not launched, or not known; nothing of others."""
    job = alignment.job
    zero = np.zeros(len(job.groups) + 1, dtype=np.int64)
    # How far anybody of the rank's own group has come: nobody is absent from what nobody launched.
    reached = np.full(len(job.groups) + 1, UNKNOWN)
    for group in block.groups:
        lane = alignment.lanes.get(group.index)
        zero[group.index] = window.zero.get(group.index, 0)
        reached[group.index] = UNKNOWN if lane is None else lane.seqs[-1]
    positions = zero[block.group_of][:, None] + np.arange(window.low, window.high + 1)[None, :]
    sound = _of_ranks(ranks, lambda rank: is_sound(job, rank))
    wrapped = _of_ranks(ranks, job.wrapped)
    beyond = np.where((last == UNKNOWN)[:, None], ~wrapped[:, None], positions > last[:, None])
    cells = np.where(sound[:, None] & beyond, Cell.NOT_LAUNCHED, Cell.NOT_KNOWN)
    nobody = positions > reached[block.group_of][:, None]
    stranger = (block.group_of < 0)[:, None]
    return np.where(nobody | stranger, Cell.NOTHING, cells).astype(np.uint8)


def _of_ranks(ranks: Ints, test: Callable[[int], bool]) -> Bools:
    return np.array([test(rank) for rank in ranks.tolist()], dtype=bool)


def is_sound(job: Job, rank: int) -> bool:
    """Whether the end of a rank's recording can be trusted: what is not in it was not launched."""
    dumps = job.dumps.get(rank, ())
    return any(dump.complete and dump.records > 0 and dump.role == "dump" for dump in dumps)
