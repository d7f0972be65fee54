"""Makes the backends and versions say the same thing in the same way: states, coalesced batches, sequence numbers.

Works on the columns of one dump, in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from hangscope.model import UNKNOWN, Ints, Kind, State
from hangscope.model.profiling_names import Name
from hangscope.reader.dumps.raw_dump import Columns

Bools = npt.NDArray[np.bool_]

RETIRED_MEANS_DONE = frozenset(("gloo",))
"""Backends that never set a state: every entry stays "scheduled", and a finished one is retired (Gloo, 2.8 to 2.15)."""

NEVER_MARKED_DONE = frozenset(("xccl", "c10d"))
"""Backends that mark no end: Intel's (torch-xpu-ops 2.15), and the hook of torch's nightlies of 2026, which retires an
entry when it is issued."""

NEVER_STARTED = frozenset(("nccl2",))
"""Backends whose entries go from scheduled to completed (nccl2, 2.15), so that "started" cannot be seen."""

COUNT_OP_IDS = frozenset(("gloo", "nccl2"))
"""Backends whose `pg_status` counts op ids: point-to-point calls too, recorded or not (Gloo 2.13, nccl2 2.15)."""

# As plain numbers: looking up a member of an enum costs more than comparing a short column with it.
_COLLECTIVE = int(Kind.COLLECTIVE)
_SEND = int(Kind.SEND)
_RECV = int(Kind.RECV)
_BATCH = int(Kind.BATCH)
_SCHEDULED = int(State.SCHEDULED)
STARTED = int(State.STARTED)
COMPLETED = int(State.COMPLETED)
_P2P = (_SEND, _RECV)
_MOST = 1 << 62
_FEW_NAMES = 500
"""Real dumps have some dozens; what is remembered between dumps has to be bounded."""
_FEW_ENTRIES = 4000


def add_kinds(columns: Columns, names: Sequence[Name]) -> None:
    """Adds `kind`, `own` and `peer` from the names; a closing entry is known by its name and by having no tensors."""
    name = columns["name"]
    closes, always, parsed = _by_name(tuple(names)) if len(names) <= _FEW_NAMES else _by_name.__wrapped__(tuple(names))
    for column, values in parsed.items():
        columns[column] = values[name] if len(names) else values
    if closes.any():
        empty = (columns["in_shapes"] == 0) & (columns["out_shapes"] == 0)
        columns["kind"][always[name] | (closes[name] & empty)] = _BATCH
        # Which bytes went through a batch is in its own entries, where the version records them at all (2.8+).
        columns["size_bytes"][columns["kind"] == _BATCH] = UNKNOWN


@lru_cache(maxsize=256)
def _by_name(names: tuple[Name, ...]) -> tuple[Bools, Bools, Columns]:
    """Which names may close a batch, which always do, and the columns by name: the ranks of a job share their names."""
    closes = np.array([entry.closes_batch for entry in names], dtype=bool)
    always = np.array([entry.operation == "coalesced" for entry in names], dtype=bool)
    widths = {"kind": "i1", "own": "i4", "peer": "i4"}
    return closes, always, {c: np.array([getattr(entry, c) for entry in names], dtype=w) for c, w in widths.items()}


def add_batches(columns: Columns, *, old_sequence: bool) -> None:
    """Numbers the coalesced batches, and gives each inner entry the state of the entry that closes its batch.

    An inner entry is recorded as scheduled for ever, even when its batch is done. A batch without its closing entry is
    one that the rank is still filling. Adds `batch` and `launches`.
    """
    # The ranks of one role have the same calls: thousands of dumps have some dozens of such columns between them.
    batched = _batched if len(columns["seq"]) <= _FEW_ENTRIES else _batched.__wrapped__
    given = (np.ascontiguousarray(columns[name], dtype=dtype).tobytes() for name, dtype in _BATCHED_BY.items())
    found = batched(old_sequence, *given)
    columns.update({name: column.copy() for name, column in found.items()})


_BATCHED_BY = {"group": "i4", "seq": "i8", "p2p_seq": "i8", "kind": "i1", "state": "i1"}


@lru_cache(maxsize=64)
def _batched(old_sequence: bool, *given: bytes) -> Columns:
    """`batch`, `launches` and the new `state`, from the bytes of the columns that decide them."""
    columns: Columns = {
        name: np.frombuffer(data, dtype=dtype) for (name, dtype), data in zip(_BATCHED_BY.items(), given, strict=True)
    }
    kind = columns["kind"]
    state = columns["state"].copy()
    run = _old_runs(columns) if old_sequence else _runs(columns)
    launches = (kind == _COLLECTIVE) | (kind == _BATCH)
    count = int(run.max(initial=UNKNOWN)) + 1
    found = {"batch": run, "launches": launches, "state": state}
    if not count:
        return found
    rows = np.flatnonzero(run != UNKNOWN)
    closes = kind[rows] == _BATCH
    closing = np.full(count, UNKNOWN, dtype="i8")
    closing[run[rows[closes]]] = rows[closes]
    inner = rows[~closes]
    closer = closing[run[inner]]
    takes = (closer != UNKNOWN) & (state[inner] == _SCHEDULED)
    state[inner[takes]] = state[closer[takes]]
    # One batch takes one number: of the collectives where it holds any, which its closing entry then stands for.
    transfers = np.zeros(count, dtype=bool)
    transfers[run[inner[(kind[inner] == _SEND) | (kind[inner] == _RECV)]]] = True
    launches[closing[(closing != UNKNOWN) & transfers]] = False
    first = np.zeros(len(kind), dtype=bool)
    first[inner[np.unique(run[inner], return_index=True)[1]]] = True
    launches[inner[(closer != UNKNOWN) | ~first[inner]]] = False
    return found


def _runs(columns: Columns) -> Ints:
    """For each entry the number of its batch, or -1. Entries of one group with the same collective and point-to-point
    numbers were launched together."""
    group, seq, p2p, kind = (columns[name] for name in ("group", "seq", "p2p_seq", "kind"))
    run = np.full(len(seq), UNKNOWN, dtype="i8")
    if not len(seq):
        return run
    order, starts = _together(group, seq, p2p)
    if len(starts) == len(seq) and not (kind == _BATCH).any():
        return run
    lengths = np.diff(np.concatenate((starts, [len(order)])))
    closes = kind[order] == _BATCH
    last_closing = np.maximum.reduceat(np.where(closes, order, UNKNOWN), starts)
    waiting = np.logical_and.reduceat(columns["state"][order] == _SCHEDULED, starts)
    # Without a closing entry, two entries of one number are a batch only if neither shows a state of its own.
    wanted = (last_closing != UNKNOWN) | ((lengths > 1) & waiting & (seq[order[starts]] != UNKNOWN))
    numbers = np.full(len(starts), UNKNOWN, dtype="i8")
    numbers[wanted] = np.argsort(np.argsort(order[starts][wanted]))
    run[order] = np.repeat(numbers, lengths)
    behind = np.repeat(last_closing, lengths)
    run[order[(behind != UNKNOWN) & ((order > behind) | (closes & (order < behind)))]] = UNKNOWN
    return run


def _together(*columns: Ints) -> tuple[Ints, Ints]:
    """Rows in the order of all these columns, and where in it rows begin that are alike. One sort if numbers allow."""
    lows = [int(column.min()) for column in columns]
    spans = [int(column.max()) - low + 1 for column, low in zip(columns, lows, strict=True)]
    if prod(spans) < _MOST:
        key = np.zeros(len(columns[0]), dtype="i8")
        for column, low, span in zip(columns, lows, spans, strict=True):
            key = key * span + (column - low)
        order = np.argsort(key, kind="stable")
        changes = np.diff(key[order]) != 0
    else:
        order = np.lexsort(columns[::-1])
        changes = np.zeros(len(order) - 1, dtype=bool)
        for column in columns:
            changes |= np.diff(column[order]) != 0
    return order, np.concatenate(([0], np.flatnonzero(changes) + 1))


def _old_runs(columns: Columns) -> Ints:
    """Before torch 2.4 one counter serves both: the calls right before a closing entry, of one number, are its own."""
    group, seq, kind, state = (columns[name].tolist() for name in ("group", "seq", "kind", "state"))
    run = np.full(len(seq), UNKNOWN, dtype="i8")
    calls: dict[int, list[int]] = {}
    number = 0
    for row, g in enumerate(group):
        before = calls.setdefault(g, [])
        if kind[row] in _P2P and state[row] == _SCHEDULED:
            if before and seq[before[-1]] != seq[row]:
                before.clear()
            before.append(row)
            continue
        if kind[row] == _BATCH:
            run[[*before, row]] = number
            number += 1
        before.clear()
    for before in calls.values():
        if len(before) > 1:
            run[before] = number
            number += 1
    return run


def complete_the_retired(columns: Columns) -> None:
    """For sources that never set a state: retired entries are completed, the others are under way."""
    columns["state"][columns["retired"] == 1] = COMPLETED


def shows_no_completion(columns: Columns) -> bool:
    """Whether no entry shows that it came to its end."""
    return bool(
        len(columns["state"]) and (columns["state"] != COMPLETED).all() and (columns["completed_ns"] == UNKNOWN).all()
    )


def complete_the_overtaken(columns: Columns) -> None:
    """For sources that never mark an end: an operation is over where a later one of its group was launched."""
    groups = columns["group"]
    _, from_the_end = np.unique(groups[::-1], return_index=True)
    overtaken = np.ones(len(groups), dtype=bool)
    overtaken[len(groups) - 1 - from_the_end] = False
    columns["state"][overtaken] = COMPLETED


def shows_no_progress(columns: Columns) -> bool:
    """Whether no entry shows any progress in its state or times, although some are retired."""
    return bool(
        len(columns["state"])
        and columns["state"][0] == _SCHEDULED
        and (columns["state"] == _SCHEDULED).all()
        and (columns["started_ns"] == UNKNOWN).all()
        and (columns["completed_ns"] == UNKNOWN).all()
        and (columns["retired"] == 1).any()
    )


def split_counters(columns: Columns, *, whole: bool) -> bool:
    """Takes apart the one counter of torch 2.2 and 2.3 that collectives and point-to-point calls share.

    Where the ring is whole, both are counted again from its start, as newer versions would have numbered them. Where
    it is not, the numbers of a group that has both mean something else on every rank and become -1; returns whether
    some did.
    """
    group, kind, batch, launches = (columns[name] for name in ("group", "kind", "batch", "launches"))
    seq = columns["seq"]
    p2p_seq = columns["p2p_seq"]
    p2p_seq[:] = 0
    lost = False
    for g in np.unique(group[np.isin(kind, _P2P)]).tolist():
        rows = np.flatnonzero(group == g)
        if not whole:
            calls_only = launches[rows] == 0
            p2p_seq[rows] = np.where(calls_only & calls_only.all(), seq[rows], UNKNOWN)
            seq[rows] = UNKNOWN
            lost = lost or not calls_only.all()
            continue
        collectives = calls = 0
        last_batch = UNKNOWN
        for row in rows.tolist():
            if launches[row]:
                collectives += 1
            elif kind[row] in _P2P and (batch[row] == UNKNOWN or batch[row] != last_batch):
                calls += 1
                last_batch = int(batch[row])
            seq[row] = collectives
            p2p_seq[row] = calls
    return lost


def count_per_group(columns: Columns, *, whole: bool) -> bool:
    """Numbers collectives within each group where the recorder counts over all groups of the process (torchcomms).

    Where the ring lost entries of several groups, the numbers cannot be known and become -1; returns whether they did.
    """
    group = columns["group"]
    launches = columns["launches"]
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
