"""mismatch: a rank runs another operation, order, size, type or split than its group at the same position."""

from collections.abc import Iterator
from dataclasses import replace

from hangscope.diagnosis.accusation import HIGH, Accusation, Accused, Doubt, Grounds, Layer, doubts_where
from hangscope.diagnosis.align.agreement import members_not_recorded
from hangscope.diagnosis.align.divergence import Divergence, Shape
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.causes.shared.disagreements import disagreements
from hangscope.diagnosis.causes.shared.sentences import called_in
from hangscope.diagnosis.evidence.code_lines import at, changeable_frames, line, shown
from hangscope.diagnosis.findings import entry, printed, quoted
from hangscope.diagnosis.phrases import ranks_text, shape_text, shape_texts, size_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import Operation, TransportEvent
from hangscope.text import plural, sentence, verb

CALLS_DIFFER = Grounds(
    "calls_differ",
    Layer.OTHER_CALLS,
    HIGH,
    "most of the group's dumps disagree with the rank",
    needs_members=True,
    before={
        "splits_differ": "test_edges.py::test_another_call_goes_before_other_splits",
        "went_past": "test_edges.py::test_the_call_left_out_goes_before_having_gone_past",
        "one_call_more": "test_edges.py::test_the_call_too_many_goes_before_a_call_more_at_the_end",
    },
)
SPLITS_DIFFER = Grounds(
    "splits_differ",
    Layer.OTHER_CALLS,
    HIGH,
    "sent and received elements differ",
    needs_members=True,
    before={
        "split_sums_differ": "test_edges.py::test_splits_of_known_sides_go_before_sums_of_nobody",
        "reported_calls_differ": "test_edges.py::test_own_recordings_go_before_lines_about_them",
    },
)
CALLS_DIFFER_SILENTLY = Grounds(
    "calls_differ_silently",
    Layer.NO_HANG,
    HIGH,
    "most of the group's dumps disagree with the rank, and nothing hung",
    before={
        "other_line_silently": "test_edges.py::test_another_size_goes_before_another_line",
    },
)

_CALLS_LISTED = 3
_SHIFTED = (Shape.SKIPPED, Shape.ADDED)


# ---- what it looks for -----------------------------------------------------------------------------------------------


def propose(case: Case) -> Iterator[Accusation[Divergence]]:
    """Ranks that disagree with their group at or shortly before the operation that hangs; or although nothing hung, and
    then the results are silently wrong."""
    for divergence, hangs in disagreements(case):
        if divergence.odd:
            yield _accusation(case, divergence, hangs)


def _accusation(case: Case, d: Divergence, hangs: bool) -> Accusation[Divergence]:
    grounds = CALLS_DIFFER_SILENTLY
    if hangs:
        grounds = SPLITS_DIFFER if d.shape is Shape.OTHER_SPLITS else CALLS_DIFFER
    doubts = _doubts(case, d)
    return Accusation(
        grounds,
        CauseKind.MISMATCH,
        d,
        [Accused(rank, CauseKind.MISMATCH) for rank in d.odd],
        operation=case.operation_at(d),
        group=d.group,
        doubts=doubts if case.hung else {*doubts, *case.doubts_of_running},
        explains=_waits_there(case, d),
        hang=hangs,
    )


def _doubts(case: Case, d: Divergence) -> list[Doubt]:
    members = case.groups[d.group].members or ()
    own_dumps = [r for r in members if r in case.progress.of and case.progress.of[r].source == "dump"]
    few_votes = len(own_dumps) < len(members) and len(own_dumps) <= 2 * len(d.odd)
    return doubts_where(
        {
            Doubt.TWO_SIDES: d.tied,
            Doubt.UNUSUAL_SIDE: d.by_branch,
            Doubt.FEW_CONFIRM: not d.tied and _few_confirm(case, d),
            Doubt.OTHER_GROUPS_POSSIBLE: members_not_recorded(case.groups[d.group]),
            Doubt.MANY_ACCUSED: len(d.odd) > 1 and len(d.odd) * 4 > len(members),
            Doubt.VOTES_MISSING: len(members) >= 3 and few_votes,
            Doubt.OTHER_VOTES_MISSING: d.tied and len(members) >= 3 and len(own_dumps) < len(members),
        }
    )


def _few_confirm(case: Case, d: Divergence) -> bool:
    if d.shape in _SHIFTED:
        return d.support < 2
    return d.shape is Shape.OTHER_SPLITS and len(d.odd) != 1 and not _truncations(case)


def _truncations(case: Case) -> list[TransportEvent]:
    """NCCL's own warnings of messages that were too long."""
    return [event for event in case.job.facts.transport if event.kind == "size_desync"][:2]


def _waits_there(case: Case, d: Divergence) -> list[Wait]:
    return [wait for wait in case.waits.all if wait.group == d.group]


# ---- its words -------------------------------------------------------------------------------------------------------


