"""Dumps that were not written in this hang: by the times of the recordings, the ranks' own logs, and the numbers.

Each function says of which ranks that is, and why. A dump that is another rank's is found here, too.
"""

from bisect import bisect
from dataclasses import dataclass
from heapq import nlargest
from itertools import accumulate

import numpy as np

from hangscope.diagnosis.align.agreement import PEER_CALLS
from hangscope.diagnosis.align.column_tools import grouped
from hangscope.diagnosis.align.op_index import Index
from hangscope.diagnosis.evidence.ends_apart import needs_all
from hangscope.model import UNKNOWN, Dump, Job, State, WatchdogReport
from hangscope.text import duration

# Where no collective is shared: that long between one dump's end and the others' beginning is another attempt.
_PAUSE_S = 60.0
_FAR = 1 << 62
# More calls ahead than a rank could have added by mistake (see divergence.py).
_FURTHER = 8

Span = tuple[int, int]
"""From when to when a dump was recorded, in nanoseconds."""


def recorded_spans(job: Job, index: Index) -> dict[int, Span]:
    """From when to when each dump was recorded, where it says so."""
    created, started, completed = (job.ops.column(name) for name in ("created_ns", "started_ns", "completed_ns"))
    first = index.by_rank(index.smallest(np.where(created > 0, created, _FAR)))
    last = index.by_rank(np.maximum.reduce([index.largest(column) for column in (created, started, completed)]))
    return {rank: (first[rank], last[rank]) for rank in job.dumps if first.get(rank, _FAR) < _FAR}


# ---- nothing shared: only the times of the recordings ----------------------------------------------------------------


def in_another_time(job: Job, index: Index, judged: set[int]) -> dict[int, str]:
    """Dumps that end long before those of most ranks begin (or the reverse), and do not lead up to them."""
    spans = {rank: span for rank, span in recorded_spans(job, index).items() if rank not in judged}
    clusters = _clusters(spans)
    if len(clusters) < 2:
        return {}
    main = max(reversed(clusters), key=len)
    first = min(spans[rank][0] for rank in main)
    last = max(spans[rank][1] for rank in main)
    reached = _reached(index, main)
    found: dict[int, str] = {}
    for rank in (rank for ranks in clusters if ranks is not main for rank in ranks):
        begin, end = spans[rank]
        if spans[rank] > spans[main[0]]:
            found[rank] = _apart_by(begin - last, "after the other dumps end")
        elif not _leads_up_to(job, rank, main, reached):
            found[rank] = _apart_by(first - end, "before the other dumps begin")
    return found


def _apart_by(pause_ns: int, when: str) -> str:
    return f"its recording is {duration(max(pause_ns, 0) / 1e9)} {when}"


def _clusters(spans: dict[int, Span]) -> list[list[int]]:
    """Ranks whose recordings follow each other without a long pause, together; the earliest first."""
    clusters: list[list[int]] = []
    until = 0
    for rank in sorted(spans, key=lambda rank: spans[rank]):
        begin, end = spans[rank]
        if not clusters or begin - until > _PAUSE_S * 1e9:
            clusters.append([])
            until = 0
        clusters[-1].append(rank)
        until = max(until, end)
    return clusters


@dataclass(frozen=True, slots=True)
class _Reached:
    """Of some ranks the smallest number that they recorded in a group, and the largest that one completed."""

    oldest: int
    completed: int


def _reached(index: Index, ranks: list[int]) -> dict[int, _Reached]:
    """By group."""
    ops = index.ops
    rows = np.flatnonzero(np.isin(ops.column("rank"), ranks) & (ops.column("seq") >= 0))
    group, seq, state = (ops.column(name)[rows] for name in ("group", "seq", "state"))
    done = state == State.COMPLETED
    oldest = np.full(int(group.max(initial=-1)) + 1, _FAR)
    np.minimum.at(oldest, group, seq)
    completed = np.zeros(len(oldest), dtype=np.int64)
    np.maximum.at(completed, group[done], seq[done])
    return {g: _Reached(int(oldest[g]), int(completed[g])) for g in np.flatnonzero(oldest < _FAR).tolist()}


def _leads_up_to(job: Job, rank: int, others: list[int], reached: dict[int, _Reached]) -> bool:
    """Whether the others go on where this recording stops, and completed nothing beyond it that needs the rank.

    A rank that hung long ago looks so, where the others' rings have wrapped since.
    """
    part = job.ops.span(rank)
    group = job.ops.column("group")[part]
    seq = job.ops.column("seq")[part]
    shared = [g for g in np.unique(group[seq >= 0]).tolist() if g in reached]
    for g in shared:
        last = int(seq[group == g].max())
        if reached[g].oldest < last or reached[g].completed > last:
            return False
    return bool(shared) or any(job.wrapped(other) for other in others)


