"""Which disagreements between the members of a group can be why the job hangs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from hangscope.diagnosis.accusation import Doubt
from hangscope.diagnosis.align.divergence import Divergence, Shape
from hangscope.diagnosis.align.sequence_shift import LEAST
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
        known = (_as_shifted(case, divergence) for divergence in case.divergences)
        yield from ((divergence, True) for divergence in known if _explains_the_hang(case, divergence))
        return
    for divergence in case.divergences[:1]:
        explains = _explains_the_hang(case, divergence) if case.waits.all else _ends_there(case, divergence)
        yield divergence, explains and not _has_lasted(case, divergence)


def _has_lasted(case: Case, divergence: Divergence) -> bool:
    """Whether the group went on with it for many calls: then what is in flight is no hang that has just begun."""
    off = [(one.group, one.ranks) for one in case.lasting.shifts]
    off += [(one.group, one.ranks) for one in case.lasting.mismatches]
    return any(group == divergence.group and set(ranks) <= set(divergence.odd) for group, ranks in off)


def _as_shifted(case: Case, divergence: Divergence) -> Divergence:
    """Calls left out, where the odd ranks have been some numbers ahead ever since, and lack calls at the end.

    Steps repeat themselves, so that a call too many fits as well; at the end only calls left out are missing.
    """
    if divergence.shape is Shape.SKIPPED:
        return divergence
    for shift in case.lasting.shifts:
        if not shift.calls or (shift.group, shift.ranks) != (divergence.group, divergence.odd):
            continue
        short = _short_by(case, divergence.group, shift.ranks)
        if short is not None and 0 < short <= shift.shift.by:
            return replace(
                divergence,
                shape=Shape.SKIPPED,
                seq=shift.seq,
                odd_row=shift.odd_row,
                reference_row=shift.usual_row,
                calls=shift.calls,
                parted_at=(shift.odd_row, shift.usual_row),
                support=shift.shift.explained,
                by_habit=False,
            )
    return divergence


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
    short = _short_by(case, divergence.group, divergence.odd)
    count = len(divergence.calls)
    # Whoever waits in the first of several missing calls has not launched the others.
    return short == count or (divergence.support >= LEAST and short is not None and 0 < short < count)


def _short_by(case: Case, group: int, ranks: Sequence[int]) -> int | None:
    """How many numbers of a group ranks end behind the rest."""
    lane = case.alignment.lanes[group]
    seq = case.job.ops.column("seq")[lane.rows]
    odd = np.isin(case.job.ops.column("rank")[lane.rows], ranks)
    return int(seq[~odd].max(initial=0)) - int(seq[odd].max()) if odd.any() else None
