"""The operations themselves: pick some, and show them as a table or as JSON lines.

A large job has tens of millions of operations: picking works on columns, and rows are written one after the other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hangscope.diagnosis.evidence.code_lines import user_frame
from hangscope.errors import SettingsError
from hangscope.model import UNKNOWN, Group, Ints, Job, Kind, Operation, State
from hangscope.report.safe_text import safe, whole
from hangscope.report.text_layout import cells, cut, pad, shorten
from hangscope.report.verdict_text import iso, place
from hangscope.text import ranges, size

STATES = ("scheduled", "started", "completed", "unknown", "unfinished")
"""What `state` takes: a rank's own states, and "unfinished" for all but completed."""

_COLUMNS = ("rank", "node", "operation", "group", "state", "size", "dtype", "created (UTC)", "called at")
_WIDEST = {"node": 24, "operation": 40, "group": 28, "dtype": 20}
_RIGHT = frozenset(("rank", "size"))


def select(
    job: Job,
    *,
    ranks: Iterable[int] | None = None,
    group: str | None = None,
    state: str | None = None,
    name: str | None = None,
    last: int | None = None,
) -> Ints:
    """Row numbers that match all that is given, in recorded order; `last` keeps that many of each rank's.

    A rank, group or name that the job does not have is an error that says what there is: an empty answer to a typing
    mistake would look like evidence.
    """
    ops = job.ops
    mask = np.ones(len(ops), dtype=bool)
    if ranks is not None:
        wanted = sorted(set(ranks))
        strangers = [rank for rank in wanted if rank not in job.ranks]
        if strangers:
            raise SettingsError(
                f"the job has no rank {ranges(strangers)}", hint=f"its ranks are {ranges(job.ranks, limit=12)}"
            )
        mask &= np.isin(ops.column("rank"), wanted)
    if group is not None:
        mask &= np.isin(ops.column("group"), [g.index for g in _groups(job, group)])
    if state is not None:
        mask &= _state_mask(ops.column("state"), state)
    if name is not None:
        mask &= np.isin(ops.column("name"), _names(job, name))
    rows = np.flatnonzero(mask)
    return rows if last is None else _last(rows, ops.column("rank")[rows], last)


def table(job: Job, rows: Ints, width: int) -> Iterator[str]:
    """The rows as text lines, heading first, each at most `width` columns."""
    labels = _labels(job)
    sizes = _sizes(job, rows, labels)
    yield _line({column: column for column in _COLUMNS}, sizes, width)
    for row in rows:
        yield _line(_cells(job, job.ops[int(row)], labels), sizes, width)


def json_lines(job: Job, rows: Ints) -> Iterator[str]:
    """One JSON object a row. Times are whole nanoseconds since the epoch on the clock of the rank's own node."""
    labels = _labels(job)
    for row in rows:
        yield json.dumps(_plain(job, job.ops[int(row)], labels))


# ---- picking ---------------------------------------------------------------------------------------------------------


def _groups(job: Job, wanted: str) -> list[Group]:
    """The groups of that name, description or label; case does not matter."""
    key = wanted.casefold()
    labels = _labels(job)
    found = [g for g in job.groups if key in (t.casefold() for t in (g.name, g.desc, g.label, labels[g.index]))]
    if not found:
        raise SettingsError(f"the job has no group {wanted!r}", hint=f"its groups are {_some(sorted(labels.values()))}")
    return found


def _labels(job: Job) -> dict[int, str]:
    """What to call each group: its label, with its name behind where several share the label, as in ``dp (4)``."""
    shared = Counter(group.label for group in job.groups)
    return {g.index: f"{g.label} ({g.name})" if shared[g.label] > 1 and g.name else g.label for g in job.groups}


def _names(job: Job, wanted: str) -> list[int]:
    names = job.ops.tables.names
    present = [int(i) for i in np.unique(job.ops.column("name"))]
    found = [i for i in present if names[i].casefold() == wanted.casefold()]
    if not found:
        known = sorted({names[i] for i in present if names[i]})
        raise SettingsError(f"no rank recorded an operation named {wanted!r}", hint=f"recorded are {_some(known)}")
    return found


def _some(names: Sequence[str], limit: int = 12) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _state_mask(column: Ints, state: str) -> Any:
    if state == "unfinished":
        return column != State.COMPLETED
    try:
        return column == State[state.upper()]
    except KeyError:
        raise SettingsError(f"unknown state {state!r}", hint=f"states are {', '.join(STATES)}") from None


