"""mismatch, rooted operations: a rank called a broadcast from a line of its own, and then bytes went missing.

A dump does not record the root. But where some members finish an operation that others are stuck in, and one rank came
to a rooted operation just before from a line of its own, another root is the likelier cause than a broken network.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from hangscope.diagnosis.align import Lane, is_guessed
from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.divergence import Divergence, Shape, came_from_elsewhere_before
from hangscope.diagnosis.rules.mismatch import operation_at
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.waits import Wait
from hangscope.diagnosis.words import ranks_text, sentence
from hangscope.model import Operation

_ROOTED = ("broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter")
_LOOK_BACK = 16
"""How many positions before the stuck operation are looked at: what a wrong root leaves behind fits into buffers."""


def other_root(case: Case) -> Draft | None:
    """One rank that reached a rooted operation from a line of its own, shortly before members fell apart."""
    for wait in case.waits.all:
        if wait.point_to_point or wait.blockers or wait.seq is None:
            continue
        found = _odd_caller(case, wait)
        if found is not None:
            return _draft(case, wait, found)
    return None


def silent_root(case: Case) -> Draft | None:
    """One rank that made a rooted call, once, from a line that nobody else ever used, and nothing hung."""
    ops = case.job.ops
    rooted = [i for i, name in enumerate(ops.tables.names) if name in _ROOTED]
    for lane in case.alignment.lanes.values():
        if is_guessed(lane.group) or not np.all(ops.column("stack")[lane.rows]):
            continue
        stacks, starts = ops.column("stack")[lane.rows], lane.starts[:-1]
        differs = np.minimum.reduceat(stacks, starts) != np.maximum.reduceat(stacks, starts)
        for index in np.flatnonzero(differs & np.isin(ops.column("name")[lane.rows[starts]], rooted)).tolist():
            rows = lane.rows_at(index)
            votes = Counter(ops.column("stack")[rows].tolist()).most_common()
            odd_rows = rows[ops.column("stack")[rows] != votes[0][0]]
            if len(odd_rows) != 1:
                continue
            odd, reference = int(odd_rows[0]), int(rows[ops.column("stack")[rows] == votes[0][0]][0])
            if len(rows) == 2 and not _only_once(case, odd):
                odd, reference = reference, odd
            usual = lane.rows[ops.column("rank")[lane.rows] == ops[odd].rank]
            shared = np.any(case.alignment.call[usual] == case.alignment.call[reference])
            if _only_once(case, odd) and shared:
                seq = int(lane.seqs[index])
                found = Divergence(
                    lane.group.index, seq, Shape.OTHER_OPERATION, (ops[odd].rank,), False, odd, reference
                )
                return _silent_draft(case, found)
    return None


def _only_once(case: Case, row: int) -> bool:
    """Whether this call was made nowhere else, by nobody."""
    return int(np.sum(case.alignment.call == case.alignment.call[row])) == 1


def _silent_draft(case: Case, d: Divergence) -> Draft:
    odd, reference = case.job.ops[d.odd_row], case.job.ops[d.reference_row]
    lines = _lines(case, odd, reference)
    text = f"called {odd.name} #{d.seq} once from a line that nobody else ever used"
    return Draft(
        kind="mismatch",
        hang=False,
        headline=f"rank {odd.rank} {text}, perhaps with another root",
        summary=f"Nothing hangs, but rank {odd.rank} {text}, perhaps with another root: then the result is wrong.",
        confidence="medium",
        rule="mismatch: a rooted operation called once from a line of its own; roots are not recorded",
        culprits={odd.rank: text},
        operation=operation_at(case, d, reference),
        why=[
            Finding(
                f"{odd.name} #{d.seq} was called from two lines: {lines}",
                (*case.source(odd.rank, odd), *case.source(reference.rank, reference)),
            )
        ],
        next_steps=[f"code: compare the source rank that the two calls of {odd.name} pass ({lines})"],
    )


def _odd_caller(case: Case, wait: Wait) -> Divergence | None:
    lane = case.alignment.lanes.get(wait.group)
    last = None if lane is None or wait.seq is None else lane.index_of(wait.seq)
    if lane is None or last is None:
        return None
    ops = case.job.ops
    for index in range(last, max(last - _LOOK_BACK - 1, -1), -1):
        rows = lane.rows_at(index)
        stacks = ops.column("stack")[rows]
        if ops[int(rows[0])].name not in _ROOTED or not np.all(stacks) or len(rows) < 2:
            continue
        votes = Counter(stacks.tolist()).most_common()
        odd_rows = rows[stacks != votes[0][0]]
        if len(odd_rows) != 1:
            continue
        pair = len(rows) == 2
        odd, reference = int(odd_rows[0]), int(rows[stacks == votes[0][0]][0])
        # The root itself often has a line of its own (it loads what it then broadcasts), and it mostly is the first
        # member; unless it used the others' line in earlier rounds.
        first = ops[odd].rank == (lane.group.members or (-1,))[0]
        shared = _shared_line_before(case, lane, index, ops[odd].rank, reference)
        if (
            not shared
            and (first or index < last - 4 or (index != last and not wait.finished))
            and not (pair and index == last)
        ):
            continue
        if came_from_elsewhere_before(case.alignment, lane, index, ops[odd].rank, ops[reference].rank):
            continue
        accused = tuple(sorted({ops[odd].rank, ops[reference].rank})) if pair else (ops[odd].rank,)
        return Divergence(wait.group, int(lane.seqs[index]), Shape.OTHER_OPERATION, accused, pair, odd, reference)
    return None


def _shared_line_before(case: Case, lane: Lane, index: int, rank: int, reference: int) -> bool:
    """Whether the rank made the reference's call, from the reference's line, in an earlier round."""
    rows = lane.rows[: lane.starts[index]]
    mine = rows[case.job.ops.column("rank")[rows] == rank]
    return bool(np.any(case.alignment.call[mine] == case.alignment.call[reference]))


def _draft(case: Case, wait: Wait, d: Divergence) -> Draft:
    odd, reference = case.job.ops[d.odd_row], case.job.ops[d.reference_row]
    lines = _lines(case, odd, reference)
    text = f"called {odd.name} #{d.seq} from another line than {'its peer' if d.tied else 'all others'}"
    names = ranks_text(d.odd)
    after = f"is finished on some ranks and stuck on {ranks_text(wait.waiters)}" if wait.finished else "does not finish"
    return Draft(
        kind="mismatch",
        headline=f"{names} {text}, perhaps with another root",
        summary=f"{sentence(names)} {text}, perhaps with another root; {case.title(wait)} {after}.",
        confidence="medium",
        rule="mismatch: a rooted operation called from a line of its own where members fall apart; "
        "roots are not recorded",
        culprits=dict.fromkeys(d.odd, text),
        operation=operation_at(case, d, reference),
        why=[
            Finding(
                f"{odd.name} #{d.seq} was called from two lines: {lines}",
                (*case.source(odd.rank, odd), *case.source(reference.rank, reference)),
            ),
            Finding(f"{case.title(wait)} {after}", case.source(wait.waiters[0])),
        ],
        next_steps=[
            f"code: compare the source rank that the two calls of {odd.name} pass ({lines})",
            "if they agree, suspect the network: collect NCCL's log and the port counters",
        ],
    )


def _lines(case: Case, odd: Operation, reference: Operation) -> str:
    mine, theirs = case.user_frame(odd.frames), case.user_frame(reference.frames)
    if mine is None or theirs is None:
        return ""
    return f"rank {odd.rank} at {mine.filename}:{mine.line}, rank {reference.rank} at {theirs.filename}:{theirs.line}"
