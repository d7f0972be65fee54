"""Operations that read "completed" and are not: what the ranks' own logs say of them.

Gloo up to torch 2.14 retires an entry when its work ends, however it ends, so a dump that was written after the
exception shows the rank inside of nothing. The traceback tells which call raised: the newest entry that was made from
the same lines. On NCCL a watchdog that aborts the communicator ends all that is in flight, and a dump written after
that has it as completed; the watchdog's own line names what timed out.
"""

from dataclasses import replace

import numpy as np

from hangscope.diagnosis.align.column_tools import grouped, rows_of
from hangscope.diagnosis.align.op_index import Index
from hangscope.model import UNKNOWN, Frame, Job, Kind, Operations, State

# Calls that Gloo does not record: nothing in the dump is the operation that raised.
_UNRECORDED = frozenset(("send", "recv", "isend", "irecv", "batch_isend_irecv", "monitored_barrier"))


def corrected(job: Job, index: Index | None = None) -> Job:
    """The job with such operations unfinished again; the same object where there is none."""
    index = index or Index(job.ops)
    if job.reason == "stall":
        return job  # captured in a stall, dumps are older than any exception
    timed_out = _timed_out(job, index)
    rows = [*_gave_up(job, index), *timed_out]
    if not rows:
        return job
    columns = dict(job.ops.columns)
    for name, value in (("state", State.SCHEDULED), ("retired", 0), ("completed_ns", UNKNOWN)):
        columns[name] = columns[name].copy()
        columns[name][rows] = value
    columns["state"][timed_out] = State.UNKNOWN  # whether its kernel started, nobody knows any more
    return replace(job, ops=Operations(columns, job.ops.tables, job.groups))


def _timed_out(job: Job, index: Index) -> list[int]:
    """What a rank's watchdog reported as timed out and its dump as completed, unless a peer went past it."""
    ops = job.ops
    found = set()
    called = grouped((g.name, g.index) for g in job.groups if g.is_called(g.name))
    for report in job.facts.watchdog:
        if report.kind != "timeout" or report.seq is None or report.rank not in job.dumps:
            continue
        named = called.get(report.group_name or "0", [])
        rows = rows_of(ops, report.rank, seq=report.seq)
        peers = np.isin(ops.column("kind")[rows], (Kind.SEND, Kind.RECV))
        rows = rows[np.isin(ops.column("group")[rows], named) & ~peers]
        done = len(rows) == 1 and ops.column("state")[rows[0]] == State.COMPLETED
        # If somebody completed a later one of the group, that one finished it, and an exception came later.
        if done and index.furthest(State.COMPLETED)[ops.column("group")[rows[0]]] <= report.seq:
            found.add(int(rows[0]))
    return sorted(found)


def _gave_up(job: Job, index: Index) -> list[int]:
    """The rows of what Gloo ranks gave up on and their dumps have as finished."""
    kinds = ("timeout", "async_error")
    last = {report.rank: report.frames for report in job.facts.watchdog if report.kind in kinds and report.frames}
    rows: list[int] = []
    for rank, frames in sorted(last.items()):
        dumps = job.dumps.get(rank, ())
        row = _raised(index, rank, frames) if all(d.backend == "gloo" and d.complete for d in dumps) else None
        rows += [] if row is None else [row]
    return rows


def _raised(index: Index, rank: int, frames: tuple[Frame, ...]) -> int | None:
    """The entry whose work raised; None where the dump shows something unfinished anyway, or does not have it."""
    ops = index.ops
    rows = ops.rows(rank=rank)[::-1].tolist()
    stack = ops.column("stack")
    if not rows or (ops.column("state")[rows] != State.COMPLETED).any() or frames[0].name in _UNRECORDED:
        return None
    same = next((row for row in rows if _same_call(ops.tables.stack(int(stack[row])), frames)), None)
    # A wait of its own, for work that was launched elsewhere: the newest, if somebody is not known to have joined it.
    row = rows[0] if same is None else same
    # If somebody launched a later one of the group, that one finished it, and an exception of the others came later.
    passed = index.furthest()[ops.column("group")[row]] > ops.column("seq")[row]
    return None if passed or (same is None and _all_joined(index, row)) else row


def _same_call(made: tuple[Frame, ...], raised: tuple[Frame, ...]) -> bool:
    """Whether an entry was made by the call that raised: one function, which waits a few lines below its launch."""
    if not made or (made[0].name, made[0].filename) != (raised[0].name, raised[0].filename):
        return False
    length = min(len(made), len(raised))
    return length > 1 and made[1:length] == raised[1:length]


def _all_joined(index: Index, row: int) -> bool:
    operation = index.ops[row]
    if operation.group.members is None or operation.seq == UNKNOWN:
        return True
    here = index.ops.column("rank")[index.rows_at([operation.group.index], operation.seq)].tolist()
    return {*operation.group.members, *operation.group.open} <= set(here)
