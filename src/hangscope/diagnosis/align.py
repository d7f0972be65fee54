"""Lay the ranks' recordings side by side: the same operation on every member of its group.

Collectives are matched by group and collective sequence number, never by record id, pg id or file order. Several
entries of one rank with the same number are one coalesced call. Point-to-point has its own matching (`p2p.py`).
"""

import re
from dataclasses import dataclass
from functools import cache

import numpy as np

from hangscope.columns import Bools, Ints, ids, rows_of, runs
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


def symmetric_names(ops: Operations) -> list[int]:
    """The ids of the names of such operations, for whole columns at once."""
    return [index for index, name in enumerate(ops.tables.names) if is_symmetric(name)]


@dataclass(frozen=True, slots=True)
class Lane:
    """One group's collectives: for each sequence number (ascending) which rank has it, in which row.

    `rows` are representative ones, ordered by sequence number, then rank; `starts` says where those of each of the
    distinct `seqs` begin, and has one more entry. `signatures` are ids of what must agree, one for each of `rows`.
    """

    group: Group
    rows: Ints
    seqs: Ints
    starts: Ints
    signatures: Ints

    def rows_at(self, index: int) -> Ints:
        return self.rows[self.starts[index] : self.starts[index + 1]]

    def signatures_at(self, index: int) -> Ints:
        return self.signatures[self.starts[index] : self.starts[index + 1]]

    def index_of(self, seq: int) -> int | None:
        found = int(np.searchsorted(self.seqs, seq))
        return found if found < len(self.seqs) and int(self.seqs[found]) == seq else None


@dataclass(frozen=True, slots=True)
class Alignment:
    """All lanes of a job, and per row of its operations:

    `point_to_point`: a send, a receive, or the closing entry of a batch that holds some. `unlaunched`: part of a batch
    that was begun and never closed, so that nothing of it was launched. `signature`: an id of what every member must
    agree on. `call`: an id of name, sizes, types and stack, for recognising the same line of code elsewhere.
    """

    job: Job
    lanes: dict[int, Lane]
    point_to_point: Bools
    unlaunched: Bools
    signature: Ints
    call: Ints

    def row_of(self, rank: int, group: int, seq: int) -> int | None:
        """The representative row of one rank at one position, or None."""
        lane = self.lanes.get(group)
        index = None if lane is None else lane.index_of(seq)
        if lane is None or index is None:
            return None
        rows = lane.rows_at(index)
        found = rows[self.job.ops.column("rank")[rows] == rank]
        return int(found[0]) if len(found) else None


def members_not_recorded(group: Group) -> bool:
    """A group that is known by a local number alone (torch 2.2): different groups may hide behind it."""
    return group.members_seen and not group.desc and group.name not in ("", "0")


def align(job: Job) -> Alignment:
    """Sort the collectives of every group by sequence number and give each a signature of what must agree."""
    ops = job.ops
    group, seq = ops.column("group"), ops.column("seq")
    point_to_point = _point_to_point(ops)
    signature = _signatures(ops)
    call = ids(signature, ops.column("stack"))
    unlaunched = _open_batches(ops, call)
    # A sequence number below 0 could not be known (torch 2.2 and 2.3 count point-to-point on the same scale).
    rows = np.flatnonzero(~point_to_point & ~unlaunched & ~_torn_batches(job) & (seq >= 0))
    rows = rows[np.lexsort((seq[rows], group[rows]))]
    of_groups = np.split(rows, runs(group[rows])[1:-1]) if len(rows) else []
    lanes = {int(group[part[0]]): _lane(job.groups[int(group[part[0]])], ops, part, signature) for part in of_groups}
    return Alignment(job, lanes, point_to_point, unlaunched, signature, call)


def _point_to_point(ops: Operations) -> Bools:
    kind, batch = ops.column("kind"), ops.column("batch").astype(np.int64)
    is_peer = (kind == Kind.SEND) | (kind == Kind.RECV)
    key = ops.column("rank").astype(np.int64) * (int(batch.max(initial=0)) + 2) + batch
    with_peers = (batch != UNKNOWN) & np.isin(key, np.unique(key[is_peer & (batch != UNKNOWN)]))
    # A closing entry whose inner entries fell out of the ring: "coalesced" is only ever used for batches with peers
    # or a mix (torch 2.2-2.15), the collective ones carry the collective's name.
    named = np.isin(ops.column("name"), [i for i, name in enumerate(ops.tables.names) if name == "coalesced"])
    found: Bools = is_peer | ((kind == Kind.BATCH) & (with_peers | named))
    return found


def _torn_batches(job: Job) -> Bools:
    """Rows of the oldest batch of every ring that wrapped: part of it may have been overwritten."""
    ops = job.ops
    found = np.zeros(len(ops), dtype=bool)
    batch, kind = ops.column("batch"), ops.column("kind")
    for rank in filter(job.wrapped, job.ranks):
        rows = ops.rows(rank=rank)
        if len(rows) and batch[rows[0]] != UNKNOWN:
            found[rows] = batch[rows] == batch[rows[0]]
        elif len(rows):
            found[rows[0]] = kind[rows[0]] == Kind.BATCH
    return found


def _open_batches(ops: Operations, call: Ints) -> Bools:
    """Rows of batches that a rank began as its very last calls and never closed.

    Only the closing entry tells a batch from single calls (torch 2.4-2.15). Where it is missing at the end of a
    recording, a batch number says so, or habit: the same line of code made batches before.
    """
    batch, kind, group, seq, p2p_seq = (ops.column(c) for c in ("batch", "kind", "group", "seq", "p2p_seq"))
    found = np.zeros(len(ops), dtype=bool)
    for rank in np.unique(ops.column("rank")).tolist():
        last = ops.span(rank).stop - 1
        if kind[last] == Kind.BATCH or ops.column("state")[last] != State.SCHEDULED:
            continue
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


def _lane(group: Group, ops: Operations, rows: Ints, signature: Ints) -> Lane:
    """Fold entries of one rank with one sequence number (a coalesced call) into one representative row."""
    seq = ops.column("seq")
    calls = runs(seq[rows], ops.column("rank")[rows])
    first, last = calls[:-1], calls[1:] - 1
    position = np.arange(len(rows)) - np.repeat(first, np.diff(calls))
    weight = np.where(ops.column("kind")[rows] == Kind.BATCH, 0, signature[rows] * (2 * position + 1))
    # The closing entry comes last; where there is none (a rank inside the batch) the last inner entry stands for it.
    folded = np.where(first == last, signature[rows[last]], np.add.reduceat(weight, first))
    starts = runs(seq[rows[last]])
    return Lane(group, rows[last], seq[rows[last]][starts[:-1]], starts, folded)


def _signatures(ops: Operations) -> Ints:
    """Per row an id of what every member must agree on: name, element count and type, where the operation needs it."""
    columns = [ops.column(c) for c in ("name", "in_shapes", "out_shapes", "in_dtypes", "out_dtypes")]
    _, first, inverse = np.unique(ids(*columns), return_index=True, return_inverse=True)
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
    signatures: Ints = of_distinct[inverse.reshape(-1)]
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
    recorded = set(lane.group.members or ranks[lane.rows].tolist()) & set(job.dumps)
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