def words(case: Case, accusation: Accusation[Divergence]) -> Words:
    d = accusation.facts
    where = case.names.group(d.group)
    odd = case.job.ops[d.odd_row]
    reference = case.job.ops[d.reference_row]
    who = ranks_text(d.odd)
    who_and_node = case.names.ranks(d.odd)
    if d.tied:
        who = f"the two sides of {where}" if len(d.odd) > 2 else f"rank {odd.rank}"
        who_and_node = who
    briefly, at_length = _what(case, d, odd, reference)
    after = ": the job hangs." if accusation.hang else "; nothing hung, but the result is silently wrong."
    return Words(
        headline=f"{who} {briefly}",
        summary=f"{sentence(who_and_node)} {at_length} {where}{after}",
        why=_findings(case, d),
        each=dict.fromkeys(d.odd, f"is on one of the two sides that differ at #{d.seq}" if d.tied else briefly),
        steps=_steps(case, accusation),
    )


def _others(case: Case, d: Divergence, reference: Operation) -> str:
    """Who the odd ranks differ from: one rank by its number."""
    alone = len(case.groups[d.group].members or ()) == len(d.odd) + 1
    return f"rank {reference.rank}" if d.tied or alone else "the rest"


def _what(case: Case, d: Divergence, odd: Operation, reference: Operation) -> tuple[str, str]:
    """What the odd ranks did, briefly and as it goes on with the place."""
    others = _others(case, d, reference)
    here = called_in(case, odd)
    if d.shape in _SHIFTED:
        call = case.job.ops[d.calls[0]]
        title = f"{call.name} #{d.seq}"
        otherwise = _otherwise(d, odd, others)
        briefly = _count(d, f"{title}{called_in(case, call)}")
        return f"{briefly}{otherwise}", f"{_count(d, f'{title}{at(call.frames)}')}{otherwise}, in"
    if d.shape is Shape.OTHER_OPERATION:
        there = called_in(case, reference)
        theirs = there if there != here else ""
        text = f"ran {odd.name}{here} where {others} ran {reference.name}{theirs} (#{d.seq})"
        return text, f"{text} in"
    if d.shape is Shape.OTHER_SPLITS:
        text = f"passed different split sizes to {reference.name} #{d.seq}"
        return f"{text}{here}", f"{text} in"
    mine, theirs = _passed(d, odd, reference)
    text = f"passed {mine} to {reference.name} #{d.seq}"
    return f"{text}{here}, {others} {theirs}", f"{text}, {others} {theirs}, in"


def _count(d: Divergence, first: str) -> str:
    """``skipped all_reduce #9``, ``made 2 extra calls, starting with broadcast #24``."""
    count = len(d.calls)
    if d.shape is Shape.SKIPPED:
        return f"skipped {first}" if count == 1 else f"skipped {count} calls, starting with {first}"
    return f"made one extra call: {first}" if count == 1 else f"made {count} extra calls, starting with {first}"


def _otherwise(d: Divergence, odd: Operation, others: str) -> str:
    """What explains the same: the other of two sides, or a call that was made twice."""
    once = len(d.calls) == 1
    if d.tied and d.shape is Shape.SKIPPED:
        return f", or {others} made {'it' if once else 'them'} too often"
    if d.tied:
        return f", or {others} skipped {'it' if once else 'them'}"
    return f", or made {odd.name} #{d.seq - 1} twice" if d.repeats else ""


def _passed(d: Divergence, odd: Operation, reference: Operation) -> tuple[str, str]:
    """What each side passed: their sizes where these differ, else shapes and types."""
    sizes = (odd.size_bytes, reference.size_bytes)
    texts = size_text(sizes[0]), size_text(sizes[1])
    if d.shape is not Shape.OTHER_TYPE and None not in sizes and texts[0] != texts[1]:
        return texts
    return shape_texts(odd, reference)


def _steps(case: Case, accusation: Accusation[Divergence]) -> Iterator[str]:
    yield _step(case, accusation.facts)
    if any(case.liveness.error(rank) is not None for rank in accusation.ranks):
        yield "an exception caught on one rank must not skip a collective: re-raise it, or have the ranks agree first"
    if not accusation.hang:
        yield "do not trust this run's results from that step on"


def _step(case: Case, d: Divergence) -> str:
    odd = case.job.ops[d.odd_row]
    reference = case.job.ops[d.reference_row]
    names = ranks_text(d.odd)
    own = at(case.frames_of(odd))
    theirs = at(case.frames_of(reference))
    mine = f"; {names} {verb(d.odd, 'was', 'were')}{own}" if own and own != theirs else ""
    if d.shape is Shape.SKIPPED:
        return f"code: find the branch that keeps {names} from the call{theirs}{mine}"
    if d.shape is Shape.ADDED:
        return f"code: find the extra call made by {names}{own}"
    if d.shape is Shape.OTHER_SPLITS:
        return f"code: print the input and output split sizes on every rank before the call{theirs}"
    if d.shape is Shape.OTHER_OPERATION:
        who = f"rank {odd.rank}" if d.tied else names
        rest = _others(case, d, reference)
        here = f"{verb([odd.rank] if d.tied else d.odd, 'calls', 'call')} {odd.name}{_reached(case, odd)}"
        return f"code: find out why {who} {here}, and {rest} {reference.name}{theirs}"
    if d.tied:
        mine = f"; rank {odd.rank} was{own}" if own and own != theirs else ""
    return f"code: compare what the ranks pass to the call{theirs}{mine}"


