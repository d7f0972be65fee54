"""The matrix of sends and receives: they have no common position, so each rank counts back from its own last."""

from __future__ import annotations

from typing import Any

import numpy as np

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.column_tools import Ints
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.model import Kind, State
from hangscope.report.page.group_blocks import place_of
from hangscope.report.page.marked_calls import MarkedCalls
from hangscope.report.page.matrix_cells import OTHER_CALL, Cell, Cells, is_sound
from hangscope.report.page.moments import has_position

_BEFORE = 4
"""So many completed calls of every rank are drawn; the last column is what it is in the middle of."""


def peers(
    diagnosis: Diagnosis, alignment: Alignment, ranks: Ints, marked: MarkedCalls
) -> tuple[dict[str, Any], Cells] | None:
    """The last sends and receives of every rank, and what it is in the middle of."""
    kind = alignment.job.ops.column("kind")
    rows = np.flatnonzero((kind == Kind.SEND) | (kind == Kind.RECV))
    if not len(rows):
        return None
    drawn = _last_calls(alignment, ranks, rows)
    hung = diagnosis.operation is not None and not has_position(diagnosis.operation)
    cells = _cells(alignment, drawn)
    for place in _missing(diagnosis, ranks) if hung else ():
        rank = int(ranks[place])
        if marked.accuses(rank):
            _mark(cells[place], drawn[place], marked)
        if cells[place, _BEFORE] == Cell.NOTHING:
            cells[place, _BEFORE] = Cell.NOT_LAUNCHED if is_sound(alignment.job, rank) else Cell.NOT_KNOWN
    heads: list[dict[str, Any]] = [
        {"at": f"-{_BEFORE - i}", "name": "an earlier send or recv", "frontier": False} for i in range(_BEFORE)
    ]
    heads.append({"at": "now", "name": "the send or recv in flight", "frontier": diagnosis.hang})
    return {"label": "send and recv", "hung": hung, "columns": heads, "note": ""}, cells


def _last_calls(alignment: Alignment, ranks: Ints, rows: Ints) -> Ints:
    """Per rank its rows in the columns, -1 for none: the last completed ones, then the newest that has not ended."""
    ops = alignment.job.ops
    found = np.full((len(ranks), _BEFORE + 1), -1, dtype=np.int64)
    place = place_of(ranks, ops.column("rank")[rows])
    state = ops.column("state")[rows]
    done = state == State.COMPLETED
    at = place[done]
    # Rows are in recorded order within a rank: the number from the end says the column.
    count = np.bincount(at, minlength=len(ranks))
    starts = np.cumsum(count) - count
    back = count[at] - (np.arange(len(at)) - starts[at])
    recent = back <= _BEFORE
    found[at[recent], _BEFORE - back[recent]] = rows[done][recent]
    for value in (State.SCHEDULED, State.STARTED):  # what its GPU has begun says more than what is queued
        found[place[state == value], _BEFORE] = rows[state == value]
    return found


def _cells(alignment: Alignment, drawn: Ints) -> Cells:
    cells = np.zeros(drawn.shape, dtype=np.uint8)
    cells[:, :_BEFORE][drawn[:, :_BEFORE] >= 0] = Cell.DONE
    now = drawn[:, _BEFORE]
    state = alignment.job.ops.column("state")[np.maximum(now, 0)]
    cells[(now >= 0) & (state == State.SCHEDULED), _BEFORE] = Cell.SCHEDULED
    cells[(now >= 0) & (state == State.STARTED), _BEFORE] = Cell.STARTED
    return cells


def _missing(diagnosis: Diagnosis, ranks: Ints) -> list[int]:
    """The places of ranks that lack a call: the accused, and who has not launched the operation in flight."""
    missing = {culprit.rank for culprit in diagnosis.culprits}
    states = diagnosis.operation.state_by_rank if diagnosis.operation is not None else {}
    missing |= {rank for rank, state in states.items() if state == "not launched"}
    if states:
        missing &= set(states)
    places: list[int] = np.flatnonzero(np.isin(ranks, sorted(missing))).tolist()
    return places


def _mark(cells: Cells, drawn: Ints, marked: MarkedCalls) -> None:
    """Mark the calls of an accused rank that nobody answers; where none is to be seen, the one that it is in."""
    called = [column for column, row in enumerate(drawn.tolist()) if row >= 0]
    for column in [column for column in called if marked.unanswered(int(drawn[column]))] or called[-1:]:
        cells[column] |= OTHER_CALL
