"""Which dumps belong to an older attempt of the job.

A dump's file name carries no time, so a folder may hold what an earlier attempt left: read with the newer ones, it
would make its rank look hours behind. What tells them apart is that the older dump ends before the newer ones begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hangscope.model import UNKNOWN, State
from hangscope.reader.raw import RawDump

APART_NS = 120 * 10**9
"""Two minutes between one dump's last entry and the other dumps' first: no ring is that short of a job that hangs."""


@dataclass(frozen=True, slots=True)
class _Span:
    index: int
    first: int
    last: int


def stale(dumps: Sequence[RawDump]) -> dict[int, int]:
    """The positions of dumps of an older attempt, each with the nanoseconds between its end and the newer ones' start.

    A dump that merely ends early is not stale: the rank that hung first is the one everybody looks for. It is kept
    where its groups fit to the newer dumps, as the last thing that happened before them.
    """
    spans = []
    for index, raw in enumerate(dumps):
        created = raw.columns["created_ns"]
        created = created[created != UNKNOWN]
        if len(created):
            spans.append(_Span(index, int(created.min()), int(created.max())))
    older, newest_start = _split(spans)
    newest = [dumps[span.index] for span in spans if span.last >= newest_start]
    return {span.index: newest_start - span.last for span in older if not _fits(dumps[span.index], newest)}


def _split(spans: Sequence[_Span]) -> tuple[list[_Span], int]:
    """The spans before the last long pause in which no dump has an entry, and the end of that pause."""
    start = 0
    reach = None
    for span in sorted(spans, key=lambda span: (span.first, span.last)):
        if reach is not None and span.first - reach > APART_NS:
            start = span.first
        reach = span.last if reach is None else max(reach, span.last)
    return [span for span in spans if span.last < start], start


def _fits(raw: RawDump, newer: Sequence[RawDump]) -> bool:
    """Whether this dump can be the same attempt's: where they share groups, the newer ones go on where it stops, and
    completed nothing beyond that without it."""
    shared = False
    ours = _ranges(raw)
    for other in newer:
        for name, (first, _, completed) in _ranges(other).items():
            if name in ours:
                shared = True
                last = ours[name][1]
                if first < last or completed > last:
                    return False
    return shared


def _ranges(raw: RawDump) -> dict[tuple[str, str | None, str], tuple[int, int, int]]:
    """For each group with collectives: its first, last and last completed number."""
    columns = raw.columns
    ranges = {}
    launches = columns["launches"] == 1
    for slot, group in enumerate(raw.groups):
        rows = np.flatnonzero((columns["group"] == slot) & launches)
        if len(rows) and columns["seq"][rows].max() != UNKNOWN:
            seq = columns["seq"][rows]
            done = seq[columns["state"][rows] == State.COMPLETED]
            key = (raw.backend, group.name, group.desc if group.name is not None else str(group.pg_id))
            ranges[key] = (int(seq.min()), int(seq.max()), int(done.max()) if len(done) else 0)
    return ranges
