"""The timeline: what every rank did when, on one clock, up to the hang.

All ranks of a job of up to a thousand have a row; of a larger one those that matter and one of every node, as far as
they go. Of each rank the last operations are kept, as many as the page has room for. The page says what it left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hangscope.diagnosis.align.column_tools import Ints, ids
from hangscope.diagnosis.evidence.code_lines import user_frame
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.model import Job, Kind, State
from hangscope.report.op_times import OpTimes
from hangscope.report.page.moments import Moments
from hangscope.report.page.packed_numbers import pack
from hangscope.report.page.page_text import SHORT, code_line, shown
from hangscope.report.rank_strip import Letters
from hangscope.text import plural, size

_RANKS = 1024
_OPERATIONS = 90_000
_FEWEST = 24
_UNIT_NS = 1000
"""Times are whole microseconds from the hang, unless the recording is too long for that."""
_LEAST_NS = 500_000_000
"""Less than this is not drawn at first: ends are known to 100 ms only."""
_VIEW = 14
"""So many operations of a rank before the hang are in view at first."""

# Bits of a bar.
UNFINISHED = 1
HUNG = 2
"""Of the hung operation."""
QUEUED = 4
"""Behind another one that has not ended."""
STARTED = 8
"""Its GPU began."""


def timeline(diagnosis: Diagnosis, times: OpTimes, moments: Moments, letters: Letters) -> dict[str, Any]:
    """The rows, the bars as columns, and what they are called."""
    job = times.job
    ranks = _chosen(diagnosis, job, letters)
    room = max(_OPERATIONS // max(len(ranks), 1), _FEWEST)
    rows, counts, cut = _kept(times, ranks, room)
    zero = moments.zero_ns or 0
    end = moments.end_ns if moments.end_ns is not None else zero
    unit = _unit(times, rows, zero, end)
    begin = (times.begin_ns[rows] - zero) // unit
    until = np.where(times.unfinished[rows], end, times.end_ns[rows])
    length = np.maximum((until - times.begin_ns[rows]) // unit, 0)
    calls, call = _calls(job, rows)
    names = _names(calls, call)
    for entry in calls:
        entry.append(names.index(_kind(entry)))
    # Begins count from the one before: small numbers pack well.
    return {
        "rows": [_row(job, letters, rank) for rank in ranks],
        "counts": counts,
        "begin": pack(np.diff(begin, prepend=0)),
        "length": pack(length),
        "call": pack(call),
        "seq": pack(np.diff(job.ops.column("seq")[rows], prepend=0)),
        "bits": pack(_bits(times, rows, moments)),
        "calls": calls,
        "names": names,
        "unit_us": unit / 1000,
        "zero_ms": zero // 1_000_000,
        "zero_text": moments.zero_text,
        "hang": bool(diagnosis.hang),
        "end": int((end - zero) // unit),
        "deviation": None if moments.deviation_ns is None else int((moments.deviation_ns - zero) // unit),
        "deviation_text": moments.deviation_text,
        "view": _view(begin, counts, int((end - zero) // unit), _LEAST_NS // unit, hang=diagnosis.hang),
        "said": _said(job, len(ranks), room if cut else None),
        "clocks": _clocks(times),
    }


def _chosen(diagnosis: Diagnosis, job: Job, letters: Letters) -> list[int]:
    """Those at fault first, then those in the hung operation, then the rest by node and rank."""

    members = () if diagnosis.operation is None else diagnosis.operation.state_by_rank

    def weight(rank: int) -> tuple[bool, bool, int, int]:
        if letters.by_rank.get(rank, ".") in "X><-":
            return False, False, 0, rank
        return True, rank not in members, homes[job.nodes.get(rank, "")], rank

    homes: dict[str, int] = {}
    for rank in job.ranks:
        homes.setdefault(job.nodes.get(rank, ""), len(homes))
    ordered = sorted(job.ranks, key=weight)
    if len(ordered) <= _RANKS:
        return ordered
    telling = [rank for rank in ordered if letters.by_rank.get(rank, ".") in "X><-"][: _RANKS // 4]
    inside = [rank for rank in ordered if rank in members]
    first: dict[str, int] = {}
    for rank in job.ranks:
        first.setdefault(job.nodes.get(rank, f"rank {rank}"), rank)
    chosen = dict.fromkeys([*telling, *inside[: _RANKS // 4], *first.values(), *ordered])
    return sorted(list(chosen)[:_RANKS], key=weight)


def _row(job: Job, letters: Letters, rank: int) -> list[Any]:
    """[rank, node, role, what stands in the row where nothing is recorded]."""
    return [rank, shown(job.nodes.get(rank, ""), SHORT), letters.by_rank.get(rank, "?"), int(rank not in job.dumps)]


def _kept(times: OpTimes, ranks: list[int], room: int) -> tuple[Ints, list[int], bool]:
    """The rows of the last operations of every rank, oldest first, and how many each rank has."""
    ops = times.job.ops
    inner = (ops.column("batch") >= 0) & (ops.column("kind") != Kind.BATCH)
    drawn = times.known & ~inner
    parts: list[Ints] = [np.empty(0, dtype=np.int64)]
    counts: list[int] = []
    cut = False
    for rank in ranks:
        part = ops.span(rank)
        mine = part.start + np.flatnonzero(drawn[part])
        cut = cut or len(mine) > room
        mine = mine[-room:]
        parts.append(mine[np.argsort(times.begin_ns[mine], kind="stable")])
        counts.append(len(mine))
    return np.concatenate(parts), counts, cut


def _unit(times: OpTimes, rows: Ints, zero: int, end: int) -> int:
    far = max(int(np.abs(times.begin_ns[rows] - zero).max(initial=0)), abs(end - zero))
    unit = _UNIT_NS
    while far // unit > 2**31 - 2:
        unit *= 10
    return unit


def _calls(job: Job, rows: Ints) -> tuple[list[list[Any]], Ints]:
    """The distinct calls [name, group, size, type, line, function, has a peer], and which one each bar is."""
    ops = job.ops
    tables = ops.tables
    names = ("name", "group", "size_bytes", "in_dtypes", "stack", "source", "destination", "kind")
    if not len(rows):
        return [], np.empty(0, dtype=np.int64)
    columns = [ops.column(name)[rows] for name in names]
    _, first, index = np.unique(ids(*columns), return_index=True, return_inverse=True)
    # In the order of their first bar, which does not depend on the order in which files were read.
    order = np.argsort(first)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    lines: dict[int, tuple[str, str]] = {}
    labels = group_labels(job)
    calls: list[list[Any]] = []
    for row in rows[first[order]].tolist():
        stack = int(ops.column("stack")[row])
        if stack not in lines:
            frames = tables.stack(stack)
            frame = user_frame(frames) or (frames[0] if frames else None)
            lines[stack] = ("", "") if frame is None else (code_line(frame), shown(frame.name, SHORT))
        count = int(ops.column("size_bytes")[row])
        kind = int(ops.column("kind")[row])
        name = ops[row].title if kind in (Kind.SEND, Kind.RECV) else tables.name(int(ops.column("name")[row]))
        calls.append(
            [
                shown(name, SHORT),
                labels[int(ops.column("group")[row])],
                "" if count < 0 else size(count),
                shown("/".join(tables.dtypes(int(ops.column("in_dtypes")[row]))[:2]), SHORT),
                *lines[stack],
                int(kind in (Kind.SEND, Kind.RECV)),
            ]
        )
    return calls, place[index.reshape(-1)]


def _kind(call: list[Any]) -> str:
    """What a bar's colour stands for: sends and receives without their peers."""
    return str(call[0]).split(" ", 1)[0]


