"""Which rows are sends and receives, and which are of a batch that is not whole: those have no position in their group.

A coalesced batch is several entries; only the one that closes it tells it from single calls (torch 2.4-2.15).
"""

import numpy as np

from hangscope.diagnosis.align.column_tools import Bools, Ints, ids, rows_of
from hangscope.diagnosis.align.op_index import Index
from hangscope.model import UNKNOWN, Job, Kind, Operations, State


def point_to_point(ops: Operations, index: Index) -> Bools:
    """Per row whether it is a send, a receive, or the closing entry of a batch that holds some."""
    kind = ops.column("kind")
    batch = ops.column("batch")
    is_peer = (kind == Kind.SEND) | (kind == Kind.RECV)
    batched = np.flatnonzero(batch != UNKNOWN)
    # A closing entry whose inner entries fell out of the ring: "coalesced" is only ever used for batches with peers
    # or a mix (torch 2.2-2.15), the collective ones carry the collective's name.
    closes: Bools = index.named("coalesced".__eq__) & (kind == Kind.BATCH)
    if len(batched):
        number = ids(ops.column("rank")[batched], batch[batched])
        with_peers = np.zeros(int(number.max()) + 1, dtype=bool)
        with_peers[number[is_peer[batched]]] = True
        closes[batched] |= with_peers[number] & (kind[batched] == Kind.BATCH)
    found: Bools = is_peer | closes
    return found


def torn_batches(job: Job, index: Index) -> Ints:
    """Rows of the oldest batch of every ring that wrapped: part of it may have been overwritten."""
    kind = job.ops.column("kind")
    batch = job.ops.column("batch")
    oldest = index.starts[:-1]
    in_a_batch = (kind[oldest] == Kind.BATCH) | (batch[oldest] != UNKNOWN)
    found: list[Ints] = []
    for row in oldest[in_a_batch].tolist():
        rank = int(job.ops.column("rank")[row])
        if not job.wrapped(rank):
            continue
        whole = batch[row] != UNKNOWN
        found.append(rows_of(job.ops, rank, batch=batch[row]) if whole else np.asarray([row]))
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def open_batches(ops: Operations, call: Ints, index: Index) -> Bools:
    """Per row whether it is of a batch that its rank began as its very last calls and never closed.

    Where the closing entry is missing at the end of a recording, a batch number says so, or habit: the same line of
    code made batches before.
    """
    kind = ops.column("kind")
    found = np.zeros(len(ops), dtype=bool)
    if not len(ops):
        return found
    lasts = index.starts[1:] - 1
    batches = index.largest(ops.column("batch")) != UNKNOWN  # without any, neither says anything
    open_now = batches & (kind[lasts] != Kind.BATCH) & (ops.column("state")[lasts] == State.SCHEDULED)
    for last in lasts[open_now].tolist():
        found[_open_batch(ops, call, last)] = True
    return found


def _open_batch(ops: Operations, call: Ints, last: int) -> Ints:
    """The rows of the batch that a rank's last row is part of, if it is of one that was not closed."""
    nothing = np.empty(0, dtype=np.int64)
    batch = ops.column("batch")
    rank = int(ops.column("rank")[last])
    if batch[last] != UNKNOWN:
        mine = rows_of(ops, rank, batch=batch[last])
        return nothing if np.any(ops.column("kind")[mine] == Kind.BATCH) else mine
    group = ops.column("group")[last]
    same_line = rows_of(ops, rank, group=group, state=State.COMPLETED)
    same_line = same_line[call[same_line] == call[last]]
    if not len(same_line) or np.any(batch[same_line] == UNKNOWN):
        return nothing
    together = {"group": group, "seq": ops.column("seq")[last], "p2p_seq": ops.column("p2p_seq")[last]}
    return rows_of(ops, rank, batch=UNKNOWN, state=State.SCHEDULED, **together)
