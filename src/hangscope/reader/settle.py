"""Makes the backends and versions say the same thing in the same way: states, coalesced batches, sequence numbers.

Works on the columns of one dump, in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hangscope.model import UNKNOWN, Ints, Kind, State
from hangscope.reader.names import Name
from hangscope.reader.raw import Columns

RETIRED_MEANS_DONE = frozenset(("gloo",))
"""Backends that never set a state: every entry stays "scheduled", and a finished one is retired (Gloo, 2.8 to 2.15)."""

NEVER_STARTED = frozenset(("nccl2",))
"""Backends whose entries go from scheduled to completed (nccl2, 2.15), so that "started" cannot be seen."""

COUNT_OP_IDS = frozenset(("gloo", "nccl2"))
"""Backends whose `pg_status` counts op ids: point-to-point calls too, recorded or not (Gloo 2.13, nccl2 2.15)."""

_P2P = (Kind.SEND, Kind.RECV)


def kinds(columns: Columns, names: Sequence[Name]) -> None:
    """Adds `kind`, `own` and `peer` from the names; a closing entry is told by its name and by having no tensors."""
    name = columns["name"]
    closes = np.array([entry.closes_batch for entry in names], dtype=bool)
    always = np.array([entry.operation == "coalesced" for entry in names], dtype=bool)
    for column in ("kind", "own", "peer"):
        values = np.array([getattr(entry, column) for entry in names], dtype="i8")
        columns[column] = values[name] if len(names) else np.empty(0, "i8")
    if closes.any():
        empty = (columns["in_shapes"] == 0) & (columns["out_shapes"] == 0)
        columns["kind"][always[name] | (closes[name] & empty)] = Kind.BATCH
        # Which bytes went through a batch is in its own entries, where the version records them at all (2.8+).
        columns["size_bytes"][columns["kind"] == Kind.BATCH] = UNKNOWN


def batches(columns: Columns, *, old_sequence: bool) -> None:
    """Numbers the coalesced batches, and gives each inner entry the state of the entry that closes its batch.

    An inner entry is recorded as scheduled for ever, even when its batch is done. A batch without its closing entry is
    one that the rank is still filling. Adds `batch` and `launches`.
    """
    kind, state = columns["kind"], columns["state"]
    batch = np.full(len(kind), UNKNOWN, dtype="i8")
    launches = (kind == Kind.COLLECTIVE) | (kind == Kind.BATCH)
    found = _old_batches(columns) if old_sequence else _batches(columns)
    for number, (inner, closing) in enumerate(found):
        batch[inner] = number
        if closing is not None:
            batch[closing] = number
            state[inner] = np.where(state[inner] == State.SCHEDULED, state[closing], state[inner])
            launches[closing] = not np.isin(kind[inner], _P2P).any()
        # A batch of collectives takes one number for all of them.
        launches[inner[1:] if closing is None else inner] = False
    columns["batch"] = batch
    columns["launches"] = launches.astype("i8")


def _batches(columns: Columns) -> Iterator[tuple[Ints, int | None]]:
    """Entries of one group with the same collective and point-to-point numbers were launched together."""
    group, seq, p2p, kind = (columns[name] for name in ("group", "seq", "p2p_seq", "kind"))
    if not len(seq):
        return
    order = np.lexsort((np.arange(len(seq)), p2p, seq, group))
    changes = np.flatnonzero((np.diff(group[order]) != 0) | (np.diff(seq[order]) != 0) | (np.diff(p2p[order]) != 0)) + 1
    starts = np.concatenate(([0], changes))
    lengths = np.diff(np.concatenate((starts, [len(order)])))
    closes = kind[order] == Kind.BATCH
    wanted = (lengths > 1) | closes[starts]
    runs = zip(starts[wanted].tolist(), lengths[wanted].tolist(), strict=True)
    for start, length in sorted(runs, key=lambda run: int(order[run[0]])):
        rows = np.sort(order[start : start + length])
        closing = rows[kind[rows] == Kind.BATCH]
        inner = rows[kind[rows] != Kind.BATCH]
        if len(closing):
            inner = inner[inner < closing[-1]]
            yield inner, int(closing[-1])
        elif (columns["state"][inner] == State.SCHEDULED).all() and seq[inner[0]] != UNKNOWN:
            yield inner, None


def _old_batches(columns: Columns) -> Iterator[tuple[Ints, int | None]]:
    """Before torch 2.4 one counter serves both: the calls right before a closing entry, of one number, are its own."""
    group, seq, kind, state = (columns[name].tolist() for name in ("group", "seq", "kind", "state"))
    open_runs: dict[int, list[int]] = {}
    for row, g in enumerate(group):
        run = open_runs.setdefault(g, [])
        if kind[row] in _P2P and state[row] == State.SCHEDULED:
            if run and seq[run[-1]] != seq[row]:
                run.clear()
            run.append(row)
        else:
            if kind[row] == Kind.BATCH:
                yield np.array(run, dtype="i8"), row
            run.clear()
    for run in open_runs.values():
        if len(run) > 1:
            yield np.array(run, dtype="i8"), None


def retired_is_done(columns: Columns) -> None:
    """For sources that never set a state: retired entries are completed, the others are under way."""
    columns["state"][columns["retired"] == 1] = State.COMPLETED


def no_states(columns: Columns) -> bool:
    """Whether no entry shows any progress in its state or times, although some are retired."""
    return bool(
        len(columns["state"])
        and (columns["state"] == State.SCHEDULED).all()
        and (columns["started_ns"] == UNKNOWN).all()
        and (columns["completed_ns"] == UNKNOWN).all()
        and (columns["retired"] == 1).any()
    )


def split_counters(columns: Columns, *, whole: bool) -> bool:
    """Takes apart the one counter of torch 2.2 and 2.3 that collectives and point-to-point calls share.

    Where the ring is whole, both are counted again from its start, as newer versions would have numbered them. Where
    it is not, the numbers stay as they are. Returns whether some could not be taken apart.
    """
    group, kind = columns["group"], columns["kind"]
    columns["p2p_seq"][:] = 0
    mixed = np.unique(group[np.isin(kind, _P2P)])
    if not whole:
        rows = np.isin(kind, _P2P)
        columns["p2p_seq"][rows] = columns["seq"][rows]
        return len(mixed) > 0
    batch, launches = columns["batch"], columns["launches"]
    for g in mixed.tolist():
        collectives = calls = 0
        last_batch = UNKNOWN
        for row in np.flatnonzero(group == g).tolist():
            if launches[row]:
                collectives += 1
            elif kind[row] in _P2P and (batch[row] == UNKNOWN or batch[row] != last_batch):
                calls += 1
                last_batch = int(batch[row])
            columns["seq"][row] = collectives
            columns["p2p_seq"][row] = calls
    return False


def count_per_group(columns: Columns, *, whole: bool) -> bool:
    """Numbers collectives within each group where the recorder counts over all groups of the process (torchcomms).

    Where the ring lost entries of several groups, the numbers cannot be known and become -1; returns whether they did.
    """
    group, launches = columns["group"], columns["launches"]
    groups = np.unique(group)
    if not whole and len(groups) > 1:
        columns["seq"][:] = UNKNOWN
        return True
    for g in groups.tolist():
        rows = np.flatnonzero(group == g)
        counted = np.cumsum(launches[rows])
        if whole:
            columns["seq"][rows] = counted
    return False