def _last(rows: Ints, ranks: Ints, count: int) -> Ints:
    """The last `count` rows of each rank. The operations are ordered by rank, so each rank's rows stand together."""
    if not len(rows):
        return rows
    ends = np.append(np.flatnonzero(np.diff(ranks)) + 1, len(rows))
    lengths = np.diff(ends, prepend=0)
    to_end = np.repeat(ends, lengths) - np.arange(len(rows))
    return rows[to_end <= count]


# ---- showing ---------------------------------------------------------------------------------------------------------


def _sizes(job: Job, rows: Ints, labels: dict[int, str]) -> dict[str, int]:
    """Column widths from the distinct values in the selection, so that no row is looked at twice."""
    ops = job.ops
    tables = job.ops.tables
    sizes = {column: len(column) for column in _COLUMNS}

    def widen(column: str, values: Iterable[str]) -> None:
        widest = max((cells(safe(value)) for value in values), default=0)
        sizes[column] = max(sizes[column], min(widest, _WIDEST.get(column, widest)))

    if not len(rows):
        return sizes
    ranks = np.unique(ops.column("rank")[rows])
    longest_seq = max(len(str(int(ops.column("seq")[rows].max()))), len(str(int(ops.column("seq")[rows].min()))))
    names = [tables.name(int(i)) for i in np.unique(ops.column("name")[rows])]
    digits = "9" * len(str(int(ranks.max())))
    widen("rank", [digits])
    widen("node", [job.nodes.get(int(rank), "?") for rank in ranks])
    widen("operation", [f"{name} #{'9' * longest_seq}" for name in names])
    if (ops.column("kind")[rows] != Kind.COLLECTIVE).any():
        widen("operation", [f"send {digits}->{digits}"])
    widen("group", [labels[int(i)] for i in np.unique(ops.column("group")[rows])])
    widen("state", [State(int(i)).name for i in np.unique(ops.column("state")[rows])])
    widen("size", ["1023.9 MiB"])
    widen("dtype", ["/".join(tables.dtypes(int(i))) for i in np.unique(ops.column("in_dtypes")[rows])])
    widen("created (UTC)", ["2026-11-15T02:30:11.204Z"])
    return sizes


def _cells(job: Job, operation: Operation, labels: dict[int, str]) -> dict[str, str]:
    frame = user_frame(operation.frames)
    dtypes = operation.input_dtypes or operation.output_dtypes
    return {
        "rank": str(operation.rank),
        "node": job.nodes.get(operation.rank, "?"),
        "operation": operation.title,
        "group": labels[operation.group.index],
        "state": operation.state.name.lower(),
        "size": "?" if operation.size_bytes is None else size(operation.size_bytes),
        "dtype": "/".join(dict.fromkeys(dtypes)),
        "created (UTC)": iso(operation.created_ns) or "?",
        "called at": "" if frame is None else place(frame),
    }


def _line(values: dict[str, str], sizes: dict[str, int], width: int) -> str:
    parts = []
    for column in _COLUMNS:
        cell = safe(values[column])
        if column != _COLUMNS[-1]:
            cell = shorten(cell, sizes[column])
            cell = " " * (sizes[column] - cells(cell)) + cell if column in _RIGHT else pad(cell, sizes[column])
        parts.append(cell)
    line = "  ".join(parts).rstrip()
    return line if cells(line) <= width else f"{cut(line, width - 1).rstrip()}…"


def _plain(job: Job, operation: Operation, labels: dict[int, str]) -> dict[str, Any]:
    o = operation
    node = job.nodes.get(o.rank)
    return {
        "rank": o.rank,
        "node": None if node is None else whole(node),
        "group": whole(labels[o.group.index]),
        "group_name": whole(o.group.name),
        "kind": o.kind.name.lower(),
        "name": whole(o.name),
        "title": whole(o.title),
        "seq": _known(o.seq),
        "p2p_seq": _known(o.p2p_seq),
        "op_id": _known(o.op_id),
        "record_id": _known(o.record_id),
        "state": o.state.name.lower(),
        "retired": o.retired,
        "created_ns": o.created_ns,
        "started_ns": o.started_ns,
        "completed_ns": o.completed_ns,
        "duration_ms": o.duration_ms,
        "bytes": o.size_bytes,
        "input_shapes": o.input_shapes,
        "output_shapes": o.output_shapes,
        "input_dtypes": [whole(dtype) for dtype in o.input_dtypes],
        "output_dtypes": [whole(dtype) for dtype in o.output_dtypes],
        "source": o.source,
        "destination": o.destination,
        "batch": o.batch,
        "thread": whole(o.thread) or None,
        "timeout_ms": o.timeout_ms,
        "frames": [{"name": whole(f.name), "filename": whole(f.filename), "line": f.line} for f in o.frames],
    }


def _known(number: int) -> int | None:
    return None if number == UNKNOWN else number
