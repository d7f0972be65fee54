"""The last operation that went well: what every member of the group, or the receiver of the pair, finished."""

from typing import Any

import numpy as np

from hangscope.diagnosis.accusation import Accusation
from hangscope.diagnosis.align.alignment import completed_on_all
from hangscope.diagnosis.align.p2p_matching import transfers
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.verdict import LastCompleted
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import Operation, State


def last_completed(case: Case, chosen: Accusation[Any]) -> LastCompleted | None:
    """In the group or the pair that the verdict is about, else in the busiest group."""
    wait = chosen.wait
    if wait is not None and wait.point_to_point:
        transfer = _last_transfer(case, wait)
        if transfer is not None:
            return transfer
    group = _group(case, chosen)
    if group is None:
        return None
    return _in_group(case, group) if group in case.alignment.lanes else _by_counters(case, group)


def _group(case: Case, chosen: Accusation[Any]) -> int | None:
    if chosen.wait is not None and chosen.wait.group not in case.progress.comm_inits:
        return chosen.wait.group
    if chosen.group is not None:
        return chosen.group
    lanes = case.alignment.lanes
    return max(lanes, key=lambda group: len(lanes[group].rows), default=None)


def _in_group(case: Case, group: int) -> LastCompleted | None:
    found = completed_on_all(case.alignment, group)
    if found is None:
        return None
    seq, rows = found
    sample = case.job.ops[int(rows[0])]
    times = case.job.ops.column("completed_ns")[rows]
    at_ns = int(times.max()) if np.any(times > 0) else None
    return LastCompleted(case.names.group(group), seq, sample.name, sample.frames, at_ns)


def _by_counters(case: Case, group: int) -> LastCompleted | None:
    """As the counters in logs say it."""
    done = [mine.completed[group] for mine in case.progress.of.values() if group in mine.completed]
    last = min(done, default=-1)
    return LastCompleted(case.names.group(group), last, "collective", (), None) if last >= 0 else None


# ---- of a pair -------------------------------------------------------------------------------------------------------


def _last_transfer(case: Case, wait: Wait) -> LastCompleted | None:
    """The last transfer of the same pair that its receiver finished, where that came after its last collective."""
    last = _last_received(case, wait)
    if last is None or _is_before_a_collective(case, last, wait.group):
        return None
    return LastCompleted(case.names.group(wait.group), last.p2p_seq, last.title, last.frames, last.completed_ns)


def _last_received(case: Case, wait: Wait) -> Operation | None:
    ops = case.job.ops
    state = ops.column("state")
    found: list[int] = []
    for row, other in wait.counterparts:
        sender = ops[row].source
        receiver = ops[row].destination
        if (wait.blockers and other.peer not in wait.blockers) or sender is None or receiver is None:
            continue
        sent = transfers(case.alignment, sender, row)
        received = transfers(case.alignment, receiver, row)
        done = received[state[received] == State.COMPLETED]
        if len(done) and np.any(state[sent] == State.COMPLETED):
            found.append(int(done[-1]))
    return ops[max(found)] if found else None


def _is_before_a_collective(case: Case, last: Operation, group: int) -> bool:
    """Whether its rank has completed a collective of the group with all others since."""
    collective = completed_on_all(case.alignment, group)
    if collective is None:
        return False
    _, rows = collective
    return bool(np.any((case.job.ops.column("rank")[rows] == last.rank) & (rows > last.row)))
