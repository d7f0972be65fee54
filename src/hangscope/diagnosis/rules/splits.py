"""mismatch: an all_to_all whose members send another number of elements than they expect, with nobody to accuse."""

from __future__ import annotations

import math

from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.divergence import Divergence
from hangscope.diagnosis.verdict import Finding, OperationInFlight
from hangscope.diagnosis.words import ranks_text


def ragged(case: Case, divergence: Divergence, operation: OperationInFlight, *, hang: bool) -> Draft:
    """The sums disagree, and as all sizes differ by design, nothing says whose split is wrong."""
    lane = case.alignment.lanes[divergence.group]
    index = lane.index_of(divergence.seq)
    rows = lane.rows_at(index).tolist() if index is not None else []
    members = [case.job.ops[row] for row in rows]
    sent = sum(math.prod(shape) for op in members for shape in op.input_shapes)
    expected = sum(math.prod(shape) for op in members for shape in op.output_shapes)
    less = "fewer" if sent < expected else "more"
    title = f"{operation.name} #{divergence.seq}"
    what = f"the members of {title} send {abs(sent - expected):,} elements {less} than they expect"
    stuck = [w for w in case.waits.all if (w.group, w.seq) == (divergence.group, divergence.seq)]
    waiting = ranks_text({rank for wait in stuck for rank in wait.waiters})
    finding = Finding(f"{what}: {sent:,} are sent, {expected:,} expected", case.source(members[0].rank, members[0]))
    inside = [
        Finding(f"{waiting} {'is' if len(w.waiters) == 1 else 'are'} still inside it", case.source(w.waiters[0]))
        for w in stuck
    ]
    return Draft(
        kind="mismatch",
        hang=hang,
        headline=f"{what}; whose split sizes are wrong is not recorded",
        summary=f"Split sizes disagree: {what} in {case.group_label(divergence.group)}"
        + (f", and {waiting} cannot finish it" if stuck else "")
        + ". A recording holds the sums alone, so nobody can be named.",
        confidence="medium",
        rule="mismatch: sent and expected elements differ; all sizes differ by design, so nobody is accused",
        operation=operation,
        why=[finding, *inside],
        next_steps=[
            f"code: print the split sizes of every rank before the call{case.at(operation.frames)}, "
            "and compare them pair by pair"
        ],
        victims_of=set(),
    )
