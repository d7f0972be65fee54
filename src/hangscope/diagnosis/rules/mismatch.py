"""mismatch: a rank runs another operation, order, size, type or split than its group at the same position."""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.align import is_guessed
from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.divergence import Divergence, Shape
from hangscope.diagnosis.rules.splits import ragged
from hangscope.diagnosis.verdict import Finding, OperationInFlight
from hangscope.diagnosis.words import first_line, plural, ranks_text, sentence, shape_text, size_text
from hangscope.model import Operation, State

_HARMLESS_AFTER = 8
_HARMLESS_AFTER_IF_NOBODY_IS_MISSING = 64
"""A disagreement after which this many operations of the group went well on every member did not cause the hang."""
_CALLS_LISTED = 3


def hung_mismatch(case: Case) -> Draft | None:
    """Ranks that disagree with their group at or shortly before the operation that hangs."""
    for divergence in case.divergences:
        if _explains_the_hang(case, divergence):
            return _draft(case, divergence, hang=True)
    return None


def silent_mismatch(case: Case) -> Draft | None:
    """Ranks that disagreed with their group although nothing hung: the results are silently wrong."""
    return _draft(case, case.divergences[0], hang=False) if case.divergences else None


def _explains_the_hang(case: Case, divergence: Divergence) -> bool:
    lane = case.alignment.lanes[divergence.group]
    ops = case.job.ops
    state = ops.column("state")
    unfinished = clean = 0
    members = len(lane.group.members or ())
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
    if divergence.shape is Shape.SKIPPED and not divergence.by_custom and unfinished and _ends_short(case, divergence):
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


def _draft(case: Case, divergence: Divergence, *, hang: bool) -> Draft:
    ops = case.job.ops
    odd, reference = ops[divergence.odd_row], ops[divergence.reference_row]
    if not divergence.odd:
        return ragged(case, divergence, operation_at(case, divergence, reference), hang=hang)
    where = case.group_label(divergence.group)
    what = _what(case, divergence, odd, reference)
    who = ranks_text(divergence.odd)
    if divergence.tied:
        who = f"the two sides of {where}" if len(divergence.odd) > 2 else who
    headline = f"{who} {what.short}"
    summary = f"{_who_and_where(case, divergence)} {what.long}"
    summary += ": the job hangs." if hang else "; nothing hung, but the result is silently wrong."
    why = [*what.findings]
    line = case.user_frame(reference.frames)
    own = case.user_frame(odd.frames)
    if divergence.parted_at and line and own and (line.filename, line.line) != (own.filename, own.line):
        why.append(
            Finding(
                f"the code paths part here: {ranks_text(divergence.odd)} went on at {_at(own)}, the rest "
                f"at {_at(line)}",
                (*case.source(odd.rank, odd), *case.source(reference.rank, reference)),
                case.user_frames(odd.frames) if divergence.shape is Shape.SKIPPED else (),
            )
        )
    confidence, rule = _confidence(case, divergence)
    steps = [_step(case, divergence, odd, reference)]
    error = next((e for r in divergence.odd if (e := case.fates.error(r)) is not None), None)
    if error is not None:
        frames = tuple(f"{f.filename}:{f.line}  {f.name}" for f in error.frames[-3:])
        why.append(
            Finding(f"rank {error.rank} printed {error.type}: {first_line(error.message)}", (error.source,), frames)
        )
        steps.append(
            "an exception that is caught on one rank must not skip a collective: re-raise it, or vote on it first"
        )
    if not hang:
        steps.append("do not trust results of this run from that step on")
    waiting = [w for w in case.waits.all if w.group == divergence.group]
    for wait in waiting[:2]:
        # Ranks that disagree at one position are inside operations of their own there.
        differs = wait.seq == divergence.seq and case.title(wait) != odd.title
        apart = [r for r in wait.waiters if r in divergence.odd and differs]
        together = [r for r in wait.waiters if r not in apart]
        for ranks, title in ((together, case.title(wait)), (apart, odd.title)):
            if ranks:
                verb = "waits" if len(ranks) == 1 else "wait"
                why.append(Finding(f"{ranks_text(ranks)} now {verb} in {title}", case.source(ranks[0])))
    return Draft(
        kind="mismatch",
        hang=hang,
        headline=headline,
        summary=summary,
        confidence=confidence,
        rule=rule,
        culprits=dict.fromkeys(divergence.odd, what.short),
        operation=operation_at(case, divergence, reference),
        why=why,
        next_steps=steps,
        victims_of=None,
    )


