"""Lay the ranks' recordings side by side: the same operation on every member of its group.

Collectives are matched by group and collective sequence number, never by record id, pg id or file order. Several
entries of one rank with the same number are one coalesced call. Point-to-point has its own matching (`p2p.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.model import UNKNOWN, Group, Job, Kind, State

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_ROOTED_OR_RAGGED = {
    # what every member must agree on; None: nothing in the sizes has to agree
    "all_to_all": None,
    "all_to_all_single": None,
    "all_to_allv": None,
    "alltoall": None,
    "alltoall_base": None,
    "gather": "in",
    # NCCL's recorder has the two sides of a scatter the other way round (torch 2.11), and only the root has a list.
    "scatter": "name",
    "all_gather": "out",
    "all_gather_v": None,
    "reduce_scatter": "in",
    "reduce_scatter_v": None,
    "split": None,
    "new_window": None,
}
"""Operations whose sizes may differ between members by design, and the side that may not."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One group's collectives: for each sequence number (ascending) which rank has it, in which row."""

    group: Group
    rows: Ints
    """Representative rows, ordered by sequence number, then rank."""
    seqs: Ints
    """The distinct sequence numbers."""
    starts: Ints
    """Where each sequence number's rows begin in `rows`; one more entry than `seqs`."""
    signatures: Ints
    """What must agree, as an id, for each of `rows`."""

    def rows_at(self, index: int) -> Ints:
        return self.rows[self.starts[index] : self.starts[index + 1]]

    def signatures_at(self, index: int) -> Ints:
        return self.signatures[self.starts[index] : self.starts[index + 1]]

    def index_of(self, seq: int) -> int | None:
        found = int(np.searchsorted(self.seqs, seq))
        return found if found < len(self.seqs) and int(self.seqs[found]) == seq else None


@dataclass(frozen=True, slots=True)
class Alignment:
    """All lanes of a job, and which rows take part in point-to-point."""

    job: Job
    lanes: dict[int, Lane]
    point_to_point: Bools
    """Per row: a send, a receive, or the closing entry of a batch that holds some."""
    unlaunched: Bools
    """Per row: part of a batch that was begun and never closed, so that nothing of it was launched."""
    signature: Ints
    """Per row: an id of what every member must agree on."""
    call: Ints
    """Per row: an id of the call (name, shapes, types, stack) for recognising the same line of code elsewhere."""

    def row_of(self, rank: int, group: int, seq: int) -> int | None:
        """The representative row of one rank at one position, or None."""
        lane = self.lanes.get(group)
        index = None if lane is None else lane.index_of(seq)
        if lane is None or index is None:
            return None
        rows = lane.rows_at(index)
        ranks = self.job.ops.column("rank")[rows]
        place = int(np.searchsorted(ranks, rank))
        return int(rows[place]) if place < len(rows) and int(ranks[place]) == rank else None


def is_guessed(group: Group) -> bool:
    """A group that is known by a local number alone (torch 2.2): different groups may hide behind it."""
    return group.inferred and not group.desc and group.name not in ("", "0")


def align(job: Job) -> Alignment:
    """Sort the collectives of every group by sequence number and give each a signature of what must agree."""
    ops = job.ops
    kind = ops.column("kind")
    rank = ops.column("rank").astype(np.int64)
    group = ops.column("group").astype(np.int64)
    seq = ops.column("seq")
    batch = ops.column("batch").astype(np.int64)

    is_peer = (kind == Kind.SEND) | (kind == Kind.RECV)
    key = rank * (int(batch.max(initial=0)) + 2) + batch
    peer_batches = np.unique(key[is_peer & (batch != UNKNOWN)])
    in_peer_batch = (batch != UNKNOWN) & np.isin(key, peer_batches)
    # A closing entry whose inner entries fell out of the ring: "coalesced" is only ever used for batches with peers
    # or a mix (torch 2.2-2.15), the collective ones carry the collective's name.
    named_coalesced = np.isin(ops.column("name"), [i for i, name in enumerate(ops.tables.names) if name == "coalesced"])
    lone_closing = (kind == Kind.BATCH) & named_coalesced & ~in_peer_batch
    point_to_point = is_peer | ((kind == Kind.BATCH) & in_peer_batch) | lone_closing

    signature = _signatures(job)
    call = _calls(job, signature)

    unlaunched = _open_batches(job, call)
    # A sequence number below 0 could not be known (torch 2.2 and 2.3 count point-to-point on the same scale).
    collective = np.flatnonzero(~point_to_point & ~unlaunched & ~_torn_batches(job) & (seq >= 0))
    lanes: dict[int, Lane] = {}
    if len(collective):
        order = collective[np.lexsort((collective, rank[collective], seq[collective], group[collective]))]
        lanes = {
            int(g): _lane(job.groups[int(g)], rows, rank, seq, kind, signature)
            for g, rows in _split(order, group[order])
        }
    return Alignment(
        job=job, lanes=lanes, point_to_point=point_to_point, unlaunched=unlaunched, signature=signature, call=call
    )


