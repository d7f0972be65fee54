"""What a cell of the matrix says: how far one rank is known to have come with one operation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hangscope.model import Job
from hangscope.report.page.agreement import differs
from hangscope.report.page.group_blocks import Block
from hangscope.report.spans import Bools, Ints

Cells = npt.NDArray[np.uint8]

NONE, DONE, STARTED, SCHEDULED, ABSENT, UNKNOWN = range(6)
DIFFERS = 8
"""Added to a cell whose rank made another call than most of its group at that position."""
STATES = {"not launched": ABSENT, "scheduled": SCHEDULED, "started": STARTED, "completed": DONE, "unknown": UNKNOWN}
"""As the verdict says them."""
_LETTERS = " CSs-?"
_DIFFERENT = {DONE: "D", STARTED: "T", SCHEDULED: "t"}
_SAYS = {
    "C": "completed",
    "S": "started, not ended",
    "s": "scheduled, not started",
    "-": "not launched",
    "?": "not known",
}


def text_of(cells: Cells) -> str:
    """Cells as the page's data has them: a letter each, another one where the call differs from the others'."""
    return "".join(_DIFFERENT.get(int(c) & 7, "?") if c & DIFFERS else _LETTERS[c] for c in cells.tolist())


def legend(looks: Sequence[str]) -> list[tuple[str, str]]:
    """The letters that occur, with what they say."""
    used = set("".join(looks))
    found = [(letter, text) for letter, text in _SAYS.items() if letter in used]
    if used & set("DTt"):
        found.append(("D", "another call than most of its group"))
    return found


def fill(
    job: Job,
    ranks: Ints,
    block: Block,
    rows: Ints,
    relative: Ints,
    window: Bools,
    low: int,
    high: int,
    *,
    stacks: bool,
) -> Cells:
    """The cells of one block, `low` to `high` columns from the frontier. `relative` is the column of each row."""
    ops = job.ops
    place = np.searchsorted(ranks, ops.column("rank")[rows])
    cells = _without_record(job, ranks, block, rows, relative, place, low, high)
    seen = rows[window]
    state = np.array([UNKNOWN, SCHEDULED, STARTED, DONE], dtype=np.uint8)[np.clip(ops.column("state")[seen], 0, 3)]
    others = differs(job, seen, stacks=stacks)
    cells[place[window], relative[window] - low] = state | np.where(others & (state != UNKNOWN), DIFFERS, 0)
    return cells


def _without_record(
    job: Job, ranks: Ints, block: Block, rows: Ints, relative: Ints, place: Ints, low: int, high: int
) -> Cells:
    """What is said of members that have no record of a position: not launched, or not known; nothing of others."""
    far = np.iinfo(np.int64).max
    first, last = np.full(len(ranks), far), np.full(len(ranks), -far)
    np.minimum.at(first, place, relative)
    np.maximum.at(last, place, relative)
    member = block.group_of >= 0
    sound = np.array([is_sound(job, int(rank)) for rank in ranks], dtype=bool)
    wrapped = np.array([job.wrapped(int(rank)) for rank in ranks], dtype=bool)
    # How far anybody of the rank's own group has come: nobody is absent from what nobody launched.
    reached = np.full(len(job.groups) + 1, -far)
    np.maximum.at(reached, job.ops.column("group")[rows].astype(np.int64), relative)
    reached_by_group = reached[block.group_of]
    columns = np.arange(low, high + 1)[None, :]
    nothing = last == -far
    beyond = np.where(nothing[:, None], ~wrapped[:, None], columns > last[:, None])
    cells = np.where(sound[:, None] & beyond, ABSENT, UNKNOWN)
    cells = np.where(columns > reached_by_group[:, None], NONE, cells)
    return np.where(member[:, None], cells, NONE).astype(np.uint8)


def is_sound(job: Job, rank: int) -> bool:
    """Whether the end of a rank's recording can be trusted: what is not in it was not launched."""
    dumps = job.dumps.get(rank, ())
    return any(dump.complete and dump.records > 0 and dump.role == "dump" for dump in dumps)
