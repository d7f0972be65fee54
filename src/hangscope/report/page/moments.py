"""Which rows are the hung operation, when the hang began, and when somebody first did otherwise than the rest."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.align.agreement import PEER_CALLS
from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.column_tools import Ints
from hangscope.diagnosis.verdict import Diagnosis, OperationInFlight
from hangscope.model import Group, Job, State
from hangscope.report.op_times import OpTimes
from hangscope.report.page.page_text import SHORT, shown
from hangscope.report.verdict_text import title

_PAIR = re.compile(r"(?:send (?P<from>\d+)->(?P<to>\d+)|recv (?P<at>\d+)<-(?P<of>\d+))")
_LONGEST_WAIT_S = 30 * 86_400.0
_DAY_NS = 86_400 * 10**9


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
    position_group: int | None
    """The same, unless it is a send or receive: those have no position in their group."""
    position: int | None
    """Its number there."""
    odd: int | None
    """For a mismatch: the row of the accused call."""


def moments(diagnosis: Diagnosis, times: OpTimes) -> Moments:
    operation = diagnosis.operation
    group = group_of(operation, times.job)
    hung = _hung_rows(operation, times.alignment, group)
    hung = hung[times.known[hung]]
    end = _end(diagnosis, times)
    zero, text = _zero(diagnosis, times, hung, end)
    if end is not None and zero is not None and diagnosis.hang and diagnosis.waiting_s is not None:
        end = max(end, zero + int(min(diagnosis.waiting_s, _LONGEST_WAIT_S) * 1e9))
    positioned = operation is not None and has_position(operation)
    position = operation.seq if operation is not None and positioned else None
    odd = None if group is None or position is None else _accused_call(diagnosis, times, group, position)
    if odd is None:
        deviation, why = _last_sign(diagnosis, times, hung, zero)
    else:
        deviation = int(times.begin_ns[odd])
        why = f"rank {times.job.ops.column('rank')[odd]} calls {shown(times.job.ops[odd].title, SHORT)}"
    return Moments(zero, text, end, deviation, why, hung, group, group if positioned else None, position, odd)


# ---- the hung operation ----------------------------------------------------------------------------------------------


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


def _bears(group: Group, name: str) -> bool:
    return name in (group.label, group.name, f"{group.label} ({group.name})")


def has_position(operation: OperationInFlight) -> bool:
    """Whether its number is a position of its group: that of a send, a receive or a batch of them is not."""
    return _PAIR.search(operation.name) is None and operation.name not in PEER_CALLS


def _hung_rows(operation: OperationInFlight | None, alignment: Alignment, group: int | None) -> Ints:
    ops = alignment.job.ops
    if operation is None:
        return np.empty(0, dtype=np.int64)
    pair = _PAIR.search(operation.name)
    if pair is not None:
        source = int(pair["from"] or pair["of"])
        target = int(pair["to"] or pair["at"])
        between = (ops.column("source") == source) & (ops.column("destination") == target)
        return np.flatnonzero(between & (ops.column("state") != State.COMPLETED))
    if group is None or operation.seq is None:
        return np.empty(0, dtype=np.int64)
    if not has_position(operation):
        # Of a batch, the sends and receives of those who take part that have not ended.
        open_now = (ops.column("state") == State.SCHEDULED) | (ops.column("state") == State.STARTED)
        rows = np.flatnonzero((ops.column("group") == group) & alignment.point_to_point & open_now)
        return rows[np.isin(ops.column("rank")[rows], list(operation.state_by_rank))]
    rows = alignment.index.rows_at([group], operation.seq)
    return rows[~(alignment.point_to_point[rows] | alignment.unlaunched[rows])]


def _end(diagnosis: Diagnosis, times: OpTimes) -> int | None:
    """The end of the evidence: what any dump or the first report speaks of last."""
    first = diagnosis.first_reported
    if times.last_ns is None or first is None or first.at_ns is None:
        return times.last_ns
    return max(times.last_ns, first.at_ns) if abs(first.at_ns - times.last_ns) < _DAY_NS else times.last_ns


def _zero(diagnosis: Diagnosis, times: OpTimes, hung: Ints, end: int | None) -> tuple[int | None, str]:
    """What the page counts from, and what that moment is."""
    if not diagnosis.hang:
        return end, "end of the recording"
    waiting = hung[times.unfinished[hung]]
    begun = waiting if len(waiting) else hung
    if diagnosis.operation is not None and len(begun):
        name = shown(title(diagnosis.operation.name, diagnosis.operation.seq), SHORT)
        return int(times.begin_ns[begun].min()), f"first launch of {name}"
    if times.unfinished.any():
        return int(times.begin_ns[times.unfinished].min()), "oldest unfinished operation"
    if diagnosis.waiting_s is not None and end is not None:
        return end - int(diagnosis.waiting_s * 1e9), "start of the wait"
    return end, "end of the recording"


# ---- the first deviation ---------------------------------------------------------------------------------------------


def _accused_call(diagnosis: Diagnosis, times: OpTimes, group: int, position: int) -> int | None:
    """For a mismatch: what an accused rank called at the position of the operation, the earliest of several."""
    if diagnosis.kind not in ("mismatch", "shift"):
        return None
    called = [times.alignment.row_of(culprit.rank, group, position) for culprit in diagnosis.culprits]
    known = [row for row in called if row is not None and times.known[row]]
    return min(known, key=lambda row: int(times.begin_ns[row]), default=None)


def _last_sign(diagnosis: Diagnosis, times: OpTimes, hung: Ints, zero: int | None) -> tuple[int | None, str]:
    """The last sign of a culprit before the others went on without it."""
    if not diagnosis.hang or not diagnosis.culprits or zero is None:
        return None, ""
    ops = times.job.ops
    joined = set(ops.column("rank")[hung].tolist())
    signs = [(_sign(times, culprit.rank, zero), culprit.rank) for culprit in diagnosis.culprits]
    found = [(at, rank) for at, rank in signs if at is not None and rank not in joined]
    if not found:
        return None, ""
    at, rank = min(found)
    rows = ops.rows(rank=rank)
    waiting = rows[times.unfinished[rows]]
    if len(waiting):  # it is inside another operation than the rest
        return int(times.begin_ns[waiting[0]]), f"rank {rank} calls {shown(ops[int(waiting[0])].title, SHORT)}"
    return at, f"last sign of life of rank {rank}"


def _sign(times: OpTimes, rank: int, zero: int) -> int | None:
    """When a rank last did anything; None where nothing of it has a time."""
    part = times.job.ops.span(rank)
    known = times.known[part]
    if not known.any():
        return None
    begin = times.begin_ns[part]
    last = int(np.where(times.unfinished[part], begin, times.end_ns[part])[known].max())
    # An end is noticed late: what was launched before the hang is not a sign of life after it.
    return min(last, zero) if int(begin[known].max()) < zero else last