class _What:
    def __init__(self, short: str, long: str, findings: list[Finding]) -> None:
        self.short, self.long, self.findings = short, long, findings


def _what(case: Case, d: Divergence, odd: Operation, reference: Operation) -> _What:
    where = case.group_label(d.group)
    sources = (*case.source(odd.rank, odd), *case.source(reference.rank, reference))
    others = "the rest" if not d.tied else f"rank {reference.rank}"
    if d.shape in (Shape.SKIPPED, Shape.ADDED):
        calls = [case.job.ops[row] for row in d.calls]
        call = calls[0]
        at = _called(case, call)
        text = _count(d, f"{call.name} #{d.seq}", len(calls))
        added = "added" if d.shape is Shape.ADDED else "left out"
        named = f"{call.name} {shape_text(call)}{at} was {added}"
        if len(calls) > 1:
            listed = ", ".join(f"{c.name} {shape_text(c)}{_called(case, c)}" for c in calls[:_CALLS_LISTED])
            named = f"{len(calls)} calls were {added}: {listed}{', …' * (len(calls) > _CALLS_LISTED)}"
        if d.by_custom:
            said = (
                f"{ranks_text(d.odd)} went on with {odd.name} {shape_text(odd)}{_called(case, odd)}, which usually "
                f"comes {plural(len(calls), 'call')} after {call.name} {shape_text(call)} "
                f"({plural(d.support, 'earlier round')}): {named}"
            )
        else:
            said = (
                f"moved by {len(calls)}, the sequence of {ranks_text(d.odd)} fits the others' again "
                f"({plural(d.support, 'later operation')} {'agrees' if d.support == 1 else 'agree'}): {named}"
            )
        finding = Finding(said, sources, case.user_frames(call.frames))
        return _What(text, f"{_count(d, f'{call.name} #{d.seq}{at}', len(calls))}, in {where}", [finding])
    if d.shape is Shape.OTHER_OPERATION:
        text = f"ran {odd.name} where {others} ran {reference.name} (#{d.seq})"
        finding = Finding(
            f"at #{d.seq} of {where}, {ranks_text(d.odd if not d.tied else [odd.rank])} ran {odd.name} "
            f"{shape_text(odd)}, "
            f"{others} {reference.name} {shape_text(reference)}",
            sources,
            case.user_frames(odd.frames),
        )
        return _What(text, f"{text} in {where}", [finding])
    if d.shape is Shape.OTHER_SPLITS:
        text = f"passed other split sizes to {reference.name} #{d.seq}"
        finding = Finding(
            f"over all members of {where}, {reference.name} #{d.seq} sends another number of elements "
            f"than it receives; "
            f"rank {odd.rank} sends {shape_text(odd)}",
            sources,
            case.user_frames(odd.frames),
        )
        return _What(text, f"{text} in {where}", [finding, *_truncations(case)])
    sizes = odd.size_bytes, reference.size_bytes
    if d.shape is Shape.OTHER_TYPE or None in sizes or sizes[0] == sizes[1]:
        text = f"passed {shape_text(odd)} to {reference.name} #{d.seq}, {others} {shape_text(reference)}"
    else:
        text = f"passed {size_text(sizes[0])} to {reference.name} #{d.seq}, {others} {size_text(sizes[1])}"
    finding = Finding(
        f"at #{d.seq} of {where}, rank {odd.rank} passed {shape_text(odd)}, {others} {shape_text(reference)}",
        sources,
        case.user_frames(odd.frames),
    )
    return _What(text, f"{text}, in {where}", [finding])


def _count(d: Divergence, first: str, count: int) -> str:
    """``left out all_reduce #9``, ``made 2 calls too many, from broadcast #24 on``."""
    if d.shape is Shape.SKIPPED:
        return f"left out {first}" if count == 1 else f"left out {count} calls, from {first} on"
    return f"made one call too many: {first}" if count == 1 else f"made {count} calls too many, from {first} on"


def _called(case: Case, operation: Operation) -> str:
    frame = case.user_frame(operation.frames)
    return f" at {_at(frame)}" if frame else ""


