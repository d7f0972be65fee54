"""Lay the ranks' recordings side by side: the same operation on every member of its group.

Collectives are matched by group and collective sequence number, never by record id, pg id or file order. Several
entries of one rank with the same number are one coalesced call. Point-to-point has its own matching (`p2p.py`).
"""

import re
from functools import cache

import numpy as np

from hangscope.diagnosis.align.column_tools import Bools, Ints, rows_of
from hangscope.diagnosis.align.lanes import lanes_of
from hangscope.diagnosis.align.op_index import Index, ids
from hangscope.diagnosis.align.side_by_side import Alignment
from hangscope.model import UNKNOWN, Group, Job, Kind, Operations, State

_FREE = ("all_to_all", "all_to_all_single", "all_to_allv", "alltoall", "alltoall_base", "all_gather_v")
# Operations whose sizes may differ between members by design, and the sides that may not.
_AGREED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*_FREE, "reduce_scatter_v", "split", "new_window"), ()),
    # NCCL's recorder has the two sides of a scatter the other way round (torch 2.11), and only the root has a list.
    "scatter": (),
    "gather": ("in",),
    "all_gather": ("out",),
    "reduce_scatter": ("in",),
}
_SYMMETRIC = re.compile(r"all_?reduce|all_?gather|reduce_scatter|barrier", re.IGNORECASE)


@cache
def is_symmetric(name: str) -> bool:
    """Whether nobody finishes the operation before everybody has joined it (NCCL and Gloo), coalesced or not."""
    return _SYMMETRIC.search(name) is not None


def members_not_recorded(group: Group) -> bool:
    """A group that is known by a local number alone (torch 2.2): different groups may hide behind it."""
    return group.members_seen and not group.desc and group.name not in ("", "0")


def align(job: Job, index: Index) -> Alignment:
    """Sort the collectives of every group by sequence number and give each a signature of what must agree."""
    ops = job.ops
    point_to_point = _point_to_point(ops, index)
    signature = _signatures(ops)
    call = ids(signature, ops.column("stack"))
    unlaunched = _open_batches(ops, call, index)
    # A sequence number below 0 could not be known (torch 2.2 and 2.3 count point-to-point on the same scale).
    left_out = point_to_point | unlaunched
    left_out[_torn_batches(job, index)] = True
    rows = index.by_group[~left_out[index.by_group]] if left_out.any() else index.by_group
    lanes = lanes_of(ops, job.groups, rows, signature)
    return Alignment(job, index, lanes, point_to_point, unlaunched, signature, call, index.named(is_symmetric))


def _point_to_point(ops: Operations, index: Index) -> Bools:
    kind, batch = ops.column("kind"), ops.column("batch")
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


def _torn_batches(job: Job, index: Index) -> Ints:
    """Rows of the oldest batch of every ring that wrapped: part of it may have been overwritten."""
    batch, kind = job.ops.column("batch"), job.ops.column("kind")
    firsts = index.starts[:-1]
    torn = firsts[(kind[firsts] == Kind.BATCH) | (batch[firsts] != UNKNOWN)].tolist()
    owners = [(row, int(job.ops.column("rank")[row])) for row in torn]
    found = [
        rows_of(job.ops, rank, batch=batch[row]) if batch[row] != UNKNOWN else np.asarray([row])
        for row, rank in owners
        if job.wrapped(rank)
    ]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _open_batches(ops: Operations, call: Ints, index: Index) -> Bools:
    """Rows of batches that a rank began as its very last calls and never closed.

    Only the closing entry tells a batch from single calls (torch 2.4-2.15). Where it is missing at the end of a
    recording, a batch number says so, or habit: the same line of code made batches before.
    """
    batch, kind, group, seq, p2p_seq = (ops.column(c) for c in ("batch", "kind", "group", "seq", "p2p_seq"))
    found = np.zeros(len(ops), dtype=bool)
    lasts = index.starts[1:] - 1
    batches = index.largest(batch) != UNKNOWN  # without any, neither says anything
    open_now = batches & (kind[lasts] != Kind.BATCH) & (ops.column("state")[lasts] == State.SCHEDULED)
    for last in lasts[open_now].tolist() if len(ops) else ():
        rank = int(ops.column("rank")[last])
        if batch[last] != UNKNOWN:
            mine = rows_of(ops, rank, batch=batch[last])
            found[mine] = not np.any(kind[mine] == Kind.BATCH)
            continue
        same_line = rows_of(ops, rank, group=group[last], state=State.COMPLETED)
        same_line = same_line[call[same_line] == call[last]]
        if len(same_line) and np.all(batch[same_line] != UNKNOWN):
            together = {"group": group[last], "seq": seq[last], "p2p_seq": p2p_seq[last]}
            found[rows_of(ops, rank, batch=UNKNOWN, state=State.SCHEDULED, **together)] = True
    return found


def _signatures(ops: Operations) -> Ints:
    """Per row an id of what every member must agree on: name, element count and type, where the operation needs it."""
    columns = [ops.column(c) for c in ("name", "in_shapes", "out_shapes", "in_dtypes", "out_dtypes")]
    distinct = ids(*columns)
    first = np.empty(int(distinct.max(initial=-1)) + 1, dtype=np.int64)
    first[distinct] = np.arange(len(distinct))
    known: dict[object, int] = {}
    of_distinct = np.empty(len(first), dtype=np.int64)
    for index, row in enumerate(first.tolist()):
        op = ops[row]
        sides = {
            "in": (elements(op.input_shapes), op.input_dtypes),
            "out": (elements(op.output_shapes), op.output_dtypes),
        }
        agreed = tuple(sides[side] for side in _AGREED.get(op.name, ("in", "out")))
        of_distinct[index] = known.setdefault(
            (op.name, agreed or (op.input_dtypes or op.output_dtypes)[:1]), len(known) + 1
        )
    signatures: Ints = of_distinct[distinct]
    return signatures


def elements(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Element counts: NCCL does not see shapes, so [4, 4] and [16] agree."""
    return tuple(int(np.prod(shape, dtype=np.int64)) for shape in shapes)


def completed_on_all(alignment: Alignment, group: int) -> tuple[int, Ints] | None:
    """The last sequence number of a group that every member is known to have finished, with its rows."""
    lane, job = alignment.lanes.get(group), alignment.job
    if lane is None:
        return None
    state, ranks = job.ops.column("state"), job.ops.column("rank")
    recorded = set(lane.group.members or ranks[lane.rows].tolist()) & job.dumps.keys()
    for index in range(len(lane.seqs) - 1, -1, -1):
        rows, seq = lane.rows_at(index), int(lane.seqs[index])
        if not np.all(state[rows] == State.COMPLETED) or len(np.unique(lane.signatures_at(index))) > 1:
            continue  # where members disagree, they finished different operations
        # A member whose ring no longer holds this one had long passed it.
        if all(_is_past(alignment, r, group, seq) for r in recorded - set(ranks[rows].tolist())):
            return seq, rows
    return None


def _is_past(alignment: Alignment, rank: int, group: int, seq: int) -> bool:
    rows = rows_of(alignment.job.ops, rank, group=group)
    seqs = alignment.job.ops.column("seq")[rows[~alignment.point_to_point[rows]]]
    return bool(len(seqs)) and alignment.job.wrapped(rank) and int(seqs.min()) > seq