# ---- the rank's own log, and its own name ----------------------------------------------------------------------------


def older_than_their_logs(job: Job, index: Index) -> dict[int, str]:
    """Dumps that end before what the rank's own watchdog says it launched. A job that hangs launches nothing more, so
    they were not written in this hang. What hangscope captured itself may well be older than the watchdog's line."""
    if job.reason is not None:
        return {}
    found: dict[int, str] = {}
    named = grouped((group.name, group.index) for group in job.groups if group.is_called(group.name))
    for report in job.facts.watchdog:
        if report.seq is None or report.group_name is None or not _names_a_position(job, report):
            continue
        last = _last_number(job, report.rank, named.get(report.group_name, []))
        if 0 <= last < report.seq - 1:
            found[report.rank] = f"its log says that #{report.seq} timed out, and its dump ends with #{last} there"
    if len(found) * 2 > len(job.dumps):
        found.update(_written_together(recorded_spans(job, index), found))
    return found


def _names_a_position(job: Job, report: WatchdogReport) -> bool:
    """Whether a line says which collective timed out, of a group that all of the rank's dumps name alike."""
    dumps = job.dumps.get(report.rank, ())
    known = report.operation is not None and report.operation not in PEER_CALLS
    return report.kind == "timeout" and known and bool(dumps) and all(_speaks_of_groups(dump) for dump in dumps)


def _last_number(job: Job, rank: int, groups: list[int]) -> int:
    part = job.ops.span(rank)
    here = np.isin(job.ops.column("group")[part], groups)
    return int(job.ops.column("seq")[part][here].max(initial=UNKNOWN))


def _written_together(spans: dict[int, Span], older: dict[int, str]) -> dict[int, str]:
    """Dumps that were written together with older ones are as old."""
    old = sorted(spans[rank] for rank in older if rank in spans)
    until = list(accumulate((last for _, last in old), max))
    found: dict[int, str] = {}
    for rank in spans.keys() - older.keys():
        begun = bisect(old, (spans[rank][1], _FAR))
        if begun and spans[rank][0] <= until[begun - 1]:
            found[rank] = "it was written together with dumps that are older than their ranks' logs"
    return found


def _speaks_of_groups(dump: Dump) -> bool:
    """Whether it is whole and names its groups as the log does. torch 2.2, whose dumps have no version, does not."""
    return dump.complete and dump.role == "dump" and dump.backend == "nccl" and dump.records > 0 and bool(dump.version)


def copies(job: Job, index: Index) -> dict[int, int]:
    """Ranks whose recording is that of another rank, call for call and moment for moment: whose it is, nobody knows."""
    created = job.ops.column("created_ns")
    starts = index.starts
    lengths = np.diff(starts)
    stamped = np.flatnonzero((lengths > 2) & (index.smallest(created) > 0)).tolist()
    # Few recordings are as long, and begin and end at the same moments: only those are compared.
    ends = ((int(lengths[i]), int(created[starts[i]]), int(created[starts[i + 1] - 1])) for i in stamped)
    near = grouped(zip(ends, (index.ranks[i] for i in stamped), strict=True))
    found: dict[int, int] = {}
    for ranks in (ranks for ranks in near.values() if len(ranks) > 1):
        for same in grouped((_times(job, rank), rank) for rank in ranks).values():
            found.update({rank: next(other for other in same if other != rank) for rank in same if len(same) > 1})
    return found


def _times(job: Job, rank: int) -> bytes:
    part = job.ops.span(rank)
    names = ("created_ns", "started_ns", "completed_ns", "duration_ms")
    return b"".join(job.ops.columns[name][part].tobytes() for name in names)


# ---- numbers that cannot be ------------------------------------------------------------------------------------------


def further_than_possible(job: Job, index: Index, without: set[int]) -> dict[int, str]:
    """A rank that alone completed collectives which need everybody and which nobody else ever launched."""
    seq = job.ops.column("seq")
    counts = needs_all(index)
    pairs = index.pairs
    launched = pairs.largest(seq, counts)
    completed = pairs.largest(seq, counts & (job.ops.column("state") == State.COMPLETED))
    whole = {rank for rank, dumps in job.dumps.items() if all(dump.complete for dump in dumps)}
    found: dict[int, str] = {}
    for group, members in sorted(pairs.of_group.items()):
        here = {rank: pair for rank, pair in members if rank not in without and launched[pair] >= 0}
        others = len(whole & here.keys())
        if len(job.groups[group].members or ()) < 3 or others < 3:
            continue
        first, second = nlargest(2, here, key=lambda rank: (launched[here[rank]], -rank))
        last = completed[here[first]]
        rest = launched[here[second]]
        if last > rest + _FURTHER and others - (first in whole) >= 2:
            found[first] = f"it completed #{last}, which needs all members, and nobody else got beyond #{rest}"
    return found
