"""The matrix: how far every rank came around the frontier of its groups.

Groups that no rank shares (the tensor groups of a mesh) are one block of columns. A column is a position: the same
operation on every member, as the engine aligned them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from hangscope.diagnosis.align.column_tools import Ints
from hangscope.diagnosis.align.lanes import Lane
from hangscope.diagnosis.verdict import CauseKind, Diagnosis
from hangscope.report.op_times import OpTimes
from hangscope.report.page.group_blocks import Block, arrange, frontiers, last_positions
from hangscope.report.page.marked_calls import MarkedCalls
from hangscope.report.page.matrix_cells import LAUNCHED, OTHER_CALL, STATES, Cell, Cells, Window, fill
from hangscope.report.page.matrix_rows import fold
from hangscope.report.page.moments import Moments, has_position
from hangscope.report.page.p2p_matrix import peers
from hangscope.report.page.page_text import SHORT, shown
from hangscope.report.rank_strip import Letters
from hangscope.text import plural

_BLOCKS = 5
_BEFORE = 4
_AFTER = 2
_TOGETHER = 6
"""Groups of one block whose frontiers are closer than this share sequence numbers as columns."""

Drawn = tuple[dict[str, Any], Cells]
"""The head of a block, and its cells: a line a rank."""


def matrix(diagnosis: Diagnosis, times: OpTimes, moments: Moments, letters: Letters) -> dict[str, Any]:
    """Blocks of columns and rows of cells, as the script draws them."""
    drawing = _Drawing(diagnosis, times, moments)
    ranks = drawing.ranks
    blocks = arrange(times.alignment, ranks, moments.group)
    drawn = [found for found in map(drawing.block, blocks[:_BLOCKS]) if found[0]["columns"]]
    if not any(head["hung"] for head, _ in drawn):
        drawn[:0] = drawing.from_verdict()
    transfers = peers(diagnosis, times.alignment, ranks, drawing.marked)
    if transfers is not None:
        drawn.insert(0 if transfers[0]["hung"] else len(drawn), transfers)  # what hangs comes first
    whole = np.hstack([cells for _, cells in drawn]) if drawn else np.zeros((len(ranks), 0), dtype=np.uint8)
    return {
        "blocks": [head for head, _ in drawn],
        "rows": fold(times.job, ranks, whole, letters),
        "ranks": len(ranks),
        "more": plural(len(blocks) - _BLOCKS, "more set") + " of groups" if len(blocks) > _BLOCKS else "",
    }


class _Drawing:
    """What all blocks of one page are drawn from."""

    def __init__(self, diagnosis: Diagnosis, times: OpTimes, moments: Moments) -> None:
        self.ranks: Ints = np.sort(np.array(times.job.ranks, dtype=np.int64))
        self.marked = MarkedCalls(diagnosis, times.alignment, moments)
        self._diagnosis = diagnosis
        self._alignment = times.alignment
        self._moments = moments

    def block(self, block: Block) -> Drawn:
        """One block of groups. Without columns where nothing is recorded of them."""
        last = last_positions(self._alignment, self.ranks, block)
        found = frontiers(self._alignment, block, last)
        hung = self._diagnosis.operation is not None and block.holds(self._moments.position_group)
        if hung and self._moments.group is not None and self._moments.position is not None:
            found[self._moments.group] = self._moments.position
        if not found:
            return {"columns": []}, np.zeros((len(self.ranks), 0), dtype=np.uint8)
        together = max(found.values()) - min(found.values()) < _TOGETHER
        window = self._window(block, found, hung=hung, together=together)
        cells = fill(self._alignment, self.ranks, block, last, window, self.marked)
        if hung and window.low <= 0 <= window.high:
            self._say_as_the_verdict(cells[:, -window.low])
        label = shown(block.groups[0].label, SHORT)
        count = len(block.groups)
        head = {
            "label": label if count == 1 else f"{label} ({count} groups)",
            "hung": hung,
            "columns": self._columns(block, window, hung=hung, together=together),
            "note": "" if together else "columns count from each group's own frontier",
        }
        return head, cells

    def _lanes(self, block: Block) -> list[Lane]:
        return [self._alignment.lanes[g.index] for g in block.groups if g.index in self._alignment.lanes]

    def _window(self, block: Block, found: dict[int, int], *, hung: bool, together: bool) -> Window:
        """Some positions before the frontier and a few behind it, as far as anybody has come."""
        main = min(found.values())
        if hung and self._moments.group in found:
            main = found[self._moments.group]
        zero = {group.index: main if together else found.get(group.index, main) for group in block.groups}
        lanes = self._lanes(block)
        oldest = min((int(lane.seqs[0]) - zero[lane.group.index] for lane in lanes), default=0)
        newest = max((int(lane.seqs[-1]) - zero[lane.group.index] for lane in lanes), default=-_BEFORE)
        return Window(zero, max(-_BEFORE, min(oldest, 0)), min(_AFTER, max(newest, 0) if hung else newest))

    def _columns(self, block: Block, window: Window, *, hung: bool, together: bool) -> list[dict[str, Any]]:
        names = [Counter[int]() for _ in range(window.width)]
        for lane in self._lanes(block):
            for index in window.positions(lane):
                rows = lane.rows_at(index)
                names[window.column(lane, index)].update(self._alignment.job.ops.column("name")[rows].tolist())
        main = next(iter(window.zero.values()))
        heads = []
        for place, called in enumerate(names):
            column = window.low + place
            usual = min(called, key=lambda name: (-called[name], name), default=None)
            number = f"#{main + column}" if together else _offset(column)
            heads.append(
                {
                    "at": number,
                    "name": "" if usual is None else shown(self._alignment.job.ops.tables.name(usual), SHORT),
                    "frontier": column == 0 and (self._diagnosis.hang or hung),
                }
            )
        return heads

    # ---- as the verdict says it --------------------------------------------------------------------------------------

    def _say_as_the_verdict(self, column: Cells) -> None:
        """The states of the operation in flight are those of the verdict; marks stay."""
        operation = self._diagnosis.operation
        for rank, state in operation.state_by_rank.items() if operation is not None else ():
            place = self._place(rank)
            if place is not None and state in STATES:
                column[place] = self._cell(rank, STATES[state], marked=bool(column[place] & OTHER_CALL))

    def _cell(self, rank: int, cell: Cell, *, marked: bool) -> int:
        other = cell in LAUNCHED and (marked or self.marked.accuses(rank))
        return cell | OTHER_CALL if other else cell

    def _place(self, rank: int) -> int | None:
        place = int(np.searchsorted(self.ranks, rank))
        return place if place < len(self.ranks) and int(self.ranks[place]) == rank else None

    def from_verdict(self) -> list[Drawn]:
        """The hung operation as the verdict says it, where no dump holds it: one column."""
        operation = self._diagnosis.operation
        if operation is None or not has_position(operation) or not operation.state_by_rank:
            return []
        absent = self._diagnosis.kind == CauseKind.ABSENT
        states = {c.rank: "not launched" for c in self._diagnosis.culprits if absent} | dict(operation.state_by_rank)
        cells = np.zeros((len(self.ranks), 1), dtype=np.uint8)
        for rank, state in states.items():
            place = self._place(rank)
            if place is not None:
                cells[place, 0] = self._cell(rank, STATES.get(state, Cell.NOT_KNOWN), marked=False)
        column = {
            "at": "now" if operation.seq is None else f"#{operation.seq}",
            "name": shown(operation.name, SHORT),
            "frontier": True,
        }
        note = "not in any dump: from the logs and the other ranks"
        return [({"label": shown(operation.group, SHORT), "hung": True, "columns": [column], "note": note}, cells)]


def _offset(column: int) -> str:
    return "0" if column == 0 else f"{column:+d}"