def _torn_batches(job: Job) -> Bools:
    """Rows of the oldest batch of every ring that wrapped: part of it may have been overwritten."""
    ops = job.ops
    found = np.zeros(len(ops), dtype=bool)
    batch, kind = ops.column("batch"), ops.column("kind")
    for rank in job.ranks:
        part = ops.span(rank)
        if part.stop > part.start and job.wrapped(rank):
            if batch[part.start] != UNKNOWN:
                found[part] = batch[part] == batch[part.start]
            elif kind[part.start] == Kind.BATCH:
                found[part.start] = True
    return found


def _open_batches(job: Job, call: Ints) -> Bools:
    """Rows of batches that a rank began as its very last calls and never closed.

    Only the closing entry tells a batch from single calls (torch 2.4-2.15). Where it is missing at the end of a
    recording, a batch number says so, or custom: the same line of code made batches before.
    """
    ops = job.ops
    ranks, batch, kind, group, seq = (ops.column(c) for c in ("rank", "batch", "kind", "group", "seq"))
    p2p_seq, state = ops.column("p2p_seq"), ops.column("state")
    found = np.zeros(len(ops), dtype=bool)
    bounds = np.searchsorted(ranks, np.unique(ranks))
    if not len(ops):
        return found
    for low, high in zip(bounds.tolist(), [*bounds[1:].tolist(), len(ops)], strict=True):
        if high == low or kind[high - 1] == Kind.BATCH or state[high - 1] != State.SCHEDULED:
            continue
        last = high - 1
        part = np.arange(low, high)
        if batch[last] != UNKNOWN:
            mine = part[batch[low:high] == batch[last]]
            if not np.any(kind[mine] == Kind.BATCH):
                found[mine] = True
            continue
        same_line = part[:-1][call[low:last] == call[last]]
        same_line = same_line[(group[same_line] == group[last]) & (state[same_line] == State.COMPLETED)]
        if len(same_line) and np.all(batch[same_line] != UNKNOWN):
            together = (
                (group[low:high] == group[last]) & (seq[low:high] == seq[last]) & (p2p_seq[low:high] == p2p_seq[last])
            )
            found[part[together & (batch[low:high] == UNKNOWN) & (state[low:high] == State.SCHEDULED)]] = True
    return found


def _split(rows: Ints, labels: Ints) -> list[tuple[int, Ints]]:
    """Runs of equal labels, as (label, rows)."""
    cuts = np.flatnonzero(np.diff(labels)) + 1
    return [(int(labels[start]), part) for start, part in zip([0, *cuts.tolist()], np.split(rows, cuts), strict=True)]


