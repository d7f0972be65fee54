"""What a rank's flight recorder holds: the run turned into the columns of one dump.

Row by row this is what PyTorch's recorder does when an operation is launched; the counters are those of the legacy NCCL
process group (2.4 to 2.15) and the formats derive their own from them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hangscope.simulate.layouts import ROLES
from hangscope.simulate.program import CHECKPOINT, TRAIN, Op
from hangscope.simulate.spec import Spec
from hangscope.simulate.training_sites import Site
from hangscope.simulate.whole_job import MODELS, REHEARSAL, Run, Steps

Column = npt.NDArray[np.int64]

SINGLE, INNER, CLOSING = range(3)
SCHEDULED, STARTED, COMPLETED = range(3)
UNSET = -1
_FAR = np.iinfo(np.int64).max
SWEEP_NS = 100_000_000
"""The watchdog looks through its list ten times a second, and takes a moment to do it."""


@dataclass(frozen=True, slots=True)
class Call:
    """A site as one stage records it: with the name that carries the two ranks of a transfer."""

    site: Site
    label: str
    role: int
    p2p: bool
    kind: int


@dataclass(slots=True)
class Rows:
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
    ops: int
    """Operations in the past's part of the rows."""
    visible: npt.NDArray[np.bool_]


@dataclass(slots=True)
class Holding:
    """One rank's ring at the moment of its dump."""

    rank: int
    calls: list[Call]
    call: Column
    record: Column
    seq: Column
    p2p_seq: Column
    op_id: Column
    created_ns: Column
    started_ns: Column
    completed_ns: Column
    duration_ms: npt.NDArray[np.float64]
    state: Column
    retired: npt.NDArray[np.bool_]
    status: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """role → last enqueued, started, completed, as `pg_status` says it."""
    roles: tuple[int, ...] = ()
    """Groups that this rank has used."""

    def __len__(self) -> int:
        return len(self.call)

    def entries(self) -> Iterator[tuple[int, int, int, int, int, int, int, int, float, int, bool]]:
        """Entry by entry, as plain numbers: call, record, the two sequence numbers, op id, the three times, duration,
        state, retired."""
        return zip(
            self.call.tolist(),
            self.record.tolist(),
            self.seq.tolist(),
            self.p2p_seq.tolist(),
            self.op_id.tolist(),
            self.created_ns.tolist(),
            self.started_ns.tolist(),
            self.completed_ns.tolist(),
            self.duration_ms.tolist(),
            self.state.tolist(),
            self.retired.tolist(),
            strict=True,
        )


