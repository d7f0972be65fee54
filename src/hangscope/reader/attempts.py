"""Which dumps belong to an older attempt of the job.

A dump's file name carries no time, so a folder may hold what an earlier attempt left: read with the newer ones, it
would make its rank look hours behind. What tells them apart is that the older dump ends before the newer ones begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hangscope.model import UNKNOWN, State
from hangscope.reader.ranks import lines_of
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
    if not older:
        return {}
    newer = [dumps[span.index] for span in spans if span.last >= newest_start]
    ranges = _together(newer)
    # Rings that wrapped do not show when their attempt began.
    begun = not all(raw.first_record for raw in newer)
    return {
        span.index: newest_start - span.last
        for span in older
        if not _fits(_ranges(dumps[span.index]), ranges, alone=not begun)
    }


def _split(spans: Sequence[_Span]) -> tuple[list[_Span], int]:
    """The spans before the last long pause in which no dump has an entry, and the end of that pause."""
    start = 0
    reach = None
    for span in sorted(spans, key=lambda span: (span.first, span.last)):
        if reach is not None and span.first - reach > APART_NS:
            start = span.first
        reach = span.last if reach is None else max(reach, span.last)
    return [span for span in spans if span.last < start], start


_Group = tuple[str, "str | None", str, "tuple[int, ...] | None"]
_Range = tuple[int, int, int]
"""First, last and last completed collective of a group."""


def _fits(ours: dict[_Group, _Range], newer: dict[_Group, _Range], *, alone: bool) -> bool:
    """Whether a dump can be of the same attempt: in the groups that it shares with the newer ones, they go on where it
    stops, and completed nothing beyond that without it. `alone` is the answer where they share none."""
    shared = ours.keys() & newer.keys()
    return all(newer[key][0] >= ours[key][1] >= newer[key][2] for key in shared) if shared else alone


def _together(dumps: Sequence[RawDump]) -> dict[_Group, _Range]:
    whole: dict[_Group, _Range] = {}
    for raw in dumps:
        for key, (first, last, completed) in _ranges(raw).items():
            known = whole.get(key, (first, last, completed))
            whole[key] = (min(known[0], first), max(known[1], last), max(known[2], completed))
    return whole


def _ranges(raw: RawDump) -> dict[_Group, _Range]:
    columns = raw.columns
    ranges = {}
    launches = columns["launches"] == 1
    for slot, (group, line) in enumerate(zip(raw.groups, lines_of(raw), strict=True)):
        mine = (columns["group"] == slot) & launches
        seq = columns["seq"][mine]
        if len(seq) and seq.max() != UNKNOWN:
            done = columns["state"][mine] == State.COMPLETED
            members = line.members if line is not None else None
            key = (raw.backend, group.name, group.desc if group.name is not None else str(group.pg_id), members)
            ranges[key] = (int(seq.min()), int(seq.max()), int(seq[done].max(initial=0)))
    return ranges