def _names(calls: list[list[Any]], call: Ints) -> list[str]:
    """The kinds of operations, the most frequent first."""
    counts: dict[str, int] = {}
    for entry, count in zip(calls, np.bincount(call, minlength=len(calls)).tolist(), strict=True):
        counts[_kind(entry)] = counts.get(_kind(entry), 0) + count
    return sorted(counts, key=lambda name: (-counts[name], name))


def group_labels(job: Job) -> list[str]:
    """What each group is called: its description, with its name where several share one."""
    seen: dict[str, int] = {}
    for group in job.groups:
        seen[group.label] = seen.get(group.label, 0) + 1
    return [
        f"{shown(group.label, 30)} ({shown(group.name, 12)})" if seen[group.label] > 1 else shown(group.label, SHORT)
        for group in job.groups
    ]


def _bits(times: OpTimes, rows: Ints, moments: Moments) -> Ints:
    ops = times.job.ops
    unfinished = times.unfinished[rows]
    rank = ops.column("rank")[rows].astype(np.int64)
    bits = np.where(unfinished, UNFINISHED, 0) | np.where(np.isin(rows, moments.hung), HUNG, 0)
    bits |= np.where(unfinished & (ops.column("state")[rows] == State.STARTED), STARTED, 0)
    waiting = np.flatnonzero(unfinished)
    if len(waiting):
        order = waiting[np.lexsort((times.begin_ns[rows[waiting]], rank[waiting]))]
        later = np.zeros(len(order), dtype=bool)
        later[1:] = np.diff(rank[order]) == 0
        behind = order[later]
        bits[behind] |= np.where(bits[behind] & HUNG, 0, QUEUED)
    return bits.astype(np.int64)


def _view(begin: Ints, counts: list[int], end: int, least: int, *, hang: bool) -> list[int]:
    """What is in view at first: some operations before the hang, and about as much of the wait."""
    if not len(begin):
        return [-1000, max(end, 1000)]
    starts = np.cumsum([0, *counts[:-1]])
    lows = []
    for start, count in zip(starts.tolist(), counts, strict=True):
        mine = begin[start : start + count]
        mine = mine[mine < 0]
        if len(mine):
            lows.append(int(mine[max(len(mine) - _VIEW, 0)]))
    low = int(np.median(lows)) if lows else int(begin.min())
    low = min(low, max(-least, int(begin.min())), -1)
    high = max(min(end, int(-low * 0.9)), int(-low * 0.35)) if hang else end
    return [int(low * 1.04), max(high, int(-low * 0.08))]


def _said(job: Job, rows: int, room: int | None) -> str:
    parts = []
    if rows < len(job.ranks):
        parts.append(f"{rows:,} of {len(job.ranks):,} ranks have a row: those that the verdict names, and one per node")
    if room is not None:
        parts.append(f"the last {room:,} operations of every rank")
    return "; ".join(parts)


def _clocks(times: OpTimes) -> str:
    job = times.job
    if len(set(job.nodes.values())) < 2 and len(job.nodes) == len(job.ranks):
        return "one node, one clock"
    if not times.clocks.compared:
        return "clocks of different nodes could not be compared and are shown as recorded"
    moved = {name: ns for name, ns in times.clocks.ahead_ns.items() if ns}
    seen = plural(times.clocks.compared, "collective")
    if not moved:
        return f"the nodes' clocks agree as far as {seen} can tell (100 ms)"
    most = max(abs(ns) for ns in moved.values()) / 1e6
    return f"clocks of {plural(len(moved), 'node')} moved by up to {most:,.0f} ms, by {seen}"