class Recorder:
    """Makes the rings of all ranks of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.spec: Spec = run.job.spec
        self.calls: list[Call] = []
        self._call_ids: dict[Call, int] = {}
        self._traits: tuple[Column, npt.NDArray[np.bool_]] = (np.empty(0, np.int64), np.empty(0, bool))
        self._steps: dict[tuple[int, int], tuple[Column, ...]] = {}
        self._rows: dict[tuple[object, ...], Rows] = {}
        self.past_kinds = [run.job.kind_of_step(number + 1) for number in range(run.past)]
        rng = random.Random(f"past {self.spec.seed}")
        self._past_models = [rng.choice(MODELS[kind]) for kind in self.past_kinds]
        begins = [run.step_begins(position) for position in range(len(REHEARSAL) + 1)]
        lengths = np.array([begins[model + 1] - begins[model] for model in self._past_models], dtype=np.int64)
        self._begins = begins
        self._past_begins: Column = begins[len(REHEARSAL)] - lengths[::-1].cumsum()[::-1]
        self._sweeps = [
            (rng.randrange(SWEEP_NS), SWEEP_NS + rng.randrange(50_000, 900_000)) for _ in range(self.spec.ranks)
        ]
        """rank → when its watchdog first looked, and how often it does."""

    # ---- static: which records an operation makes --------------------------------------------------------------------

    def _records_of(self, op: Op, place: int) -> list[tuple[Call, int, int, int]]:
        """(call, collectives, transfers, operations that it counts) of one operation at one position of its group."""
        spec, p2p = self.spec, op.p2p
        if not op.batch:
            part = op.parts[0] if p2p else None
            label = op.site.name if part is None else _label(op.site, place, part.peer)
            return [(Call(op.site, label, op.role, p2p, SINGLE), int(not p2p), int(p2p), 1)]
        records = []
        inner = p2p or spec.minor >= 8  # before format 2.7 a batch of collectives left its closing entry only
        for number, part in enumerate(op.parts if inner else ()):
            label = _label(part.site, place, part.peer) if p2p else part.site.name
            first = number == 0
            call = Call(part.site, label, op.role, p2p, INNER)
            records.append((call, int(first and not p2p), int(first and p2p), 1))
        closing = Call(op.site, op.site.name, op.role, False, CLOSING)
        records.append((closing, int(not inner), 0, int(not inner)))
        return records

    def _call(self, call: Call) -> int:
        found = self._call_ids.get(call)
        if found is None:
            found = self._call_ids[call] = len(self.calls)
            self.calls.append(call)
        return found

    def _call_traits(self) -> tuple[Column, npt.NDArray[np.bool_]]:
        """Of every call: its role, and whether it counts as point-to-point in NCCL's own status."""
        if len(self._traits[0]) != len(self.calls):
            role = np.array([call.role for call in self.calls], dtype=np.int64)
            transfer = np.array([call.p2p or call.site.name == "coalesced" for call in self.calls], dtype=bool)
            self._traits = (role, transfer)
        return self._traits

    def _step(self, ops: tuple[Op, ...], place: int) -> tuple[Column, ...]:
        """(call, operation, kind, role, d seq, d p2p seq, d op id, offset) of the records of one step."""
        found = self._steps.get((id(ops), place))
        if found is not None:
            return found
        columns: list[list[int]] = [[] for _ in range(8)]
        for number, op in enumerate(ops):
            for position, (call, seq, p2p_seq, op_id) in enumerate(self._records_of(op, place)):
                values = (
                    self._call(call),
                    number,
                    call.kind,
                    call.role,
                    seq,
                    p2p_seq,
                    op_id,
                    position * 42_000,
                )
                for column, value in zip(columns, values, strict=True):
                    column.append(value)
        found = self._steps[id(ops), place] = tuple(np.array(column, dtype=np.int64) for column in columns)
        return found

    # ---- static: counters --------------------------------------------------------------------------------------------

    def rows(self, rank: int, first: int) -> Rows:
        """Rows of all steps from the past's number `first` on, to the end of the simulated ones."""
        run, place = self.run, self.run.job.stages[rank]
        simulated = run.programs[rank][len(REHEARSAL) :]
        changed = rank if rank in run.plan.programs else None
        key = (place, changed, first)
        found = self._rows.get(key)
        if found is not None:
            return found
        past = [run.job.program(place, kind) for kind in self.past_kinds[first:]]
        found = self._rows[key] = self._count(simulated, past, place, first)
        return found

    def _count(self, simulated: Steps, past: Steps, place: int, first: int) -> Rows:
        programs = past + simulated
        steps = [self._step(ops, place) for ops in programs]
        call, op, kind, role, d_seq, d_p2p, d_op, offset = (
            np.concatenate([step[column] for step in steps]) for column in range(8)
        )
        sizes = np.array([len(ops) for ops in programs], dtype=np.int64)
        begins = np.concatenate(([0], sizes.cumsum()[:-1]))
        op = op + np.repeat(begins, [len(step[0]) for step in steps])
        before = self._counts(place, first)
        seq, p2p_seq, op_id = np.zeros_like(call), np.zeros_like(call), np.zeros_like(call)
        for number in range(len(ROLES)):
            mine = np.flatnonzero(role == number)
            if len(mine):
                seq[mine] = d_seq[mine].cumsum() + before[number][0]
                p2p_seq[mine] = d_p2p[mine].cumsum() + before[number][1]
                op_id[mine] = d_op[mine].cumsum() + before[number][2]
        visible = np.ones(len(call), dtype=bool)
        if self.spec.backend == "gloo":
            visible = np.array([not self.calls[number].p2p for number in call], dtype=bool)
        record = visible.cumsum() - 1 + before[-1][0]
        return Rows(call, op, kind, seq, p2p_seq, op_id, record, offset, int(sizes[: len(past)].sum()), visible)

    def usual_rows(self, rank: int) -> Rows:
        """Rows of the simulated steps as a rank without a fault records them."""
        run, place = self.run, self.run.job.stages[rank]
        programs = [run.job.program(place, kind) for kind in run.step_kinds[len(REHEARSAL) :]]
        return self._count(programs, [], place, run.past)

    def label(self, op: Op, place: int) -> str:
        """The name under which one operation is recorded."""
        return self._records_of(op, place)[-1][0].label

    def _counts(self, place: int, steps: int) -> list[tuple[int, ...]]:
        """Per role the counters after that many steps of the past, and last the number of records."""
        totals = [[0, 0, 0] for _ in ROLES]
        records = 0
        for kind in (TRAIN, CHECKPOINT):
            times = self.past_kinds[:steps].count(kind)
            call, _, _, role, *increments, _ = self._step(self.run.job.program(place, kind), place)
            for number in range(len(ROLES)):
                for counter, column in enumerate(increments):
                    totals[number][counter] += times * int(column[role == number].sum())
            hidden = sum(1 for number in call if self.calls[number].p2p) if self.spec.backend == "gloo" else 0
            records += times * (len(call) - hidden)
        return [*(tuple(counts) for counts in totals), (records,)]

    def _first_step(self, rank: int, until_ns: int) -> int:
        """The past's step from which on a full ring can be filled."""
        place = self.run.job.stages[rank]
        needed = self.spec.entries
        step = int(np.searchsorted(self._past_begins, until_ns)) if until_ns else self.run.past
        sizes = {kind: len(self._step(self.run.job.program(place, kind), place)[0]) for kind in (TRAIN, CHECKPOINT)}
        while step > 0 and needed > 0:
            step -= 1
            needed -= sizes[self.past_kinds[step]]
        return step

    # ---- one rank ----------------------------------------------------------------------------------------------------

    def times(self, rank: int, first: int) -> tuple[Column, Column, Column]:
        """When each operation from the past's step `first` on was launched, started and finished; _FAR for never."""
        run = self.run
        line, offsets = run.timelines[rank], run.offsets[rank]
        models: dict[int, list[Column]] = {}
        for model in (1, 2, 3):
            span = slice(offsets[model], offsets[model + 1])
            models[model] = [
                np.array(values[span], dtype=np.int64) - self._begins[model]
                for values in (line.created, line.started, line.finished)
            ]
        simulated = offsets[len(REHEARSAL)]
        total = offsets[-1] - simulated
        columns = []
        for number, values in enumerate((line.created, line.started, line.finished)):
            recent = np.full(total, _FAR, dtype=np.int64)
            given = np.array(values[simulated:], dtype=np.int64)
            recent[: len(given)] = np.where(given < 0, _FAR, given)
            past = [
                models[model][number] + begin
                for model, begin in zip(self._past_models[first:], self._past_begins[first:], strict=True)
            ]
            columns.append(np.concatenate([*past, recent]))
        return columns[0], columns[1], columns[2]

    def hold(self, rank: int, dump_ns: int, *, stale: bool = False) -> Holding:
        """The ring of one rank at one moment. `stale`: the moment may lie in the past's steps."""
        spec = self.spec
        first = self._first_step(rank, dump_ns if stale else 0)
        rows = self.rows(rank, first)
        launched, started, finished = self.times(rank, first)
        created = launched[rows.op]
        created = np.where(created == _FAR, _FAR, created + rows.offset_ns)
        inside = self._inside_batch(rank, rows)
        there = rows.visible & (created <= dump_ns)
        if inside is not None:
            there[inside[0]] = True
            created[inside[0]] = inside[1]
        keep = np.flatnonzero(there)
        everything = keep
        keep = keep[-spec.entries :]
        start, end = started[rows.op][keep], finished[rows.op][keep]
        first_sweep, period = self._sweeps[rank]
        swept = end + (first_sweep - end) % period
        single = rows.kind[keep] != INNER
        completed = (end <= dump_ns) & single
        begun = (start <= dump_ns) & single
        retired = completed & (swept <= dump_ns)
        if spec.hooked:
            retired = completed
            swept = end
        discovered = np.where(retired, swept, dump_ns)
        state = np.where(completed, COMPLETED, np.where(begun & spec.sees_starts, STARTED, SCHEDULED))
        seen_start = begun & spec.sees_starts
        holding = Holding(
            rank=rank,
            calls=self.calls,
            call=rows.call[keep],
            record=rows.record[keep],
            seq=rows.seq[keep],
            p2p_seq=rows.p2p_seq[keep],
            op_id=rows.op_id[keep],
            created_ns=created[keep],
            started_ns=np.where(seen_start, discovered - 1_800, UNSET),
            completed_ns=np.where(completed, discovered, UNSET),
            duration_ms=np.where(retired & spec.sees_starts, (end - start) / 1e6, np.nan)
            .astype(np.float32)
            .astype(np.float64),
            state=state,
            retired=retired,
        )
        self._summarise(holding, rows, everything, started, finished, dump_ns)
        return holding

    def _inside_batch(self, rank: int, rows: Rows) -> tuple[Column, int] | None:
        """The records of the parts of a batch that the rank never closed, and when they were made."""
        run = self.run
        if rank not in run.plan.inside_batch or rank not in run.engine.halted:
            return None
        place = run.engine.halted[rank] - run.offsets[rank][len(REHEARSAL)] + rows.ops
        parts = np.flatnonzero((rows.op == place) & (rows.kind == INNER))
        line = run.timelines[rank]
        return parts, line.created[-1] + 90_000 if line.created else self._begins[0]

    def _summarise(
        self, holding: Holding, rows: Rows, there: Column, started: Column, finished: Column, dump_ns: int
    ) -> None:
        """`pg_status` and the groups in use, from everything that was recorded and not only what the ring keeps."""
        role = self._call_traits()[0][rows.call[there]]
        own = rows.kind[there] != INNER
        start, end = started[rows.op][there], finished[rows.op][there]
        value = self._status_values(rows, there)
        roles = []
        for number in range(len(ROLES)):
            mine = role == number
            if not mine.any():
                continue
            roles.append(number)
            work = mine & own
            ends = (
                work,
                work & (start <= dump_ns) & self.spec.sees_starts,
                work & (end <= dump_ns),
            )
            last = [int(value[np.flatnonzero(mask)[-1]]) if mask.any() else -1 for mask in ends]
            holding.status[number] = (last[0], last[1], last[2])
        holding.roles = tuple(roles)

    def _status_values(self, rows: Rows, there: Column) -> Column:
        if self.spec.hooked:
            return rows.op_id[there]
        # NCCL keeps one number for both kinds: that of the last operation, whichever it was.
        transfer = self._call_traits()[1][rows.call[there]]
        return np.where(transfer, rows.p2p_seq[there], rows.seq[there])


def _label(site: Site, place: int, peer: int) -> str:
    return f"send {place}->{peer}" if site.direction == "send" else f"recv {place}<-{peer}"
