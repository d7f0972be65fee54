"""What a rank's flight recorder holds at one moment: the run turned into the columns of one dump."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hangscope.simulate.events.job_run import MODEL_STEPS, REHEARSAL, JobRun
from hangscope.simulate.program.step_operations import CHECKPOINT, TRAIN
from hangscope.simulate.record.recorded_rows import INNER, Column, Mask, RecordedCall, RecordedRows, RowTable
from hangscope.simulate.spec.job_layout import ROLES

SCHEDULED, STARTED, COMPLETED = range(3)
UNSET = -1
_FAR = np.iinfo(np.int64).max
SWEEP_NS = 100_000_000
"""The watchdog looks through its list ten times a second, and takes a moment to do it."""
START_SEEN_NS = 1_800
"""A sweep notes that an operation had started this long before it notes that it is done."""


@dataclass(slots=True)
class RingContents:
    """One rank's ring at the moment of its dump."""

    rank: int
    calls: list[RecordedCall]
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
    retired: Mask
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


@dataclass(frozen=True, slots=True)
class _Times:
    """When each operation was launched, started and finished; _FAR for never."""

    launched: Column
    started: Column
    finished: Column


class RingRecorder:
    """Makes the rings of all ranks of one run."""

    def __init__(self, run: JobRun) -> None:
        self.run = run
        self.spec = run.job.spec
        self.table = RowTable(run)
        rng = random.Random(f"past {self.spec.seed}")
        self._past_models = [rng.choice(MODEL_STEPS[kind]) for kind in self.table.past_kinds]
        begins = [run.step_begins(position) for position in range(len(REHEARSAL) + 1)]
        lengths = np.array([begins[model + 1] - begins[model] for model in self._past_models], dtype=np.int64)
        self._begins = begins
        self._past_begins: Column = begins[len(REHEARSAL)] - lengths[::-1].cumsum()[::-1]
        self._sweeps = [
            (rng.randrange(SWEEP_NS), SWEEP_NS + rng.randrange(50_000, 900_000)) for _ in range(self.spec.ranks)
        ]
        """rank → when its watchdog first looked, and how often it does."""

    def contents(self, rank: int, dump_ns: int, *, stale: bool = False) -> RingContents:
        """The ring of one rank at one moment. `stale`: the moment may lie in the past's steps."""
        spec = self.spec
        first = self._first_step(rank, dump_ns if stale else 0)
        rows = self.table.rows(rank, first)
        times = self._times(rank, first)
        created = times.launched[rows.op]
        created = np.where(created == _FAR, _FAR, created + rows.offset_ns)
        there = rows.visible & (created <= dump_ns)
        inside = self._inside_batch(rank, rows)
        if inside is not None:
            parts, parts_created = inside
            there[parts] = True
            created[parts] = parts_created
        recorded = np.flatnonzero(there)
        keep = recorded[-spec.entries :]
        start = times.started[rows.op][keep]
        end = times.finished[rows.op][keep]
        single = rows.kind[keep] != INNER
        completed = (end <= dump_ns) & single
        seen_start = (start <= dump_ns) & single & spec.sees_starts
        retired, discovered = self._discovered(rank, completed, end, dump_ns)
        contents = RingContents(
            rank=rank,
            calls=self.table.calls,
            call=rows.call[keep],
            record=rows.record[keep],
            seq=rows.seq[keep],
            p2p_seq=rows.p2p_seq[keep],
            op_id=rows.op_id[keep],
            created_ns=created[keep],
            started_ns=np.where(seen_start, discovered - START_SEEN_NS, UNSET),
            completed_ns=np.where(completed, discovered, UNSET),
            duration_ms=np.where(retired & spec.sees_starts, (end - start) / 1e6, np.nan)
            .astype(np.float32)
            .astype(np.float64),
            state=np.where(completed, COMPLETED, np.where(seen_start, STARTED, SCHEDULED)),
            retired=retired,
        )
        self._summarise(contents, rows, recorded, times, dump_ns)
        return contents

    def _discovered(self, rank: int, completed: Mask, end: Column, dump_ns: int) -> tuple[Mask, Column]:
        """Which operations the watchdog has retired, and when it noticed; of the others the dump itself notices."""
        if self.spec.hooked:
            return completed, np.where(completed, end, dump_ns)
        first_sweep, period = self._sweeps[rank]
        swept = end + (first_sweep - end) % period
        retired = completed & (swept <= dump_ns)
        return retired, np.where(retired, swept, dump_ns)

    def _first_step(self, rank: int, until_ns: int) -> int:
        """The past's step from which on a full ring can be filled."""
        stage = self.run.job.stages[rank]
        needed = self.spec.entries
        step = int(np.searchsorted(self._past_begins, until_ns)) if until_ns else self.run.past
        sizes = {kind: self.table.records_of_step(stage, kind) for kind in (TRAIN, CHECKPOINT)}
        while step > 0 and needed > 0:
            step -= 1
            needed -= sizes[self.table.past_kinds[step]]
        return step

    def _times(self, rank: int, first: int) -> _Times:
        """Of each operation from the past's step `first` on."""
        line = self.run.timelines[rank]
        return _Times(
            launched=self._past_and_simulated(rank, first, line.created),
            started=self._past_and_simulated(rank, first, line.started),
            finished=self._past_and_simulated(rank, first, line.finished),
        )

    def _past_and_simulated(self, rank: int, first: int, simulated: list[int]) -> Column:
        """One column of a rank's timeline, with the past's steps, which repeat those of the rehearsal, in front."""
        offsets = self.run.offsets[rank]
        models = {
            model: np.array(simulated[offsets[model] : offsets[model + 1]], dtype=np.int64) - self._begins[model]
            for model in (1, 2, 3)
        }
        past = [
            models[model] + begin
            for model, begin in zip(self._past_models[first:], self._past_begins[first:], strict=True)
        ]
        rehearsed = offsets[len(REHEARSAL)]
        recent = np.full(offsets[-1] - rehearsed, _FAR, dtype=np.int64)
        given = np.array(simulated[rehearsed:], dtype=np.int64)
        recent[: len(given)] = np.where(given < 0, _FAR, given)
        return np.concatenate([*past, recent])

    def _inside_batch(self, rank: int, rows: RecordedRows) -> tuple[Column, int] | None:
        """The records of the parts of a batch that the rank never closed, and when they were made."""
        run = self.run
        if rank not in run.plan.inside_batch or rank not in run.engine.halted:
            return None
        place = run.engine.halted[rank] - run.offsets[rank][len(REHEARSAL)] + rows.past_ops
        parts = np.flatnonzero((rows.op == place) & (rows.kind == INNER))
        line = run.timelines[rank]
        return parts, line.created[-1] + 90_000 if line.created else self._begins[0]

    def _summarise(
        self, contents: RingContents, rows: RecordedRows, recorded: Column, times: _Times, dump_ns: int
    ) -> None:
        """`pg_status` and the groups in use, from everything that was recorded and not only what the ring keeps."""
        role = self.table.call_traits()[0][rows.call[recorded]]
        own = rows.kind[recorded] != INNER
        started = (times.started[rows.op][recorded] <= dump_ns) & self.spec.sees_starts
        completed = times.finished[rows.op][recorded] <= dump_ns
        value = self._status_values(rows, recorded)
        roles = []
        for number in range(len(ROLES)):
            mine = role == number
            if not mine.any():
                continue
            roles.append(number)
            enqueued = mine & own
            contents.status[number] = (
                _last(value, enqueued),
                _last(value, enqueued & started),
                _last(value, enqueued & completed),
            )
        contents.roles = tuple(roles)

    def _status_values(self, rows: RecordedRows, recorded: Column) -> Column:
        if self.spec.hooked:
            return rows.op_id[recorded]
        # NCCL keeps one number for both kinds: that of the last operation, whichever it was.
        transfer = self.table.call_traits()[1][rows.call[recorded]]
        return np.where(transfer, rows.p2p_seq[recorded], rows.seq[recorded])


def _last(values: Column, where: Mask) -> int:
    return int(values[np.flatnonzero(where)[-1]]) if where.any() else -1
