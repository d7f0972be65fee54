"""Which records the operations make, and the counters in them: what is the same on all ranks of a stage.

Row by row this is what PyTorch's recorder does when an operation is launched; the counters are those of the legacy NCCL
process group (2.4 to 2.15) and the formats derive their own from them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.simulate.events.job_run import REHEARSAL, JobRun, Steps
from hangscope.simulate.program.step_operations import CHECKPOINT, TRAIN, Op
from hangscope.simulate.program.training_sites import Site
from hangscope.simulate.spec.job_layout import ROLES

Column = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SINGLE, INNER, CLOSING = range(3)
"""A record of an operation by itself, of a part of a batch, and of the end of one."""
RECORD_NS = 42_000
"""From one record of a batch to the next."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A site as one stage records it: with the name that carries the two ranks of a transfer."""

    site: Site
    label: str
    role: int
    p2p: bool
    kind: int


@dataclass(frozen=True, slots=True)
class _Record:
    """One record of one operation, and how many collectives, transfers and operations it counts."""

    call: RecordedCall
    collectives: int
    transfers: int
    operations: int


@dataclass(frozen=True, slots=True)
class _StepColumns:
    """The records of one step: number of the call, of the operation, and what is counted."""

    call: Column
    op: Column
    kind: Column
    role: Column
    collectives: Column
    transfers: Column
    operations: Column
    offset_ns: Column


_COLUMNS = 8
"""Of one step: one that was left out has no rows."""


@dataclass(slots=True)
class RecordedRows:
    """What is the same on all ranks that ran the same steps. One row per record, oldest first."""

    call: Column
    op: Column
    """Number of the operation, counted over the steps that the rows cover."""
    kind: Column
    seq: Column
    p2p_seq: Column
    op_id: Column
    record: Column
    offset_ns: Column
    past_ops: int
    """Operations in the past's part of the rows."""
    visible: Mask


