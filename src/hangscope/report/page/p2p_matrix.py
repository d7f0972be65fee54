"""The matrix of sends and receives: they have no common position, so each rank counts back from its own last."""

from __future__ import annotations

from typing import Any

import numpy as np

from hangscope.diagnosis.verdict import Diagnosis
from hangscope.model import Job, Kind, State
from hangscope.report.page.matrix_cells import ABSENT, DONE, NONE, SCHEDULED, STARTED, UNKNOWN, Cells, is_sound
from hangscope.report.page.moments import is_pair
from hangscope.report.spans import Ints

_BEFORE = 4


def peers(diagnosis: Diagnosis, job: Job, ranks: Ints) -> tuple[dict[str, Any], Cells] | None:
    """The last sends and receives of every rank, and what it is in the middle of."""
    ops = job.ops
    kind = ops.column("kind")
    rows = np.flatnonzero((kind == Kind.SEND) | (kind == Kind.RECV))
    if not len(rows):
        return None
    place = np.searchsorted(ranks, ops.column("rank")[rows])
    state = ops.column("state")[rows]
    cells = np.zeros((len(ranks), _BEFORE + 1), dtype=np.uint8)
    done = state == State.COMPLETED
    ended, at = rows[done], place[done]
    # Rows are in recorded order within a rank: the number from the end says the column.
    count = np.bincount(at, minlength=len(ranks))
    starts = np.cumsum(count) - count
    back = count[at] - (np.arange(len(ended)) - starts[at])
    recent = back <= _BEFORE
    cells[at[recent], _BEFORE - back[recent]] = DONE
    for value, code in ((State.SCHEDULED, SCHEDULED), (State.STARTED, STARTED)):
        cells[place[state == value], _BEFORE] = code
    hung = diagnosis.operation is not None and is_pair(diagnosis.operation)
    accused = {culprit.rank for culprit in diagnosis.culprits}
    if diagnosis.operation is not None:
        accused |= {r for r, s in diagnosis.operation.state_by_rank.items() if s == "not launched"}
        accused &= set(diagnosis.operation.state_by_rank) or accused
    for rank in accused:
        spot = int(np.searchsorted(ranks, rank))
        if hung and spot < len(ranks) and int(ranks[spot]) == rank and cells[spot, _BEFORE] == NONE:
            cells[spot, _BEFORE] = ABSENT if is_sound(job, rank) else UNKNOWN
    heads: list[dict[str, Any]] = [
        {"at": f"-{_BEFORE - i}", "name": "an earlier send or recv", "frontier": False} for i in range(_BEFORE)
    ]
    heads.append({"at": "now", "name": "the send or recv in flight", "frontier": diagnosis.hang})
    return {"label": "send and recv", "hung": hung, "columns": heads, "note": ""}, cells
