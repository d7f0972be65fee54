"""mismatch, rooted operations: a rank called a broadcast from a line of its own, and then bytes went missing.

A dump does not record the root. But where some members finish an operation that others are stuck in, and one rank came
to a rooted operation just before from a line of its own, another root is the likelier cause than a broken network.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hangscope.diagnosis.accusation import Accusation, Accused, Basis, Doubt
from hangscope.diagnosis.align.agreement import members_not_recorded
from hangscope.diagnosis.align.divergence import Divergence, Shape, came_from_elsewhere_before
from hangscope.diagnosis.align.lanes import Lane
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.code_lines import two_lines
from hangscope.diagnosis.findings import entry
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import Ints

_ROOTED = ("broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter")
# How many positions before the stuck operation are looked at: what a wrong root leaves behind fits into buffers.
_LOOK_BACK = 16


def other_root(case: Case) -> Iterator[Accusation]:
    """One rank that reached a rooted operation from a line of its own, shortly before members fell apart."""
    for wait in case.waits.all:
        found = None if wait.point_to_point or wait.blockers else _odd_caller(case, wait)
        if found is not None:
            after = f"is finished on some ranks and stuck on {ranks_text(wait.waiters)}"
            text = f"{case.names.wait(wait)} {after if wait.finished else 'does not finish'}"
            yield _accusation(case, found, Basis.OTHER_LINE, [Finding(text, case.source(wait.waiters[0]))], [wait])
            return


def silent_root(case: Case) -> Iterator[Accusation]:
    """One rank that made a rooted call, once, from a line that nobody else ever used, and nothing hung."""
    ops, call = case.job.ops, case.alignment.call
    rooted = [i for i, name in enumerate(ops.tables.names) if name in _ROOTED]
    for lane in case.alignment.lanes.values():
        if members_not_recorded(lane.group) or not np.all(ops.column("stack")[lane.rows]):
            continue
        stacks, starts = ops.column("stack")[lane.rows], lane.starts[:-1]
        differs = np.minimum.reduceat(stacks, starts) != np.maximum.reduceat(stacks, starts)
        for index in np.flatnonzero(differs & np.isin(ops.column("name")[lane.rows[starts]], rooted)).tolist():
            odd, reference = _one_apart(case, lane, index) or (-1, -1)
            if odd >= 0 and len(lane.rows_at(index)) == 2 and np.sum(call == call[odd]) > 1:
                odd, reference = reference, odd
            if odd < 0 or np.sum(call == call[odd]) > 1:
                continue
            if _made_by(case, lane.rows, ops[odd].rank, reference):
                found = _divergence(case, lane, index, odd, reference, pair=False)
                yield _accusation(case, found, Basis.OTHER_LINE_SILENTLY, [], [])
                return


def _one_apart(case: Case, lane: Lane, index: int) -> tuple[int, int] | None:
    """At one position, the call of the one rank that made it from a line of its own, and one of the others'."""
    rows = lane.rows_at(index)
    stacks = case.job.ops.column("stack")[rows]
    usual = Counter(stacks.tolist()).most_common(1)[0][0]
    odd = rows[stacks != usual]
    return (int(odd[0]), int(rows[stacks == usual][0])) if np.all(stacks) and len(odd) == 1 else None


def _odd_caller(case: Case, wait: Wait) -> Divergence | None:
    lane, ops = case.alignment.lanes.get(wait.group), case.job.ops
    last = None if lane is None or wait.seq is None else lane.index_of(wait.seq)
    if lane is None or last is None:
        return None
    for index in range(last, max(last - _LOOK_BACK - 1, -1), -1):
        rows = lane.rows_at(index)
        apart = _one_apart(case, lane, index) if ops[int(rows[0])].name in _ROOTED else None
        if apart is None:
            continue
        odd, reference = apart
        rank, pair = ops[odd].rank, len(rows) == 2
        # The root itself often has a line of its own (it loads what it then broadcasts), and it mostly is the first
        # member; unless it used the others' line in earlier rounds.
        first = rank == (lane.group.members or (-1,))[0]
        far = index < last - 4 or (index != last and not wait.finished)
        shared = _made_by(case, lane.rows[: lane.starts[index]], rank, reference)
        if (first or far) and not shared and not (pair and index == last):
            continue
        if not came_from_elsewhere_before(case.alignment, lane, index, rank, ops[reference].rank):
            return _divergence(case, lane, index, odd, reference, pair)
    return None


def _made_by(case: Case, rows: Ints, rank: int, reference: int) -> bool:
    """Whether the rank made the reference's call, from the reference's line, among these rows."""
    mine = rows[case.job.ops.column("rank")[rows] == rank]
    return bool(np.any(case.alignment.call[mine] == case.alignment.call[reference]))


def _divergence(case: Case, lane: Lane, index: int, odd: int, reference: int, pair: bool) -> Divergence:
    ranks = {case.job.ops[row].rank for row in ((odd, reference) if pair else (odd,))}
    seq, accused = int(lane.seqs[index]), tuple(sorted(ranks))
    return Divergence(lane.group.index, seq, Shape.OTHER_OPERATION, accused, pair, odd, reference)


def _accusation(case: Case, d: Divergence, basis: Basis, after: list[Finding], explains: list[Wait]) -> Accusation:
    odd, reference = case.job.ops[d.odd_row], case.job.ops[d.reference_row]
    text = f"{odd.name} #{d.seq} was called from two lines: {two_lines(odd, reference)}"
    accused, findings = [Accused(rank, "mismatch") for rank in d.odd], [entry(case, text, odd, reference), *after]
    doubts, hang = [Doubt.TWO_SIDES] if d.tied else (), bool(explains)
    found = Accusation(basis, "mismatch", accused, findings=findings, doubts=doubts, hang=hang, explains=explains)
    return replace(found, operation=case.operation_at(d), detail=d)
