"""mismatch, all_to_all: the members send another number of elements than they expect, and all sizes differ by design.

A recording holds the sums alone, so nothing says whose split is wrong, and nobody is accused.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Grounds, Layer
from hangscope.diagnosis.align.divergence import Divergence
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.causes.shared.disagreements import disagreements
from hangscope.diagnosis.evidence.code_lines import at
from hangscope.diagnosis.findings import entry, who_waits
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind
from hangscope.model import Operation

SPLIT_SUMS_DIFFER = Grounds(
    "split_sums_differ",
    Layer.OTHER_CALLS,
    MEDIUM,
    "sent and expected elements differ; all sizes differ by design, so nobody is accused",
)


@dataclass(frozen=True, slots=True)
class Sums:
    """How many elements all members of a call send, and how many they expect."""

    call: Operation
    seq: int
    sent: int
    expected: int


def propose(case: Case) -> Iterator[Accusation[Sums]]:
    """Calls whose members disagree about the sum of what they exchange."""
    for divergence, hangs in disagreements(case):
        if not divergence.odd:
            yield Accusation(
                SPLIT_SUMS_DIFFER,
                CauseKind.MISMATCH,
                _sums(case, divergence),
                operation=case.operation_at(divergence),
                doubts=() if case.hung else case.doubts_of_running,
                explains=[w for w in case.waits.all if (w.group, w.seq) == (divergence.group, divergence.seq)],
                hang=hangs,
            )


def _sums(case: Case, divergence: Divergence) -> Sums:
    lane = case.alignment.lanes[divergence.group]
    calls = [case.job.ops[row] for row in lane.rows_at(lane.index_of(divergence.seq) or 0).tolist()]
    sent = sum(math.prod(shape) for call in calls for shape in call.input_shapes)
    expected = sum(math.prod(shape) for call in calls for shape in call.output_shapes)
    return Sums(calls[0], divergence.seq, sent, expected)


def words(case: Case, accusation: Accusation[Sums]) -> Words:
    sums = accusation.facts
    operation = accusation.operation
    assert operation is not None
    less = "fewer" if sums.sent < sums.expected else "more"
    difference = f"{abs(sums.sent - sums.expected):,} elements {less} than they expect"
    what = f"the members of {sums.call.name} #{sums.seq} send {difference}"
    counted = entry(case, f"{what}: {sums.sent:,} are sent, {sums.expected:,} expected", sums.call)
    waiting = {rank for wait in accusation.explains for rank in wait.waiters}
    stuck = f", and {ranks_text(waiting)} cannot finish it" if waiting else ""
    call = f"the call{at(operation.frames)}"
    return Words(
        headline=f"{what}; whose split sizes are wrong is not recorded",
        summary=f"Split sizes disagree: {what} in {operation.group}{stuck}. Dumps hold only the sums, so "
        "no rank can be named.",
        why=[counted, *(who_waits(case, wait) for wait in accusation.explains)],
        steps=[f"code: print the split sizes of every rank before {call}, and compare them pair by pair"],
    )


CAUSE = Cause(propose, words, (SPLIT_SUMS_DIFFER,), Asked.ALWAYS)