def _truncations(case: Case) -> list[Finding]:
    events = [e for e in case.job.facts.transport if e.kind == "size_desync"]
    return [Finding(f"NCCL on rank {e.rank}: {' '.join(e.text.split())[:160]}", (e.source,)) for e in events[:2]]


def _confidence(case: Case, d: Divergence) -> tuple[str, str]:
    if d.tied:
        return "medium", "mismatch: two equal sides; the evidence cannot say which one is wrong"
    if d.shape is Shape.OTHER_SPLITS:
        return "high" if _truncations(case) or len(
            d.odd
        ) == 1 else "medium", "mismatch: sent and received elements differ"
    if d.shape in (Shape.SKIPPED, Shape.ADDED) and d.support < 2:
        return "medium", "mismatch: a shift that few later operations confirm"
    members = case.groups[d.group].members or ()
    if is_guessed(case.groups[d.group]):
        return "low", "mismatch: the format (torch 2.2) does not say who belongs to the group"
    if len(d.odd) * 4 > len(members) and len(d.odd) > 1:
        return "medium", "mismatch: so many ranks differ that they may be right"
    seen = sum(1 for r in members if case.standings.of.get(r) and case.standings.of[r].source == "dump")
    if len(members) >= 3 and seen < len(members) and seen - len(d.odd) <= len(d.odd):
        return "medium", "mismatch: a majority, but not of all members, since dumps are missing"
    return "high", "mismatch: a clear majority of the group's own recordings disagrees with the rank"


def _step(case: Case, d: Divergence, odd: Operation, reference: Operation) -> str:
    line, own = case.user_frame(reference.frames), case.user_frame(odd.frames)
    where = f" at {_at(line)}" if line is not None else ""
    mine = f"; {ranks_text(d.odd)} was at {_at(own)}" if own is not None and str(own) != str(line) else ""
    if d.shape is Shape.SKIPPED:
        return f"code: find the branch that keeps {ranks_text(d.odd)} from the call{where}{mine}"
    if d.shape is Shape.ADDED:
        return f"code: find why only {ranks_text(d.odd)} makes the extra call{_reached(case, odd)}"
    if d.shape is Shape.OTHER_SPLITS:
        return f"code: print the input and output split sizes on every rank before the call{where}"
    if d.shape is Shape.OTHER_OPERATION and not d.tied:
        calls = "calls" if len(d.odd) == 1 else "call"
        here = f"{odd.name}{_reached(case, odd)}"
        return f"code: find why {ranks_text(d.odd)} {calls} {here}, and the rest {reference.name}{where}"
    return f"code: compare what the ranks pass to the call{where}{mine}"


def _reached(case: Case, operation: Operation) -> str:
    """Where a call was made, and from where that was called: the innermost line is often a helper that all share."""
    own = case.own_frames(operation.frames)
    if not own:
        return ""
    return f" at {_at(own[0])}" + (f" (from {_at(own[1])})" if len(own) > 1 else "")


def _at(frame: object) -> str:
    return f"{frame.filename}:{frame.line}"  # type: ignore[attr-defined]  # a Frame


def _who_and_where(case: Case, d: Divergence) -> str:
    return sentence(case.whom(d.odd))


def operation_at(case: Case, d: Divergence, reference: Operation) -> OperationInFlight:
    """The position of the disagreement, over all members."""
    group = case.groups[d.group]
    lane = case.alignment.lanes[d.group]
    index = lane.index_of(d.seq)
    rows = lane.rows_at(index) if index is not None else np.empty(0, dtype=np.int64)
    states = {
        int(case.job.ops.column("rank")[r]): State(int(case.job.ops.column("state")[r])).name.lower() for r in rows
    }
    for rank in group.members or ():
        if rank not in states:
            known = case.standings.of.get(rank)
            states[rank] = "not launched" if known and known.source == "dump" and known.whole else "unknown"
    call = case.job.ops[d.calls[0]] if d.shape is Shape.SKIPPED and d.calls else reference
    return OperationInFlight(
        group=case.group_label(d.group),
        members=group.members or tuple(sorted(states)),
        seq=d.seq,
        name=call.name,
        bytes=call.size_bytes,
        dtypes=call.input_dtypes or call.output_dtypes,
        state_by_rank=dict(sorted(states.items())),
        frames=call.frames,
    )
