"""mismatch, rooted operations: a rank called a broadcast from a line of its own, and then bytes went missing.

A dump does not record the root. But where some members finish an operation that others are stuck in, and one rank came
to a rooted operation just before from a line of its own, another root is the likelier cause than a broken network.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Accused, Doubt, Grounds, Layer
from hangscope.diagnosis.align.agreement import ROOTED, members_not_recorded
from hangscope.diagnosis.align.divergence import Divergence, Shape, came_from_elsewhere_before
from hangscope.diagnosis.align.lanes import Lane
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.causes.shared.sentences import called_in, who_did_what
from hangscope.diagnosis.evidence.code_lines import two_lines
from hangscope.diagnosis.findings import entry
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import Ints

OTHER_LINE = Grounds(
    "other_line",
    Layer.OTHER_CALLS,
    MEDIUM,
    "a rooted operation called from its own line where members diverge; roots are not recorded",
)
OTHER_LINE_SILENTLY = Grounds(
    "other_line_silently",
    Layer.NO_HANG,
    MEDIUM,
    "a rooted operation called once from a line of its own; roots are not recorded",
    before={
        "slow_work": "test_edges.py::test_a_wrong_result_goes_before_slow_work",
        "slow_launches": "test_edges.py::test_a_wrong_result_goes_before_late_launches",
    },
)

# How many positions before the stuck operation are looked at: what a wrong root leaves behind fits into buffers.
_LOOK_BACK = 16
# So far back, another root shows only where the rank used the others' line before.
_FAR_BACK = 4


# ---- what it looks for -----------------------------------------------------------------------------------------------


def propose(case: Case) -> Iterator[Accusation[Divergence]]:
    """One rank that reached a rooted operation from a line of its own, shortly before members fell apart; or that did
    so once, from a line that no other rank used, and nothing hung."""
    if not case.hung:
        silent = next(_silent(case), None)
        if silent is not None:
            yield _accusation(case, silent, OTHER_LINE_SILENTLY, None)
        return
    for wait in case.waits.all:
        found = None if wait.point_to_point or wait.blockers else _odd_caller(case, wait)
        if found is not None:
            yield _accusation(case, found, OTHER_LINE, wait)
            return


def _accusation(case: Case, d: Divergence, grounds: Grounds, wait: Wait | None) -> Accusation[Divergence]:
    return Accusation(
        grounds,
        CauseKind.MISMATCH,
        d,
        [Accused(rank, CauseKind.MISMATCH) for rank in d.odd],
        operation=case.operation_at(d),
        group=d.group,
        doubts=[Doubt.TWO_SIDES] if d.tied else (),
        explains=[wait] if wait is not None else (),
        hang=wait is not None,
    )


def _silent(case: Case) -> Iterator[Divergence]:
    """Rooted calls that one rank made, once, from a line that no other rank used."""
    call = case.alignment.call
    for lane in case.alignment.lanes.values():
        for index in _called_from_several_lines(case, lane):
            apart = _one_apart(case, lane, index)
            if apart is None:
                continue
            odd, reference = apart
            if len(lane.rows_at(index)) == 2 and np.sum(call == call[odd]) > 1:
                odd, reference = reference, odd
            once = np.sum(call == call[odd]) <= 1
            if once and _made_by(case, lane.rows, case.job.ops[odd].rank, reference):
                yield _divergence(case, lane, index, odd, reference, tied=False)


def _called_from_several_lines(case: Case, lane: Lane) -> list[int]:
    """The positions of rooted operations that members called from different lines."""
    ops = case.job.ops
    stacks = ops.column("stack")[lane.rows]
    if members_not_recorded(lane.group) or not np.all(stacks):
        return []
    starts = lane.starts[:-1]
    rooted = [i for i, name in enumerate(ops.tables.names) if name in ROOTED]
    differs = np.minimum.reduceat(stacks, starts) != np.maximum.reduceat(stacks, starts)
    found: list[int] = np.flatnonzero(differs & np.isin(ops.column("name")[lane.rows[starts]], rooted)).tolist()
    return found


def _odd_caller(case: Case, wait: Wait) -> Divergence | None:
    """The rank that came to a rooted operation from a line of its own, at the stuck operation or shortly before."""
    lane = case.alignment.lanes.get(wait.group)
    last = None if lane is None or wait.seq is None else lane.index_of(wait.seq)
    if lane is None or last is None:
        return None
    for index in range(last, max(last - _LOOK_BACK - 1, -1), -1):
        apart = _one_apart(case, lane, index) if _is_rooted(case, lane, index) else None
        if apart is not None and _may_be_another_root(case, wait, lane, index, last, apart):
            return _divergence(case, lane, index, *apart, tied=len(lane.rows_at(index)) == 2)
    return None


def _is_rooted(case: Case, lane: Lane, index: int) -> bool:
    return case.job.ops[int(lane.rows_at(index)[0])].name in ROOTED


def _may_be_another_root(case: Case, wait: Wait, lane: Lane, index: int, last: int, apart: tuple[int, int]) -> bool:
    """Whether the line of its own is new to the rank, or says more than that it is the root.

    The root itself often has a line of its own (it loads what it then broadcasts), and it mostly is the first member;
    unless it used the others' line in earlier rounds.
    """
    odd, reference = apart
    rank = case.job.ops[odd].rank
    first_member = rank == (lane.group.members or (-1,))[0]
    far_back = index < last - _FAR_BACK or (index != last and not wait.finished)
    if first_member or far_back:
        used_before = _made_by(case, lane.rows[: lane.starts[index]], rank, reference)
        pair_that_is_stuck = index == last and len(lane.rows_at(index)) == 2
        if not used_before and not pair_that_is_stuck:
            return False
    return not came_from_elsewhere_before(case.alignment, lane, index, rank, case.job.ops[reference].rank)


def _one_apart(case: Case, lane: Lane, index: int) -> tuple[int, int] | None:
    """At one position, the call of the one rank that made it from a line of its own, and one of the others'."""
    rows = lane.rows_at(index)
    stacks = case.job.ops.column("stack")[rows]
    usual = Counter(stacks.tolist()).most_common(1)[0][0]
    odd = rows[stacks != usual]
    return (int(odd[0]), int(rows[stacks == usual][0])) if np.all(stacks) and len(odd) == 1 else None


