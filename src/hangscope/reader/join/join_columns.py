"""Joins the columns of all dumps: local ids become ids of shared tables, numbers within a group become global ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hangscope.model import COLUMNS, UNKNOWN, Frame, Gap, Kind, Tables
from hangscope.reader.dumps.raw_dump import Columns, RawDump
from hangscope.reader.join.pick_dumps import Owned
from hangscope.reader.join.same_groups import Joined

_SEND = int(Kind.SEND)
_RECV = int(Kind.RECV)


def join_columns(used: Sequence[Owned], joined: Joined, gaps: list[Gap], *, consume: bool) -> tuple[Columns, Tables]:
    """The columns of all dumps in rank order, with their ids turned into those of shared tables.

    With `consume` each dump's own columns are given up as soon as they are copied: a large job is never there twice.
    """
    tables = Tables()
    sizes = [len(raw) for _, raw in used]
    whole: Columns = {name: np.empty(sum(sizes), dtype=kind) for name, kind in COLUMNS.items()}
    start = 0
    unknown_peers: set[int] = set()
    batches: dict[int, int] = defaultdict(int)
    stack_ids: dict[int, int] = {}
    for index, (rank, raw) in enumerate(used):
        own = raw.columns
        size = sizes[index]
        part = {name: column[start : start + size] for name, column in whole.items()}
        for name in _UNCHANGED:
            part[name][:] = own[name]
        part["rank"][:] = rank
        for name, ids in (
            ("group", np.array(joined.local[index], dtype="i4")),
            ("name", _ids(tables.add_name, (name.operation for name in raw.names))),
            ("thread", _ids(tables.add_name, raw.threads)),
            ("stack", _stack_ids(tables, raw.stacks, stack_ids)),
        ):
            _translate(ids, own[name], part[name])
        shapes = _ids(tables.add_shapes, raw.shapes)
        dtypes = _ids(tables.add_dtypes, raw.dtypes)
        for side in ("in", "out"):
            _translate(shapes, own[f"{side}_shapes"], part[f"{side}_shapes"])
            _translate(dtypes, own[f"{side}_dtypes"], part[f"{side}_dtypes"])
        _peers(rank, raw, joined.orders[index], joined.local[index], unknown_peers, part)
        batch = own["batch"]
        part["batch"][:] = np.where(batch == UNKNOWN, UNKNOWN, batch + batches[rank]) if batches[rank] else batch
        batches[rank] += int(batch.max()) + 1 if size else 0
        start += size
        if consume:
            raw.columns.clear()
    for group in sorted(unknown_peers):
        label = joined.groups[group].label
        gaps.append(Gap(f"peers of point-to-point calls in {label}", "no file says which ranks its numbers refer to"))
    if len({rank for rank, _ in used}) < len(used):
        _put_in_order(whole, sizes)
    return whole, tables


_UNCHANGED = (
    "kind",
    "seq",
    "p2p_seq",
    "op_id",
    "record_id",
    "state",
    "retired",
    "created_ns",
    "started_ns",
    "completed_ns",
    "duration_ms",
    "size_bytes",
    "timeout_ms",
)


def _ids(add: Any, values: Iterable[Any]) -> Any:
    return np.array([add(value) for value in values], dtype="i4")


def _stack_ids(tables: Tables, stacks: Sequence[tuple[Frame, ...]], known: dict[int, int]) -> Any:
    """As `_ids`. The ranks of a job share their stacks, so most are known by being the same object."""
    ids = np.empty(len(stacks), dtype="i4")
    for number, stack in enumerate(stacks):
        found = known.get(id(stack))
        if found is None:
            found = known[id(stack)] = tables.add_stack(stack)
        ids[number] = found
    return ids


def _translate(ids: Any, own: Any, out: Any) -> None:
    """Own ids as ids of the shared tables, written in place."""
    if len(own):
        np.take(ids, own, out=out, mode="clip")  # they are all within; any other mode makes a copy first


def _peers(
    rank: int,
    raw: RawDump,
    orders: Sequence[tuple[int, ...] | None],
    local: Sequence[int],
    unknown: set[int],
    part: Columns,
) -> None:
    """Global source and destination of every send and receive; whoever recorded it is one of the two."""
    kind = raw.columns["kind"]
    source = part["source"]
    destination = part["destination"]
    source[:] = UNKNOWN
    destination[:] = UNKNOWN
    calls = np.flatnonzero((kind == _SEND) | (kind == _RECV))
    if not len(calls):
        return
    groups = raw.columns["group"][calls]
    for slot in np.flatnonzero(np.bincount(groups)).tolist():
        rows = calls[groups == slot]
        order = orders[slot]
        numbers = raw.columns["peer"][rows]
        others = np.full(len(rows), UNKNOWN, dtype="i4")
        inside = (numbers >= 0) & (numbers < len(order or ()))
        if order is not None:
            others[inside] = np.array(order, dtype="i4")[numbers[inside]]
        if (numbers[~inside] != UNKNOWN).any():
            unknown.add(local[slot])
        sends = kind[rows] == _SEND
        source[rows] = np.where(sends, rank, others)
        destination[rows] = np.where(sends, others, rank)


def _put_in_order(columns: Columns, sizes: Sequence[int]) -> None:
    """Where a rank has dumps of two backends, their entries follow each other as they were created."""
    created = columns["created_ns"].copy()
    start = 0
    for size in sizes:
        # Within one dump the recorded order stands, also where the clock stepped back.
        created[start : start + size] = np.maximum.accumulate(created[start : start + size])
        start += size
    order = np.lexsort((np.arange(len(created)), created, columns["rank"]))
    for name, column in columns.items():
        columns[name] = column[order]
