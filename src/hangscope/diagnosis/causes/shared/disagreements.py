"""Which disagreements between the members of a group can be why the job hangs."""

from collections.abc import Iterator

import numpy as np

from hangscope.diagnosis.accusation import Doubt
from hangscope.diagnosis.align.divergence import Divergence, Shape
from hangscope.diagnosis.case import Case
from hangscope.model import State

_HARMLESS_AFTER = 8
# A disagreement after which this many operations of the group went well on every member did not cause the hang.
_HARMLESS_AFTER_IF_NOBODY_IS_MISSING = 64


def disagreements(case: Case) -> Iterator[tuple[Divergence, bool]]:
    """What may be why the job hangs; of a job that runs the first one. Each with whether the job hangs because of it.

    Where the ranks that disagree have not got past it, it has begun to hang, however young the evidence.
    """
    if case.hung:
        yield from ((divergence, True) for divergence in case.divergences if _explains_the_hang(case, divergence))
        return
    for divergence in case.divergences[:1]:
        yield divergence, _explains_the_hang(case, divergence) if case.waits.all else _ends_there(case, divergence)


def _ends_there(case: Case, divergence: Divergence) -> bool:
    """Whether a Gloo job ends with ranks in different operations. There an operation that raised reads as completed."""
    lane = case.alignment.lanes[divergence.group]
    gloo = Doubt.RAISED_READS_DONE in case.doubts_of_running
    ends = divergence.shape is Shape.OTHER_OPERATION and int(lane.seqs[-1]) <= divergence.seq + 1
    return gloo and ends and not all(p.exit_status == 0 for p in case.job.processes.values())


def _explains_the_hang(case: Case, divergence: Divergence) -> bool:
    unfinished, agreed = _since(case, divergence)
    if unfinished and _ends_short(case, divergence):
        return True
    # Where nobody is missing in that group, the choice is between this and a failing network, and this was seen.
    nobody_missing = any(w.group == divergence.group and not w.blockers for w in case.waits.all)
    limit = _HARMLESS_AFTER_IF_NOBODY_IS_MISSING if nobody_missing else _HARMLESS_AFTER
    stuck_elsewhere = any(not set(divergence.odd).isdisjoint(w.waiters) for w in case.waits.all)
    return agreed < limit and (unfinished > 0 or stuck_elsewhere)


def _since(case: Case, divergence: Divergence) -> tuple[int, int]:
    """From the disagreement on, in its group: how many operations somebody has not finished, and how many went well."""
    lane = case.alignment.lanes[divergence.group]
    state = case.job.ops.column("state")
    members = len(lane.group.members or ())
    unfinished = 0
    agreed = 0
    for index in range(lane.index_of(divergence.seq) or 0, len(lane.seqs)):
        rows = lane.rows_at(index)
        if np.any(state[rows] != State.COMPLETED):
            unfinished += 1
        elif len(rows) == members and len(set(lane.signatures_at(index).tolist())) == 1:
            agreed += 1
    return unfinished, agreed


def _ends_short(case: Case, divergence: Divergence) -> bool:
    """Whether the odd ranks end as many calls behind the rest as they left out.

    NCCL swallows a skip where the calls that meet have one size, and in a row of like calls positions agree by chance.
    """
    if divergence.shape is not Shape.SKIPPED or divergence.by_habit:
        return False
    lane = case.alignment.lanes[divergence.group]
    seq = case.job.ops.column("seq")[lane.rows]
    odd = np.isin(case.job.ops.column("rank")[lane.rows], divergence.odd)
    return bool(odd.any()) and int(seq[~odd].max(initial=0)) - int(seq[odd].max()) == len(divergence.calls)
