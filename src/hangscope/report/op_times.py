"""When every operation began and ended, all nodes on one clock: what the timeline and the Perfetto trace draw.

The recorder knows when a call was made and when the watchdog noticed its end, by the clock of the rank's own node. Here
the clocks are brought together by collectives that end on all members at once, and a call that was queued begins
when the one before it in its group has ended. Nothing is decided by these times; they are for looking at.

What is drawn is what the engine judged: the job without the dumps that it set aside, and its alignment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.align.alignment import Alignment, align
from hangscope.diagnosis.align.column_tools import Bools, Ints, ids, runs, sort_by
from hangscope.diagnosis.evidence.vet_dumps import vet_dumps
from hangscope.model import UNKNOWN, Job, Kind, Operations, State
from hangscope.report.node_clocks import NodeClocks, node_clocks

_FAR_NS = 30 * 86_400 * 1_000_000_000
"""Further than a month from the rest is no time but damage."""


@dataclass(frozen=True, slots=True)
class OpTimes:
    """One entry a row of `job.ops`. Times are nanoseconds since the epoch on the common clock."""

    alignment: Alignment
    begin_ns: Ints
    end_ns: Ints
    """Of an operation that has not ended: the end of the evidence."""
    known: Bools
    """Whether the row has a time at all."""
    unfinished: Bools
    track: Ints
    """Operations of one track follow each other: one rank's collectives of one group, or its calls with one peer."""
    by_track: Ints
    """The rows track by track, each as recorded."""
    clocks: NodeClocks
    last_ns: int | None
    """The latest moment that any dump speaks of."""

    @property
    def job(self) -> Job:
        """The job as the engine judged it."""
        return self.alignment.job


def op_times(job: Job) -> OpTimes:
    """The begin and the end of every operation of the dumps that count."""
    vetted = vet_dumps(job)
    alignment = align(vetted.job, vetted.index)
    ops = alignment.job.ops
    created, started, completed = _stamps(ops)
    _inherit_from_batch(ops, completed)
    clocks = node_clocks(alignment, completed)
    _to_common_clock(alignment, clocks, created, started, completed)
    latest = max(int(column.max(initial=UNKNOWN)) for column in (created, started, completed))

    known = (created > 0) | (completed > 0)
    state = ops.column("state")
    # A state that the file does not say is not taken for waiting.
    unfinished = known & ((state == State.SCHEDULED) | (state == State.STARTED))
    begin = np.where(created > 0, created, completed)
    end = np.where(unfinished, begin, _ends(ops, begin, completed))

    track = _tracks(ops)
    by_track = sort_by(track)
    begin = np.where(known, _after_the_one_before(begin, end, track, by_track[known[by_track]]), UNKNOWN)
    end = np.where(known, np.maximum(begin, end), UNKNOWN)
    end[unfinished] = np.maximum(latest, begin[unfinished])
    return OpTimes(
        alignment=alignment,
        begin_ns=begin,
        end_ns=end,
        known=known,
        unfinished=unfinished,
        track=track,
        by_track=by_track,
        clocks=clocks,
        last_ns=latest if latest > 0 else None,
    )


def _stamps(ops: Operations) -> tuple[Ints, Ints, Ints]:
    """When each row was created, started and completed, without what is no time but damage."""
    columns = [ops.column(name).copy() for name in ("created_ns", "started_ns", "completed_ns")]
    seen = columns[0][columns[0] > 0]
    if len(seen):
        middle = int(np.median(seen))
        for column in columns:
            column[(column < middle - _FAR_NS) | (column > middle + _FAR_NS)] = UNKNOWN
    return columns[0], columns[1], columns[2]


def _inherit_from_batch(ops: Operations, completed: Ints) -> None:
    """Calls inside a batch end when the batch does: only its closing entry has a time."""
    kind = ops.column("kind")
    batched = ops.column("batch") != UNKNOWN
    closing = np.flatnonzero((kind == Kind.BATCH) & batched)
    inner = np.flatnonzero((kind != Kind.BATCH) & batched & (completed <= 0))
    if not len(closing) or not len(inner):
        return
    rows = np.concatenate([closing, inner])
    batch = ids(ops.column("rank")[rows], ops.column("batch")[rows])
    ended = np.full(int(batch.max()) + 1, UNKNOWN, dtype=np.int64)
    ended[batch[: len(closing)]] = completed[closing]
    of_inner = ended[batch[len(closing) :]]
    closed = np.isin(batch[len(closing) :], batch[: len(closing)])
    completed[inner[closed]] = of_inner[closed]


def _to_common_clock(alignment: Alignment, clocks: NodeClocks, *columns: Ints) -> None:
    index = alignment.index
    ahead = [clocks.ahead_of(alignment.job, rank) for rank in index.ranks]
    if not any(ahead):
        return
    of_row = np.repeat(np.asarray(ahead, dtype=np.int64), np.diff(index.starts))
    for column in columns:
        column[column > 0] -= of_row[column > 0]


def _ends(ops: Operations, begin: Ints, completed: Ints) -> Ints:
    """When each ended operation ended, as far as its record says, and not before it began."""
    end = np.where(completed > 0, completed, begin)
    # Ended, but the watchdog had not swept it: its end is the time of the dump, and only the duration says more.
    unswept = (ops.column("retired") == 0) & (ops.column("state") == State.COMPLETED)
    if unswept.any():
        duration = np.nan_to_num(ops.columns["duration_ms"].astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        end = np.where(unswept, begin + (np.clip(duration, 0, 1e9) * 1e6).astype(np.int64), end)
    return np.maximum(end, begin)


def _tracks(ops: Operations) -> Ints:
    kind = ops.column("kind")
    peer = np.where(kind == Kind.SEND, ops.column("destination"), ops.column("source")).astype(np.int64)
    peer = np.where(kind == Kind.SEND, 2 * peer + 4, np.where(kind == Kind.RECV, 2 * peer + 5, 0))
    return ids(ops.column("rank"), ops.column("group"), peer)


def _after_the_one_before(begin: Ints, end: Ints, track: Ints, order: Ints) -> Ints:
    """The later of an operation's call and the end of everything before it in its track; `order` is track by track."""
    if not len(order):
        return begin
    first = begin[order]
    until = np.maximum(first, end[order])
    base = int(first.min())
    # In microseconds, so that a month times a million tracks still fits; the tracks lie one above the other.
    width_us = (int(until.max()) - base + 2) // 1000 + 2
    starts = runs(track[order])
    offset = np.repeat(np.arange(len(starts) - 1), np.diff(starts)) * width_us
    reached = np.maximum.accumulate((until - base) // 1000 + offset)
    before = np.append(-1, reached[:-1]) - offset
    free = base + (before + 1) * 1000  # rounded up: not a nanosecond before the end
    moved: Ints = begin.copy()
    moved[order] = np.where((before >= 0) & (free > first), free, first)
    return moved