def _lane(group: Group, rows: Ints, rank: Ints, seq: Ints, kind: Ints, signature: Ints) -> Lane:
    """Fold entries of one rank with one sequence number (a coalesced call) into one representative row."""
    changed = np.ones(len(rows), dtype=bool)
    changed[1:] = (np.diff(seq[rows]) != 0) | (np.diff(rank[rows]) != 0)
    first = np.flatnonzero(changed)
    last = np.append(first[1:], len(rows)) - 1
    # The closing entry comes last; where there is none (a rank inside the batch) the last inner entry stands for it.
    representative = rows[last]
    position = np.arange(len(rows)) - np.repeat(first, np.diff(np.append(first, len(rows))))
    weight = np.where(kind[rows] == Kind.BATCH, 0, signature[rows] * (2 * position + 1))
    folded = np.add.reduceat(weight, first)
    single = first == last
    folded = np.where(single, signature[representative], folded)
    distinct = np.ones(len(representative), dtype=bool)
    distinct[1:] = np.diff(seq[representative]) != 0
    starts = np.flatnonzero(distinct)
    return Lane(
        group=group,
        rows=representative,
        seqs=seq[representative][starts],
        starts=np.append(starts, len(representative)),
        signatures=folded,
    )


def _signatures(job: Job) -> Ints:
    """Per row an id of what every member must agree on: name, element count and type, where the operation needs it."""
    ops, tables = job.ops, job.ops.tables
    columns = [ops.column(c).astype(np.int64) for c in ("name", "in_shapes", "out_shapes", "in_dtypes", "out_dtypes")]
    combined = columns[0]
    for column in columns[1:]:
        combined = paired(combined, column)
    _, first, inverse = np.unique(combined, return_index=True, return_inverse=True)
    ids: dict[object, int] = {}
    of_distinct = np.empty(len(first), dtype=np.int64)
    for index, row in enumerate(first.tolist()):
        name, in_shapes, out_shapes, in_dtypes, out_dtypes = (int(column[row]) for column in columns)
        text = tables.name(name)
        side = _ROOTED_OR_RAGGED.get(text, "both")
        agreed: tuple[object, ...] = (text,)
        if side in ("both", "in"):
            agreed += (_elements(tables.shapes(in_shapes)), tables.dtypes(in_dtypes))
        if side in ("both", "out"):
            agreed += (_elements(tables.shapes(out_shapes)), tables.dtypes(out_dtypes))
        if side in (None, "name"):
            agreed += ((tables.dtypes(in_dtypes) or tables.dtypes(out_dtypes))[:1],)
        of_distinct[index] = ids.setdefault(agreed, len(ids) + 1)
    signatures: Ints = of_distinct[inverse.reshape(-1)]
    return signatures


def _calls(job: Job, signature: Ints) -> Ints:
    """Per row an id of signature and stack together."""
    return paired(signature, job.ops.column("stack").astype(np.int64))


def paired(a: Ints, b: Ints) -> Ints:
    """Per row a small id of the pair."""
    if not len(a):
        return a
    _, inverse = np.unique(a * (int(b.max()) + 1) + b, return_inverse=True)
    ids: Ints = inverse.reshape(-1).astype(np.int64)
    return ids


def _elements(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Element counts: NCCL does not see shapes, so [4, 4] and [16] agree."""
    return tuple(int(np.prod(shape, dtype=np.int64)) for shape in shapes)


def completed_on_all(alignment: Alignment, group: int) -> tuple[int, Ints] | None:
    """The last sequence number of a group that every member is known to have finished, with its rows."""
    lane = alignment.lanes.get(group)
    if lane is None:
        return None
    job = alignment.job
    state, ranks = job.ops.column("state"), job.ops.column("rank")
    members = set(lane.group.members or ()) or {int(r) for r in np.unique(ranks[lane.rows])}
    recorded = {r for r in members if r in job.dumps}
    for index in range(len(lane.seqs) - 1, -1, -1):
        rows = lane.rows_at(index)
        if not np.all(state[rows] == State.COMPLETED) or len(np.unique(lane.signatures_at(index))) > 1:
            continue  # where members disagree, they finished different operations
        present = {int(r) for r in ranks[rows]}
        # A member whose ring no longer holds this one had long passed it.
        if all(r in present or _is_past(alignment, r, group, int(lane.seqs[index])) for r in recorded):
            return int(lane.seqs[index]), rows
    return None


def _is_past(alignment: Alignment, rank: int, group: int, seq: int) -> bool:
    job = alignment.job
    rows = job.ops.rows(rank=rank, group=group)
    rows = rows[~alignment.point_to_point[rows]]
    return bool(len(rows)) and job.wrapped(rank) and int(job.ops.column("seq")[rows].min()) > seq
