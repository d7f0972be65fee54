"""Which rows are the hung operation, when the hang began, and when somebody first did otherwise than the rest."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.verdict import CauseKind, Diagnosis, OperationInFlight
from hangscope.model import Group, Job, Kind, State
from hangscope.report.page.agreement import differs
from hangscope.report.page.page_text import SHORT, shown
from hangscope.report.rank_strip import title
from hangscope.report.spans import Ints, Spans

_PAIR = re.compile(r"(?:send (?P<from>\d+)->(?P<to>\d+)|recv (?P<at>\d+)<-(?P<of>\d+))")

_LOOK_BACK = 200
"""Positions around the hung one that are searched for the first call that differs."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Times on the common clock, nanoseconds since the epoch; None where nothing tells."""

    zero_ns: int | None
    """What the page counts from: the first launch of the hung operation, else the end of the recording."""
    zero_text: str
    end_ns: int | None
    deviation_ns: int | None
    deviation_text: str
    hung: Ints
    """The rows of the operation in flight at the root."""
    group: int | None
    """Its group."""
    odd: int | None
    """For a mismatch: the row of the first call that most of the group did not make there."""


def moments(diagnosis: Diagnosis, job: Job, spans: Spans) -> Moments:
    group = group_of(diagnosis.operation, job)
    hung = _hung_rows(diagnosis.operation, job, group)
    hung = hung[spans.known[hung]]
    end = _end(diagnosis, spans)
    zero, text = end, "end of the recording"
    waiting = hung[spans.unfinished[hung]]
    begun = waiting if len(waiting) else hung
    if diagnosis.hang and diagnosis.operation is not None and len(begun):
        zero = int(spans.begin_ns[begun].min())
        text = f"first launch of {shown(title(diagnosis.operation.name, diagnosis.operation.seq), SHORT)}"
    elif diagnosis.hang and spans.unfinished.any():
        zero, text = int(spans.begin_ns[spans.unfinished].min()), "oldest operation that has not ended"
    elif diagnosis.hang and diagnosis.waiting_s is not None and end is not None:
        zero, text = end - int(diagnosis.waiting_s * 1e9), "begin of the wait"
    if end is not None and zero is not None and diagnosis.hang and diagnosis.waiting_s is not None:
        end = max(end, zero + int(min(diagnosis.waiting_s, 30 * 86400.0) * 1e9))
    ranks = [culprit.rank for culprit in diagnosis.culprits]
    odd = _other_call(job, spans, hung, ranks) if diagnosis.kind == CauseKind.MISMATCH else None
    deviation, why = _deviation(diagnosis, job, spans, hung, zero)
    if odd is not None:
        deviation = int(spans.begin_ns[odd])
        why = f"rank {job.ops.column('rank')[odd]} calls {shown(job.ops[odd].title, SHORT)}"
    return Moments(zero, text, end, deviation, why, hung, group, odd)


def group_of(operation: OperationInFlight | None, job: Job) -> int | None:
    """The job's group of the operation in flight: the same members, and where several have them, the same name."""
    if operation is None:
        return None
    members = set(operation.members)
    alike = [group for group in job.groups if group.members is not None and set(group.members) == members]
    named = [group for group in alike if _bears(group, operation.group)]
    loose = [group for group in job.groups if _bears(group, operation.group) and members <= set(group.members or ())]
    found = named or alike or loose
    return found[0].index if found else None


def is_pair(operation: OperationInFlight) -> bool:
    """Whether it is a send or a receive: its number is no position of the group."""
    return _PAIR.search(operation.name) is not None


def _bears(group: Group, name: str) -> bool:
    return name in (group.label, group.name, f"{group.label} ({group.name})")


def _hung_rows(operation: OperationInFlight | None, job: Job, group: int | None) -> Ints:
    ops = job.ops
    none = np.empty(0, dtype=np.int64)
    if operation is None:
        return none
    pair = _PAIR.search(operation.name)
    if pair is not None:
        source = int(pair["from"] or pair["of"])
        target = int(pair["to"] or pair["at"])
        mask = (ops.column("source") == source) & (ops.column("destination") == target)
        return np.flatnonzero(mask & (ops.column("state") != State.COMPLETED))
    if group is None or operation.seq is None:
        return none
    kind = ops.column("kind")
    here = ops.column("group") == group
    mask = here & (ops.column("seq") == operation.seq)
    rows = np.flatnonzero(mask & (kind != Kind.SEND) & (kind != Kind.RECV))
    # A batch of sends and receives is counted on a scale of its own: what its group has not ended is it.
    state = ops.column("state")
    return rows if len(rows) else np.flatnonzero(here & ((state == State.SCHEDULED) | (state == State.STARTED)))


def _end(diagnosis: Diagnosis, spans: Spans) -> int | None:
    """The end of the evidence: what any dump or the first report speaks of last."""
    known = [at for at in (spans.last_ns,) if at is not None]
    first = diagnosis.first_reported
    if first is not None and first.at_ns is not None and known and abs(first.at_ns - known[0]) < 86_400 * 10**9:
        known.append(first.at_ns)
    return max(known, default=None)


def _deviation(diagnosis: Diagnosis, job: Job, spans: Spans, hung: Ints, zero: int | None) -> tuple[int | None, str]:
    """The last sign of a culprit before the others went on without it."""
    ranks = [culprit.rank for culprit in diagnosis.culprits]
    if not diagnosis.hang or not ranks or zero is None:
        return None, ""
    joined = set(job.ops.column("rank")[hung].tolist())
    found: list[tuple[int, int]] = []
    for rank in ranks:
        part = job.ops.span(rank)
        known = spans.known[part]
        if rank in joined or not known.any():
            continue
        last = int(spans.begin_ns[part][known].max())
        ends = np.where(spans.unfinished[part], spans.begin_ns[part], spans.end_ns[part])[known]
        # An end is noticed late: what was launched before the hang is not a sign of life after it.
        found.append((min(int(ends.max()), zero) if last < zero else int(ends.max()), rank))
    if not found:
        return None, ""
    at, rank = min(found)
    rows = job.ops.rows(rank=rank)
    waiting = rows[spans.unfinished[rows]]
    if len(waiting):  # it is inside another operation than the rest
        return int(spans.begin_ns[waiting[0]]), f"rank {rank} calls {shown(job.ops[int(waiting[0])].title, SHORT)}"
    return at, f"last sign of rank {rank}"


def _other_call(job: Job, spans: Spans, hung: Ints, ranks: list[int]) -> int | None:
    """The culprits' first call, in the group of the hung operation, that most members did not make there."""
    if not len(hung):
        return None
    ops = job.ops
    group, seq = int(ops.column("group")[hung[0]]), int(ops.column("seq")[hung[0]])
    kind = ops.column("kind")
    near = (ops.column("group") == group) & (np.abs(ops.column("seq") - seq) <= _LOOK_BACK) & spans.known
    rows = np.flatnonzero(near & (kind != Kind.SEND) & (kind != Kind.RECV))
    odd = rows[differs(job, rows, stacks=True)]
    odd = odd[np.isin(ops.column("rank")[odd], ranks)]
    return int(odd[np.argmin(spans.begin_ns[odd])]) if len(odd) else None
