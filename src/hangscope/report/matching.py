"""Which operations of different ranks are one and the same: what the Perfetto trace draws arrows between."""

from __future__ import annotations

import numpy as np

from hangscope.model import Job, Kind
from hangscope.report.spans import Ints, paired


def collectives(job: Job) -> Ints:
    """Rows that stand for a position of their group: collectives with a number, and a batch by its closing entry."""
    ops = job.ops
    kind, seq, batch = ops.column("kind"), ops.column("seq"), ops.column("batch").astype(np.int64)
    peer = (kind == Kind.SEND) | (kind == Kind.RECV)
    found = ~peer & (seq >= 0)
    batched = peer & (batch >= 0)
    if batched.any():
        key = ops.column("rank").astype(np.int64) * (int(batch.max(initial=0)) + 2) + batch
        others = np.flatnonzero(found & (batch >= 0))
        found[others] = ~np.isin(key[others], np.unique(key[batched]))
    # A closing entry whose inner ones fell out of the ring: only batches with peers are called so (torch 2.2-2.15).
    coalesced = [i for i, name in enumerate(ops.tables.names) if name == "coalesced"]
    found &= ~((kind == Kind.BATCH) & np.isin(ops.column("name"), coalesced))
    return np.flatnonzero(found)


def matches(job: Job) -> Ints:
    """Per row the number of the operation that it is a part of, from 1; 0 where it is matched with no other rank's."""
    ops = job.ops
    of = np.zeros(len(ops), dtype=np.int64)
    rows = collectives(job)
    if len(rows):
        of[rows] = 1 + paired(ops.column("group")[rows].astype(np.int64), ops.column("seq")[rows])
    pairs, number = _pairs(job)
    of[pairs] = number + int(of.max(initial=0)) + 1
    count = np.bincount(of)
    alone = count[of] < 2
    of[alone] = 0
    return of


def _pairs(job: Job) -> tuple[Ints, Ints]:
    """Sends and receives by group, peers and order. A ring that lost its beginning has lost count: it is left out."""
    ops = job.ops
    kind = ops.column("kind")
    known = (ops.column("source") >= 0) & (ops.column("destination") >= 0)
    lost = [rank for rank in job.ranks if job.wrapped(rank)]
    rows = np.flatnonzero(((kind == Kind.SEND) | (kind == Kind.RECV)) & known)
    if lost:
        ends = (ops.column("source")[rows], ops.column("destination")[rows])
        rows = rows[~np.isin(ends[0], lost) & ~np.isin(ends[1], lost)]
    if not len(rows):
        return rows, rows
    ends = (ops.column("source")[rows].astype(np.int64), ops.column("destination")[rows].astype(np.int64))
    pair = paired(paired(ends[0], ends[1]), ops.column("group")[rows].astype(np.int64))
    side = paired(pair, kind[rows].astype(np.int64))
    order = np.argsort(side, kind="stable")
    first = np.searchsorted(side[order], side[order])
    ordinal = np.empty(len(rows), dtype=np.int64)
    ordinal[order] = np.arange(len(rows)) - first
    return rows, paired(pair, ordinal)
