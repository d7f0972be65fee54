"""Groups, ranks and operations as people say them: ``all_reduce #16``, ``the next recv 3<-1``, ``mesh_tp (6)``."""

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.p2p_matching import transfers
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.waits.progress import Place, Unit
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import UNKNOWN, Group, Kind, Operation
from hangscope.text import numbered


class Names:
    """The names in one job."""

    def __init__(self, alignment: Alignment, groups: Sequence[Group]) -> None:
        self._alignment = alignment
        self._job = alignment.job
        self._groups = groups
        self._labels = Counter(g.label for g in groups)

    def group(self, index: int) -> str:
        """A group as people know it, with its name where several share the description."""
        group = self._groups[index]
        return f"{group.label} ({group.name})" if self._labels[group.label] > 1 and group.name else group.label

    def ranks(self, ranks: Collection[int]) -> str:
        """Ranks as a sentence speaks of them; one alone with its node."""
        node = self._job.nodes.get(next(iter(ranks))) if len(ranks) == 1 else None
        return f"{ranks_text(ranks)} on {node}" if node else ranks_text(ranks)

    def wait(self, wait: Wait) -> str:
        return self.unit(wait.inside[0]) if wait.point_to_point else numbered(wait.name, wait.seq)

    def wait_of(self, wait: Wait, rank: int) -> str:
        """What one of the ranks inside called there, which may differ from the others' call."""
        unit = next((unit for unit in wait.inside if unit.rank == rank), None)
        if unit is None or unit.name == "collective":
            return self.wait(wait)
        return self.unit(unit)

    def wait_in_group(self, wait: Wait) -> str:
        return f"{self.wait(wait)} of {self.group(wait.group)}"

    def own_side(self, wait: Wait, rank: int) -> str:
        """The operation from a rank's own side: of a send that waits for it, its receive, and the reverse."""
        row = _open_call(wait, rank)
        if row is None:
            unit = wait.inside[0]
            if unit.peer != rank or not wait.point_to_point:
                return self.wait(wait)
            return f"send {rank}->{unit.rank}" if unit.receives else f"recv {rank}<-{unit.rank}"
        call = self._job.ops[row]
        return f"recv {rank}<-{call.rank}" if call.kind is Kind.SEND else f"send {rank}->{call.rank}"

    def missing(self, wait: Wait, rank: int) -> str:
        """What a rank should have launched for others to go on: ``all_reduce #16``, ``the next recv 3<-1``."""
        title = self.own_side(wait, rank)
        row = _open_call(wait, rank)
        return f"the next {title}" if row is not None and len(transfers(self._alignment, rank, row)) else title

    def unit(self, unit: Unit) -> str:
        if unit.point_to_point and unit.rows:
            ops = self._job.ops
            ends = (ops.column("source"), ops.column("destination"))
            if named := [ops.title(row) for row in unit.rows if any(end[row] != UNKNOWN for end in ends)]:
                return named[0] if len(named) == 1 else _batch(named)
        if unit.makes_group_of:
            which = f" (its group {unit.makes_group})" if (unit.makes_group or "").isdigit() else ""
            return f"{unit.name} of {ranks_text(unit.makes_group_of)}{which}"
        return numbered(unit.name, unit.seq)

    def call(self, operation: Operation) -> str:
        """One recorded call; the closing entry of a batch by what is in the batch."""
        if operation.kind is not Kind.BATCH or operation.batch is None:
            return operation.title
        ops = self._job.ops
        part = ops.span(operation.rank)
        inside = np.flatnonzero(ops.column("batch")[part] == operation.batch) + int(part.start)
        titles = [ops[row].title for row in inside.tolist() if ops[row].kind in (Kind.SEND, Kind.RECV)]
        return _batch(titles) if titles else operation.title


def _open_call(wait: Wait, rank: int) -> int | None:
    """Of a point-to-point wait, the call that waits for a rank."""
    mine = [(row, other.place) for row, other in wait.counterparts if other.peer == rank]
    return min(mine, key=lambda item: item[1] is Place.COMPLETED)[0] if mine else None


def _batch(titles: list[str]) -> str:
    return f"batch of {', '.join(titles[:4])}{'…' if len(titles) > 4 else ''}"
