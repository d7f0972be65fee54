"""mismatch: a rank runs another operation, order, size, type or split than its group at the same position."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hangscope.diagnosis.accusation import Accusation, Accused, Basis, Doubt, doubts_where
from hangscope.diagnosis.align.agreement import members_not_recorded
from hangscope.diagnosis.align.divergence import Divergence, Shape
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.code_lines import at, shown
from hangscope.diagnosis.findings import entry, printed, quoted, who_waits
from hangscope.diagnosis.phrases import ranks_text, shape_text
from hangscope.diagnosis.verdict import Finding, OperationInFlight
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import Operation, State
from hangscope.text import plural, verb

_HARMLESS_AFTER = 8
# A disagreement after which this many operations of the group went well on every member did not cause the hang.
_HARMLESS_AFTER_IF_NOBODY_IS_MISSING = 64
_CALLS_LISTED = 3


def hung_mismatch(case: Case) -> Iterator[Accusation]:
    """Ranks that disagree with their group at or shortly before the operation that hangs."""
    for divergence in case.divergences:
        if _explains_the_hang(case, divergence):
            yield _accusation(case, divergence, hang=True)


def silent_mismatch(case: Case) -> Iterator[Accusation]:
    """Ranks that disagreed with their group although nothing hung: the results are silently wrong.

    Where the ranks that disagree have not got past it, it has begun to hang, however young the evidence.
    """
    for divergence in case.divergences[:1]:
        begun = _explains_the_hang(case, divergence) if case.waits.all else _ends_there(case, divergence)
        found = _accusation(case, divergence, hang=begun)
        yield replace(found, doubts={*found.doubts, *case.doubts_of_running})


def _ends_there(case: Case, divergence: Divergence) -> bool:
    """Whether a Gloo job ends with ranks in different operations. There an operation that raised reads as completed."""
    lane = case.alignment.lanes[divergence.group]
    gloo = Doubt.RAISED_READS_DONE in case.doubts_of_running
    ends = divergence.shape is Shape.OTHER_OPERATION and int(lane.seqs[-1]) <= divergence.seq + 1
    return gloo and ends and not all(p.exit_status == 0 for p in case.job.processes.values())


def _explains_the_hang(case: Case, divergence: Divergence) -> bool:
    lane, state = case.alignment.lanes[divergence.group], case.job.ops.column("state")
    unfinished, clean, members = 0, 0, len(lane.group.members or ())
    for index in range(lane.index_of(divergence.seq) or 0, len(lane.seqs)):
        rows = lane.rows_at(index)
        if np.any(state[rows] != State.COMPLETED):
            unfinished += 1
        elif len(rows) == members and len(set(lane.signatures_at(index).tolist())) == 1:
            clean += 1
    stuck_elsewhere = any(set(divergence.odd) & set(w.waiters) for w in case.waits.all)
    # Where nobody is missing in that group, the choice is between this and a failing network, and this was seen.
    nobody_missing = any(w.group == divergence.group and not w.blockers for w in case.waits.all)
    limit = _HARMLESS_AFTER_IF_NOBODY_IS_MISSING if nobody_missing else _HARMLESS_AFTER
    if divergence.shape is Shape.SKIPPED and not divergence.by_habit and unfinished and _ends_short(case, divergence):
        return True
    return clean < limit and (unfinished > 0 or stuck_elsewhere)


def _ends_short(case: Case, divergence: Divergence) -> bool:
    """Whether the odd ranks end as many calls behind the rest as they left out.

    NCCL swallows a skip where the calls that meet have one size, and in a row of like calls positions agree by chance.
    """
    lane = case.alignment.lanes[divergence.group]
    seq = case.job.ops.column("seq")[lane.rows]
    odd = np.isin(case.job.ops.column("rank")[lane.rows], divergence.odd)
    return bool(odd.any()) and int(seq[~odd].max(initial=0)) - int(seq[odd].max()) == len(divergence.calls)


def _accusation(case: Case, d: Divergence, *, hang: bool) -> Accusation:
    operation, waits = case.operation_at(d), [w for w in case.waits.all if w.group == d.group]
    if not d.odd:
        return _ragged(case, d, operation, hang)
    basis = Basis.SPLITS_DIFFER if d.shape is Shape.OTHER_SPLITS else Basis.CALLS_DIFFER
    basis = basis if hang else Basis.CALLS_DIFFER_SILENTLY
    accused, findings = [Accused(rank, "mismatch") for rank in d.odd], _findings(case, d, waits)
    found = Accusation(basis, "mismatch", accused, findings=findings, doubts=_doubts(case, d), hang=hang)
    return replace(found, operation=operation, detail=d, explains=waits)


def _findings(case: Case, d: Divergence, waits: list[Wait]) -> list[Finding]:
    odd, reference = case.job.ops[d.odd_row], case.job.ops[d.reference_row]
    call = case.job.ops[d.calls[0]] if d.shape in (Shape.SKIPPED, Shape.ADDED) else odd
    findings = [
        replace(entry(case, _what(case, d, odd, reference), odd, reference), detail=shown(case.frames_of(call)))
    ]
    findings += _truncations(case) if d.shape is Shape.OTHER_SPLITS else []
    if d.parted_at and at(odd.frames) and at(reference.frames) and at(odd.frames) != at(reference.frames):
        text = f"{ranks_text(d.odd)} went on{at(odd.frames)}, the rest{at(reference.frames)}"
        skipped = d.shape is Shape.SKIPPED
        findings.append(entry(case, f"the code paths part here: {text}", odd, reference, frames=skipped))
    findings += [printed(error) for rank in d.odd if (error := case.liveness.error(rank)) is not None][:1]
    # What each side waits in. Ranks that disagree at one position are inside operations of their own there.
    for wait in waits[:2]:
        differs = wait.seq == d.seq and case.names.wait(wait) != odd.title
        apart = [r for r in wait.waiters if r in d.odd and differs]
        together = [r for r in wait.waiters if r not in apart]
        for ranks, title in ((together, case.names.wait(wait)), (apart, odd.title)):
            if ranks:
                text = f"{ranks_text(ranks)} now {verb(ranks, 'waits', 'wait')} in {title}"
                findings.append(Finding(text, case.source(ranks[0])))
    return findings


def _what(case: Case, d: Divergence, odd: Operation, reference: Operation) -> str:
    others = "the rest" if not d.tied else f"rank {reference.rank}"
    if d.shape in (Shape.SKIPPED, Shape.ADDED):
        return _shifted(case, d, odd)
    text = f"rank {odd.rank} passed {shape_text(odd)}, {others} {shape_text(reference)}"
    if d.shape is Shape.OTHER_OPERATION:
        who = ranks_text(d.odd if not d.tied else [odd.rank])
        text = f"{who} ran {odd.name} {shape_text(odd)}, {others} {reference.name} {shape_text(reference)}"
    elif d.shape is Shape.OTHER_SPLITS:
        sends = f"{reference.name} sends another number of elements than it receives"
        text = f"over all members, {sends}; rank {odd.rank} sends {shape_text(odd)}"
    return f"at #{d.seq} of {case.names.group(d.group)}, {text}"


def _shifted(case: Case, d: Divergence, odd: Operation) -> str:
    calls, call = [_call(case.job.ops[row]) for row in d.calls], case.job.ops[d.calls[0]]
    added = "added" if d.shape is Shape.ADDED else "left out"
    named = f"{calls[0]} was {added}"
    if len(calls) > 1:
        more = ", …" if len(calls) > _CALLS_LISTED else ""
        named = f"{len(calls)} calls were {added}: {', '.join(calls[:_CALLS_LISTED])}{more}"
    if d.by_habit:
        after = f"{plural(len(calls), 'call')} after {call.name} {shape_text(call)}"
        rounds = plural(d.support, "earlier round")
        return f"{ranks_text(d.odd)} went on with {_call(odd)}, which usually comes {after} ({rounds}): {named}"
    agree = f"{plural(d.support, 'later operation')} {'agrees' if d.support == 1 else 'agree'}"
    return f"moved by {len(calls)}, the sequence of {ranks_text(d.odd)} fits the others' again ({agree}): {named}"


def _call(operation: Operation) -> str:
    return f"{operation.name} {shape_text(operation)}{at(operation.frames)}"


def _truncations(case: Case) -> list[Finding]:
    return [quoted(event) for event in case.job.facts.transport if event.kind == "size_desync"][:2]


def _ragged(case: Case, d: Divergence, operation: OperationInFlight, hang: bool) -> Accusation:
    """The sums disagree, and as all sizes differ by design, nothing says whose split is wrong."""
    lane = case.alignment.lanes[d.group]
    members = [case.job.ops[row] for row in lane.rows_at(lane.index_of(d.seq) or 0).tolist()]
    sent = sum(math.prod(shape) for op in members for shape in op.input_shapes)
    expected = sum(math.prod(shape) for op in members for shape in op.output_shapes)
    less = "fewer" if sent < expected else "more"
    what = f"the members of {members[0].name} #{d.seq} send {abs(sent - expected):,} elements {less} than they expect"
    stuck = [w for w in case.waits.all if (w.group, w.seq) == (d.group, d.seq)]
    sums = entry(case, f"{what}: {sent:,} are sent, {expected:,} expected", members[0])
    findings = [sums, *(who_waits(case, w) for w in stuck)]
    found = Accusation(Basis.SPLITS_RAGGED, "mismatch", findings=findings, hang=hang, explains=stuck)
    return replace(found, operation=operation, detail=what)


def _doubts(case: Case, d: Divergence) -> list[Doubt]:
    members, odd = case.groups[d.group].members or (), len(d.odd)
    few = d.shape in (Shape.SKIPPED, Shape.ADDED) and d.support < 2
    few = few or (d.shape is Shape.OTHER_SPLITS and odd != 1 and not _truncations(case))
    seen = sum(1 for r in members if r in case.progress.of and case.progress.of[r].source == "dump")
    found = {
        Doubt.TWO_SIDES: d.tied,
        Doubt.FEW_CONFIRM: few and not d.tied,
        Doubt.OTHER_GROUPS_POSSIBLE: members_not_recorded(case.groups[d.group]),
        Doubt.MANY_ACCUSED: odd * 4 > len(members) and odd > 1,
        Doubt.VOTES_MISSING: len(members) >= 3 and seen < len(members) and seen <= 2 * odd,
    }
    return doubts_where(found)