def _made_by(case: Case, rows: Ints, rank: int, reference: int) -> bool:
    """Whether the rank made the reference's call, from the reference's line, among these rows."""
    mine = rows[case.job.ops.column("rank")[rows] == rank]
    return bool(np.any(case.alignment.call[mine] == case.alignment.call[reference]))


def _divergence(case: Case, lane: Lane, index: int, odd: int, reference: int, *, tied: bool) -> Divergence:
    rows = (odd, reference) if tied else (odd,)
    ranks = tuple(sorted({case.job.ops[row].rank for row in rows}))
    return Divergence(lane.group.index, int(lane.seqs[index]), Shape.OTHER_OPERATION, ranks, tied, odd, reference)


# ---- its words -------------------------------------------------------------------------------------------------------


def words(case: Case, accusation: Accusation[Divergence]) -> Words:
    d = accusation.facts
    odd = case.job.ops[d.odd_row]
    reference = case.job.ops[d.reference_row]
    lines = two_lines(odd, reference)
    called = entry(case, f"{odd.name} #{d.seq} was called from two lines: {lines}", odd, reference)
    compare = f"code: compare the source rank that the two calls of {odd.name} pass ({lines})"
    if not accusation.hang:
        what = f"called {odd.name} #{d.seq} once from a line that no other rank used"
        return who_did_what(
            case,
            accusation,
            f"{what}, possibly with a different root",
            "; nothing hangs, but then the result is wrong.",
            why=[called],
            steps=[compare],
            each=what,
        )
    there = called_in(case, reference)
    others = "its peer" if d.tied else "all others"
    not_there = f"not where {others} did{f',{there}' if there else ''}"
    what = f"called {odd.name} #{d.seq}{called_in(case, odd)}, {not_there}"
    stuck = _stuck(case, accusation.explains[0])
    return who_did_what(
        case,
        accusation,
        f"{what}; possibly with a different root",
        f"; {stuck.text}.",
        why=[called, stuck],
        steps=[compare, "if they agree, suspect the network: collect NCCL's log and the port counters"],
        each=what,
        place=False,
    )


def _stuck(case: Case, wait: Wait) -> Finding:
    after = "never completes"
    if wait.finished:
        after = f"never completes on {ranks_text(wait.waiters)}"
    return Finding(f"{case.names.wait(wait)} {after}", case.source(wait.waiters[0]))


CAUSE = Cause(propose, words, (OTHER_LINE, OTHER_LINE_SILENTLY), Asked.ALWAYS)
