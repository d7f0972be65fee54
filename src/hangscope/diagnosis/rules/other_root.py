"""mismatch, rooted operations: a rank called a broadcast from a line of its own, and then bytes went missing.

A dump does not record the root. But where some members finish an operation that others are stuck in, and one rank came
to a rooted operation just before from a line of its own, another root is the likelier cause than a broken network.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.divergence import Divergence, Shape, came_from_elsewhere_before
from hangscope.diagnosis.rules.mismatch import operation_at
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.waits import Wait

_ROOTED = ("broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter")
_LOOK_BACK = 4
"""How many positions before the stuck operation are looked at."""


def other_root(case: Case) -> Draft | None:
    """One rank that reached a rooted operation from a line of its own, shortly before members fell apart."""
    for wait in case.waits.all:
        if wait.point_to_point or wait.blockers or not wait.finished or wait.seq is None:
            continue
        found = _odd_caller(case, wait)
        if found is not None:
            return _draft(case, wait, found)
    return None


def _odd_caller(case: Case, wait: Wait) -> Divergence | None:
    lane = case.alignment.lanes.get(wait.group)
    last = None if lane is None or wait.seq is None else lane.index_of(wait.seq)
    if lane is None or last is None:
        return None
    ops = case.job.ops
    for index in range(last, max(last - _LOOK_BACK - 1, -1), -1):
        rows = lane.rows_at(index)
        stacks = ops.column("stack")[rows]
        if ops[int(rows[0])].name not in _ROOTED or not np.all(stacks) or len(rows) < 3:
            continue
        votes = Counter(stacks.tolist()).most_common()
        odd_rows = rows[stacks != votes[0][0]]
        # The root itself often has a line of its own (it loads what it then broadcasts): by custom the first member.
        if len(odd_rows) != 1 or int(ops.column("rank")[odd_rows[0]]) == (lane.group.members or (-1,))[0]:
            continue
        odd, reference = int(odd_rows[0]), int(rows[stacks == votes[0][0]][0])
        if came_from_elsewhere_before(case.alignment, lane, index, ops[odd].rank, ops[reference].rank):
            continue
        return Divergence(
            wait.group, int(lane.seqs[index]), Shape.OTHER_OPERATION, (ops[odd].rank,), False, odd, reference
        )
    return None


def _draft(case: Case, wait: Wait, d: Divergence) -> Draft:
    odd, reference = case.job.ops[d.odd_row], case.job.ops[d.reference_row]
    mine, theirs = case.user_frame(odd.frames), case.user_frame(reference.frames)
    text = f"called {odd.name} #{d.seq} from another line than all others, perhaps with another root"
    lines = (
        f"rank {odd.rank} at {mine.filename}:{mine.line}, the rest at {theirs.filename}:{theirs.line}"
        if mine and theirs
        else ""
    )
    return Draft(
        kind="mismatch",
        headline=f"rank {odd.rank} {text}",
        summary=f"{case.who(odd.rank)[0].upper()}{case.who(odd.rank)[1:]} {text}; after it {case.title(wait)} "
        f"is finished on some ranks "
        "and stuck on others.",
        confidence="medium",
        rule="mismatch: a rooted operation called from a line of its own, just before members fell "
        "apart; roots are not recorded",
        culprits={odd.rank: text},
        operation=operation_at(case, d, reference),
        why=[
            Finding(
                f"{odd.name} #{d.seq} was called from two lines: {lines}",
                (*case.source(odd.rank, odd), *case.source(reference.rank, reference)),
            ),
            Finding(
                f"{case.title(wait)} then finished on some members and not on {', '.join(map(str, wait.waiters))}",
                case.source(wait.waiters[0]),
            ),
        ],
        next_steps=[
            f"code: compare the source rank that the two calls of {odd.name} pass ({lines})",
            "if they agree, suspect the network: collect NCCL's log and the port counters",
        ],
    )