def _reached(case: Case, operation: Operation) -> str:
    """Where a call was made, and from where that was called: the innermost line is often a helper that all share."""
    frames = case.frames_of(operation)
    own = changeable_frames(frames)
    return at(frames) + (f" (from {line(own[1])})" if len(own) > 1 else "")


# ---- the findings that carry it --------------------------------------------------------------------------------------


def _findings(case: Case, d: Divergence) -> list[Finding]:
    odd = case.job.ops[d.odd_row]
    reference = case.job.ops[d.reference_row]
    call = case.job.ops[d.calls[0]] if d.shape in _SHIFTED else odd
    differs = entry(case, _difference(case, d, odd, reference), odd, reference)
    findings = [replace(differs, detail=shown(case.frames_of(call)))]
    if d.shape is Shape.OTHER_SPLITS:
        findings += [quoted(event) for event in _truncations(case)]
    findings += _where_paths_part(case, d, odd, reference)
    findings += [printed(error) for rank in d.odd if (error := case.liveness.error(rank)) is not None][:1]
    for wait in _waits_there(case, d)[:2]:
        findings += _each_side(case, wait)
    return findings


def _where_paths_part(case: Case, d: Divergence, odd: Operation, reference: Operation) -> list[Finding]:
    own = at(odd.frames)
    theirs = at(reference.frames)
    if not (d.parted_at and own and theirs and own != theirs):
        return []
    text = f"the code paths diverge here: {ranks_text(d.odd)} continued{own}, the rest{theirs}"
    return [entry(case, text, odd, reference, frames=d.shape is Shape.SKIPPED)]


def _each_side(case: Case, wait: Wait) -> Iterator[Finding]:
    """What each side waits in, by its own record: ranks that disagree at one position are in different operations
    there."""
    inside: dict[str, list[int]] = {}
    for unit in wait.inside:
        own = case.progress.operation(unit)
        inside.setdefault(own.title if own is not None else case.names.wait(wait), []).append(unit.rank)
    for title, ranks in sorted(inside.items(), key=lambda item: -len(item[1])):
        text = f"{ranks_text(ranks)} now {verb(ranks, 'waits', 'wait')} in {title}"
        yield Finding(text, case.source(ranks[0]))


def _difference(case: Case, d: Divergence, odd: Operation, reference: Operation) -> str:
    if d.shape in _SHIFTED:
        return _shifted(case, d, odd)
    others = _others(case, d, reference)
    mine, theirs = shape_texts(odd, reference)
    text = f"rank {odd.rank} passed {mine}, {others} {theirs}"
    if d.shape is Shape.OTHER_OPERATION:
        who = ranks_text([odd.rank] if d.tied else d.odd)
        text = f"{who} ran {odd.name} {shape_text(odd)}, {others} {reference.name} {shape_text(reference)}"
    elif d.shape is Shape.OTHER_SPLITS:
        sends = f"{reference.name} sends a different number of elements than it receives"
        text = f"across all members, {sends}; rank {odd.rank} sends {shape_text(odd)}"
    return f"at #{d.seq} of {case.names.group(d.group)}, {text}"


def _shifted(case: Case, d: Divergence, odd: Operation) -> str:
    calls = [_call(case.job.ops[row]) for row in d.calls]
    who = f"rank {odd.rank}" if d.tied else ranks_text(d.odd)
    others = "the other side" if d.tied else "the others"
    added = "added" if d.shape is Shape.ADDED else "skipped"
    named = f"{calls[0]} was {added}"
    if len(calls) > 1:
        more = ", …" if len(calls) > _CALLS_LISTED else ""
        named = f"{len(calls)} calls were {added}: {', '.join(calls[:_CALLS_LISTED])}{more}"
    if d.by_habit:
        call = case.job.ops[d.calls[0]]
        after = f"{plural(len(calls), 'call')} after {call.name} {shape_text(call)}"
        rounds = plural(d.support, "earlier round")
        return f"{who} continued with {_call(odd)}, which usually comes {after} ({rounds}): {named}"
    agree = f"{plural(d.support, 'later operation')} {'agrees' if d.support == 1 else 'agree'}"
    return f"shifted by {len(calls)}, the sequence of {who} matches {others} again ({agree}): {named}"


def _call(operation: Operation) -> str:
    return f"{operation.name} {shape_text(operation)}{at(operation.frames)}"


CAUSE = Cause(propose, words, (CALLS_DIFFER, SPLITS_DIFFER, CALLS_DIFFER_SILENTLY), Asked.ALWAYS)