class RowTable:
    """The rows of every stage of one run, each made once."""

    def __init__(self, run: JobRun) -> None:
        self.run = run
        self.spec = run.job.spec
        self.calls: list[RecordedCall] = []
        self.past_kinds = [run.job.kind_of_step(number + 1) for number in range(run.past)]
        self._call_ids: dict[RecordedCall, int] = {}
        self._traits: tuple[Column, Mask] = (np.empty(0, np.int64), np.empty(0, bool))
        self._steps: dict[tuple[int, int], _StepColumns] = {}
        self._rows: dict[tuple[object, ...], RecordedRows] = {}

    def rows(self, rank: int, first: int) -> RecordedRows:
        """Rows of all steps from the past's number `first` on, to the end of the simulated ones."""
        run = self.run
        stage = run.job.stages[rank]
        changed = rank if rank in run.plan.programs else None
        key = (stage, changed, first)
        found = self._rows.get(key)
        if found is None:
            simulated = run.programs[rank][len(REHEARSAL) :]
            past = [run.job.program(stage, kind) for kind in self.past_kinds[first:]]
            found = self._rows[key] = self._count(simulated, past, stage, first)
        return found

    def usual_rows(self, rank: int) -> RecordedRows:
        """Rows of the simulated steps as a rank without a fault records them."""
        run = self.run
        stage = run.job.stages[rank]
        programs = [run.job.program(stage, kind) for kind in run.step_kinds[len(REHEARSAL) :]]
        return self._count(programs, [], stage, run.past)

    def label(self, op: Op, stage: int) -> str:
        """The name under which one operation is recorded."""
        return self._records_of(op, stage)[-1].call.label

    def records_of_step(self, stage: int, kind: str) -> int:
        return len(self._step(self.run.job.program(stage, kind), stage).call)

    def call_traits(self) -> tuple[Column, Mask]:
        """Of every call: its role, and whether it counts as point-to-point in NCCL's own status."""
        if len(self._traits[0]) != len(self.calls):
            role = np.array([call.role for call in self.calls], dtype=np.int64)
            transfer = np.array([call.p2p or call.site.name == "coalesced" for call in self.calls], dtype=bool)
            self._traits = (role, transfer)
        return self._traits

    # ---- the records of one operation and one step -------------------------------------------------------------------

    def _records_of(self, op: Op, place: int) -> list[_Record]:
        """The records of one operation at one position of its group."""
        if op.batch:
            return self._records_of_batch(op, place)
        label = _label(op.site, place, op.parts[0].peer) if op.p2p else op.site.name
        call = RecordedCall(op.site, label, op.role, op.p2p, SINGLE)
        return [_Record(call, collectives=int(not op.p2p), transfers=int(op.p2p), operations=1)]

    def _records_of_batch(self, op: Op, place: int) -> list[_Record]:
        closing = RecordedCall(op.site, op.site.name, op.role, False, CLOSING)
        if not op.p2p and self.spec.minor < 8:
            # Before format 2.7 a batch of collectives left its closing entry only.
            return [_Record(closing, collectives=1, transfers=0, operations=1)]
        records = []
        for number, part in enumerate(op.parts):
            label = _label(part.site, place, part.peer) if op.p2p else part.site.name
            call = RecordedCall(part.site, label, op.role, op.p2p, INNER)
            first = number == 0
            records.append(_Record(call, int(first and not op.p2p), int(first and op.p2p), operations=1))
        return [*records, _Record(closing, collectives=0, transfers=0, operations=0)]

    def _call_id(self, call: RecordedCall) -> int:
        found = self._call_ids.get(call)
        if found is None:
            found = self._call_ids[call] = len(self.calls)
            self.calls.append(call)
        return found

    def _step(self, ops: tuple[Op, ...], place: int) -> _StepColumns:
        found = self._steps.get((id(ops), place))
        if found is not None:
            return found
        rows = [
            (
                self._call_id(record.call),
                number,
                record.call.kind,
                record.call.role,
                record.collectives,
                record.transfers,
                record.operations,
                position * RECORD_NS,
            )
            for number, op in enumerate(ops)
            for position, record in enumerate(self._records_of(op, place))
        ]
        found = self._steps[id(ops), place] = _StepColumns(
            *np.array(rows, dtype=np.int64).reshape(-1, _COLUMNS).T.copy()
        )
        return found

    # ---- counters ----------------------------------------------------------------------------------------------------

    def _count(self, simulated: Steps, past: Steps, stage: int, first: int) -> RecordedRows:
        programs = past + simulated
        steps = [self._step(ops, stage) for ops in programs]
        call = np.concatenate([step.call for step in steps])
        role = np.concatenate([step.role for step in steps])
        collectives = np.concatenate([step.collectives for step in steps])
        transfers = np.concatenate([step.transfers for step in steps])
        operations = np.concatenate([step.operations for step in steps])
        sizes = np.array([len(ops) for ops in programs], dtype=np.int64)
        step_begins = np.concatenate(([0], sizes.cumsum()[:-1]))
        op = np.concatenate([step.op for step in steps]) + np.repeat(step_begins, [len(step.call) for step in steps])
        before, records_before = self._counts_before(stage, first)
        seq = np.zeros_like(call)
        p2p_seq = np.zeros_like(call)
        op_id = np.zeros_like(call)
        for number in range(len(ROLES)):
            mine = np.flatnonzero(role == number)
            if len(mine):
                seq[mine] = collectives[mine].cumsum() + before[number][0]
                p2p_seq[mine] = transfers[mine].cumsum() + before[number][1]
                op_id[mine] = operations[mine].cumsum() + before[number][2]
        visible = self._visible(call)
        return RecordedRows(
            call=call,
            op=op,
            kind=np.concatenate([step.kind for step in steps]),
            seq=seq,
            p2p_seq=p2p_seq,
            op_id=op_id,
            record=visible.cumsum() - 1 + records_before,
            offset_ns=np.concatenate([step.offset_ns for step in steps]),
            past_ops=int(sizes[: len(past)].sum()),
            visible=visible,
        )

    def _visible(self, call: Column) -> Mask:
        """Gloo does not record point-to-point calls."""
        if self.spec.backend == "gloo":
            return np.array([not self.calls[number].p2p for number in call], dtype=bool)
        return np.ones(len(call), dtype=bool)

    def _counts_before(self, stage: int, steps: int) -> tuple[list[list[int]], int]:
        """After that many steps of the past: per role collectives, transfers and operations; and the records."""
        totals = [[0, 0, 0] for _ in ROLES]
        records = 0
        for kind in (TRAIN, CHECKPOINT):
            times = self.past_kinds[:steps].count(kind)
            columns = self._step(self.run.job.program(stage, kind), stage)
            for number in range(len(ROLES)):
                mine = columns.role == number
                for counter, column in enumerate((columns.collectives, columns.transfers, columns.operations)):
                    totals[number][counter] += times * int(column[mine].sum())
            records += times * int(self._visible(columns.call).sum())
        return totals, records


def _label(site: Site, place: int, peer: int) -> str:
    return f"send {place}->{peer}" if site.direction == "send" else f"recv {place}<-{peer}"
