"""mismatch over several groups: in a cycle of waits, ranks that left a call out or made one that nobody else makes."""

from collections.abc import Iterator
from dataclasses import dataclass

from hangscope.diagnosis.accusation import HIGH, Accusation, Accused, Doubt, Grounds, Layer
from hangscope.diagnosis.case import Case, size_and_types
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.sentences import called_in, who_did_what
from hangscope.diagnosis.evidence.code_lines import at
from hangscope.diagnosis.findings import outlier_finding
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, OperationInFlight
from hangscope.diagnosis.waits.call_order import Outlier, Sort
from hangscope.model import Kind, Operation
from hangscope.text import verb

CALL_ORDER = Grounds(
    "call_order",
    Layer.MISSED_RANKS,
    HIGH,
    "after the same calls, most others made a different one",
    before={
        "wait_cycle": "test_edges.py::test_the_call_that_started_a_cycle_goes_before_the_cycle",
    },
)

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class UnusualCalls:
    """What the accused called, by rank."""

    outliers: tuple[Outlier, ...]


def propose(case: Case) -> Iterator[Accusation[UnusualCalls]]:
    """Ranks of a wait cycle that left a call out, or made one that nobody else makes: no mere change of order."""
    if not case.cycle or {outlier.sort for outlier in case.outliers.values()} not in ({Sort.SKIPPED}, {Sort.EXTRA}):
        return
    found = sorted(case.outliers.values(), key=lambda outlier: outlier.rank)
    first = found[0]
    yield Accusation(
        CALL_ORDER,
        CauseKind.MISMATCH,
        UnusualCalls(tuple(found)),
        [Accused(outlier.rank, CauseKind.MISMATCH) for outlier in found],
        operation=_in_flight(case, case.job.ops[first.usual_row if first.sort is Sort.SKIPPED else first.row]),
        doubts=[Doubt.FEW_CONFIRM] if len(found) > 1 or first.few_votes else (),
        explains=[wait for rank in case.cycle for wait in case.waits.of[rank]],
    )


def _in_flight(case: Case, call: Operation) -> OperationInFlight:
    """The operation that the cycle hangs on, as its waiters see it."""
    for wait in case.waits.all:
        if any(unit.row == call.row for unit in wait.inside):
            return case.operation_of(wait)
    return OperationInFlight(
        case.names.group(call.group.index),
        call.group.members or (call.rank,),
        call.seq,
        call.name,
        *size_and_types(call),
        {call.rank: call.state.name.lower()},
        call.frames,
    )


def words(case: Case, accusation: Accusation[UnusualCalls]) -> Words:
    first = accusation.facts.outliers[0]
    usual = case.job.ops[first.usual_row]
    what, step = _what_and_step(case, accusation, usual)
    return who_did_what(
        case,
        accusation,
        what,
        f", where the rest called {usual.name}: the job hangs.",
        why=[outlier_finding(case, outlier) for outlier in accusation.facts.outliers[:_SHOWN]],
        steps=[step],
        place=False,
    )


def _what_and_step(case: Case, accusation: Accusation[UnusualCalls], usual: Operation) -> tuple[str, str]:
    """What the ranks did with the usual call, and where to look."""
    first = accusation.facts.outliers[0]
    call = case.job.ops[first.row]
    here = called_in(case, call)
    names = ranks_text(accusation.ranks)
    if call.kind in (Kind.SEND, Kind.RECV) and (call.kind, call.frames) == (usual.kind, usual.frames):
        what = f"called {call.title}{here}, which names a different peer than usual"
        return what, f"code: check the peer in the call{here}"
    if first.sort is Sort.SKIPPED:
        what = f"skipped {usual.name}{called_in(case, usual)} and continued with {call.title}{here}"
        return what, f"code: find the branch that keeps {names} from the call{at(usual.frames)}"
    what = f"called {call.title}{here}, which does not belong there"
    return what, f"code: find out why only {names} {verb(accusation.ranks, 'makes', 'make')} the call{here}"


CAUSE = Cause(propose, words, (CALL_ORDER,))
