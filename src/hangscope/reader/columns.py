"""Joins the columns of all dumps: local ids become ids of shared tables, numbers within a group become global ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hangscope.model import COLUMNS, UNKNOWN, Gap, Kind, Tables
from hangscope.reader.choose import Owned
from hangscope.reader.groups import Joined
from hangscope.reader.raw import Columns, RawDump


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
    for index, (rank, raw) in enumerate(used):
        own = raw.columns
        size = sizes[index]
        names = _ids(tables.add_name, (name.operation for name in raw.names))
        threads = _ids(tables.add_name, raw.threads)
        shapes = _ids(tables.add_shapes, raw.shapes)
        dtypes = _ids(tables.add_dtypes, raw.dtypes)
        stacks = _ids(tables.add_stack, raw.stacks)
        groups = np.array(joined.local[index], dtype="i4")
        source, destination = _peers(rank, raw, joined.orders[index], joined.local[index], unknown_peers)
        batch = own["batch"]
        columns = {
            **{name: own[name] for name in COLUMNS if name in own},
            "rank": np.full(size, rank, dtype="i4"),
            "group": groups[own["group"]] if size else own["group"],
            "name": names[own["name"]] if size else own["name"],
            "thread": threads[own["thread"]],
            "in_shapes": shapes[own["in_shapes"]],
            "out_shapes": shapes[own["out_shapes"]],
            "in_dtypes": dtypes[own["in_dtypes"]],
            "out_dtypes": dtypes[own["out_dtypes"]],
            "stack": stacks[own["stack"]],
            "source": source,
            "destination": destination,
            "batch": np.where(batch == UNKNOWN, UNKNOWN, batch + batches[rank]),
        }
        batches[rank] += int(batch.max()) + 1 if size else 0
        for name in COLUMNS:
            whole[name][start : start + size] = columns[name]
        start += size
        if consume:
            raw.columns.clear()
    for group in sorted(unknown_peers):
        label = joined.groups[group].label
        gaps.append(Gap(f"peers of point-to-point calls in {label}", "no file says which ranks its numbers stand for"))
    if len({rank for rank, _ in used}) < len(used):
        _put_in_order(whole, sizes)
    return whole, tables


def _ids(add: Any, values: Iterable[Any]) -> Any:
    return np.array([add(value) for value in values], dtype="i4")


def _peers(
    rank: int,
    raw: RawDump,
    orders: Sequence[tuple[int, ...] | None],
    local: Sequence[int],
    unknown: set[int],
) -> tuple[Any, Any]:
    """Global source and destination of every send and receive; whoever recorded it is one of the two."""
    kind, group, peer = raw.columns["kind"], raw.columns["group"], raw.columns["peer"]
    source = np.full(len(raw), UNKNOWN, dtype="i4")
    destination = np.full(len(raw), UNKNOWN, dtype="i4")
    calls = (kind == Kind.SEND) | (kind == Kind.RECV)
    for slot in np.unique(group[calls]).tolist():
        rows = np.flatnonzero(calls & (group == slot))
        order = orders[slot]
        numbers = peer[rows]
        others = np.full(len(rows), UNKNOWN, dtype="i4")
        inside = (numbers >= 0) & (numbers < len(order or ()))
        if order is not None:
            others[inside] = np.array(order, dtype="i4")[numbers[inside]]
        if (numbers[~inside] != UNKNOWN).any():
            unknown.add(local[slot])
        sends = kind[rows] == Kind.SEND
        source[rows] = np.where(sends, rank, others)
        destination[rows] = np.where(sends, others, rank)
    return source, destination


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
