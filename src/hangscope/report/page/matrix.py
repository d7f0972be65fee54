"""The matrix: where every rank stands around the frontier of its groups.

Groups that no rank shares (the tensor groups of a mesh) stand in one block of columns. A column is a position: the same
operation on every member.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hangscope.diagnosis.verdict import CauseKind, Diagnosis
from hangscope.model import Job
from hangscope.report.matching import collectives
from hangscope.report.page.group_blocks import Block, arrange
from hangscope.report.page.group_blocks import frontiers as frontiers_of
from hangscope.report.page.matrix_cells import DIFFERS, DONE, SCHEDULED, STARTED, STATES, Cells, fill
from hangscope.report.page.matrix_rows import fold
from hangscope.report.page.moments import Moments, is_pair
from hangscope.report.page.p2p_matrix import peers
from hangscope.report.page.page_text import SHORT, shown
from hangscope.report.rank_strip import Letters
from hangscope.report.spans import Ints
from hangscope.text import plural

_BLOCKS = 5
_BEFORE, _AFTER = 4, 2
_TOGETHER = 6
"""Groups of one block whose frontiers are closer than this share sequence numbers as columns."""


def matrix(diagnosis: Diagnosis, job: Job, moments: Moments, letters: Letters) -> dict[str, Any]:
    """Blocks of columns and rows of cells, as the script draws them."""
    ranks = np.sort(np.array(job.ranks, dtype=np.int64))
    collective = collectives(job)
    blocks = arrange(job, ranks, collective, moments.group)
    columns: list[dict[str, Any]] = []
    cells: list[Cells] = []
    for block in blocks[:_BLOCKS]:
        head, part = _block(diagnosis, job, ranks, block, collective, moments)
        if head["columns"]:
            columns.append(head)
            cells.append(part)
    if not any(head["hung"] for head in columns):
        added = _from_verdict(diagnosis, ranks)
        if added is not None:
            columns.insert(0, added[0])
            cells.insert(0, added[1])
    pairs = peers(diagnosis, job, ranks)
    if pairs is not None:
        place = 0 if pairs[0]["hung"] else len(columns)  # what hangs comes first
        columns.insert(place, pairs[0])
        cells.insert(place, pairs[1])
    whole = np.hstack(cells) if cells else np.zeros((len(ranks), 0), dtype=np.uint8)
    return {
        "blocks": columns,
        "rows": fold(job, ranks, whole, letters),
        "ranks": len(ranks),
        "more": plural(len(blocks) - _BLOCKS, "more set") + " of groups" if len(blocks) > _BLOCKS else "",
    }


def _block(
    diagnosis: Diagnosis, job: Job, ranks: Ints, block: Block, collective: Ints, moments: Moments
) -> tuple[dict[str, Any], Cells]:
    ops = job.ops
    index = np.array([group.index for group in block.groups])
    rows = collective[np.isin(ops.column("group")[collective], index)]
    frontiers = frontiers_of(job, block, rows)
    operation = diagnosis.operation
    at_hung = moments.group if operation is not None and not is_pair(operation) and moments.group in index else None
    if at_hung is not None and operation is not None and operation.seq is not None:
        frontiers[at_hung] = operation.seq
    if not frontiers:
        return {"columns": []}, np.zeros((len(ranks), 0), dtype=np.uint8)
    main = frontiers[at_hung] if at_hung is not None and at_hung in frontiers else min(frontiers.values())
    together = max(frontiers.values()) - min(frontiers.values()) < _TOGETHER
    zero = np.full(len(job.groups), main, dtype=np.int64)  # per group, the position in the frontier's column
    if not together:
        for number, value in frontiers.items():
            zero[number] = value
    else:
        main = min(main, *frontiers.values()) if at_hung is None else main
        zero[:] = main

    seq, group = ops.column("seq")[rows], ops.column("group")[rows].astype(np.int64)
    relative = seq - zero[group]
    low = max(-_BEFORE, min(int(relative.min(initial=0)), 0))
    launched = int(relative.max(initial=-_BEFORE))
    high = min(_AFTER, max(launched, 0) if at_hung is not None else launched)
    window = (relative >= low) & (relative <= high)
    cells = fill(job, ranks, block, rows, relative, window, low, high, stacks=diagnosis.kind == CauseKind.MISMATCH)
    if at_hung is not None and operation is not None and low <= 0 <= high:
        for rank, state in operation.state_by_rank.items():
            place = int(np.searchsorted(ranks, rank))
            if place < len(ranks) and int(ranks[place]) == rank and state in STATES:
                kept = cells[place, -low] & DIFFERS
                cells[place, -low] = STATES[state] | (kept if STATES[state] in (DONE, STARTED, SCHEDULED) else 0)
    heads = []
    for column in range(low, high + 1):
        here = rows[window][relative[window] == column]
        name = _usual(job, here)
        heads.append(
            {
                "at": f"#{main + column}" if together else ("0" if column == 0 else f"{column:+d}"),
                "name": shown(name, SHORT),
                "frontier": column == 0 and (diagnosis.hang or at_hung is not None),
            }
        )
    count = len(block.groups)
    label = shown(block.groups[0].label, SHORT)
    return (
        {
            "label": label if count == 1 else f"{label} ({count} groups)",
            "hung": at_hung is not None,
            "columns": heads,
            "note": "" if together else "columns count from each group's own frontier",
        },
        cells,
    )


def _from_verdict(diagnosis: Diagnosis, ranks: Ints) -> tuple[dict[str, Any], Cells] | None:
    """The hung operation as the verdict tells it, where no dump holds it: one column."""
    operation = diagnosis.operation
    if operation is None or is_pair(operation) or not operation.state_by_rank:
        return None
    cells = np.zeros((len(ranks), 1), dtype=np.uint8)
    states = dict.fromkeys((c.rank for c in diagnosis.culprits if diagnosis.kind == CauseKind.ABSENT), "not launched")
    for rank, state in {**states, **operation.state_by_rank}.items():
        place = int(np.searchsorted(ranks, rank))
        if place < len(ranks) and int(ranks[place]) == rank:
            cells[place, 0] = STATES.get(state, STATES["unknown"])
    column = {
        "at": "now" if operation.seq is None else f"#{operation.seq}",
        "name": shown(operation.name, SHORT),
        "frontier": True,
    }
    note = "no dump holds it: as logs and the other ranks tell"
    return {"label": shown(operation.group, SHORT), "hung": True, "columns": [column], "note": note}, cells


def _usual(job: Job, rows: Ints) -> str:
    if not len(rows):
        return ""
    return job.ops.tables.name(int(np.bincount(job.ops.column("name")[rows]).argmax()))
