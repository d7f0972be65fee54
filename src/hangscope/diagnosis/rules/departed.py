"""mismatch over several groups: in a knot of waits, a rank that left a call out, or made one that nobody else makes."""

from __future__ import annotations

from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.custom import Departure, Sort
from hangscope.diagnosis.verdict import Finding, OperationInFlight
from hangscope.diagnosis.words import ranks_text, sentence
from hangscope.model import Kind, Operation


def departed(case: Case) -> Draft | None:
    """Ranks whose calls part from those of their peers, where that is no mere change of order."""
    sorts = {departure.sort for departure in case.departures.values()}
    if len(sorts) != 1 or sorts == {Sort.ORDER}:
        return None
    found = sorted(case.departures.values(), key=lambda departure: departure.rank)
    first = found[0]
    call, usual = case.job.ops[first.row], case.job.ops[first.usual_row]
    if call.kind in (Kind.SEND, Kind.RECV) and (call.kind, call.frames) == (usual.kind, usual.frames):
        what = f"called {call.title}{case.at(call.frames)}, which names another peer than is the custom there"
        step = f"code: check the peer in the call{case.at(call.frames)}"
    elif first.sort is Sort.SKIPPED:
        what = f"left out {usual.name}{case.at(usual.frames)} and went on with {call.title}{case.at(call.frames)}"
        step = f"code: find the branch that keeps {ranks_text(case.departures)} from the call{case.at(usual.frames)}"
    else:
        what = f"called {call.title}{case.at(call.frames)}, which does not belong there"
        step = f"code: find why only {ranks_text(case.departures)} makes the call{case.at(call.frames)}"
    operation = usual if first.sort is Sort.SKIPPED else call
    return Draft(
        kind="mismatch",
        headline=f"{ranks_text(case.departures)} {what}",
        summary=f"{sentence(case.whom(case.departures))} {what}, where the rest called {usual.name}: the job hangs.",
        confidence="high" if len(found) == 1 and first.sure else "medium",
        rule="mismatch: after the same calls, most others went on with another one",
        culprits=dict.fromkeys(case.departures, what),
        operation=_in_flight(case, operation),
        why=[departure_finding(case, departure) for departure in found[:3]],
        next_steps=[step],
    )


def departure_finding(case: Case, departure: Departure) -> Finding:
    """What a rank called, and what the others did after the same calls before it."""
    call, usual = case.job.ops[departure.row], case.job.ops[departure.usual_row]
    due = case.job.ops[departure.own_row].group
    who = "other ranks" if usual.rank != call.rank else "earlier rounds of its own"
    return Finding(
        f"after the same calls before it, rank {departure.rank} went on with {call.title} of "
        f"{case.group_label(call.group.index)}{case.at(call.frames)}; the custom there, by {departure.votes} {who}, is "
        f"{usual.name} of {case.group_label(due.index)}{case.at(usual.frames)}",
        (*case.source(departure.rank, call), *case.source(usual.rank, usual)),
    )


def _in_flight(case: Case, operation: Operation) -> OperationInFlight | None:
    """The operation that the knot hangs on, as its waiters see it."""
    for wait in case.waits.all:
        if any(unit.row == operation.row for unit in wait.inside):
            return case.operation_of(wait)
    group = operation.group
    return OperationInFlight(
        group=case.group_label(group.index),
        members=group.members or (operation.rank,),
        seq=operation.seq,
        name=operation.name,
        bytes=operation.size_bytes,
        dtypes=operation.input_dtypes or operation.output_dtypes,
        state_by_rank={operation.rank: operation.state.name.lower()},
        frames=operation.frames,
    )
