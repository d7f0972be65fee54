"""Ranks that called something else than their group: operation, order, size, type, split, peer, root."""

from hangscope.diagnosis.accusation import Accusation, Sides
from hangscope.diagnosis.align.call_order import Outlier, Sort
from hangscope.diagnosis.align.divergence import Divergence, Shape
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.causes.advice import COLLECT
from hangscope.diagnosis.evidence.code_lines import at, line, own_frames, two_lines
from hangscope.diagnosis.phrases import ranks_text, shape_text, size_text
from hangscope.diagnosis.wording.lines import called, called_by
from hangscope.diagnosis.wording.others import Words, did
from hangscope.model import Kind, Operation
from hangscope.text import sentence, verb

# ---- at one position of one group ------------------------------------------------------------------------------------


def calls_differ(case: Case, a: Accusation) -> Words:
    assert isinstance(a.detail, Divergence)
    d, where = a.detail, case.names.group(a.detail.group)
    odd, reference = case.job.ops[d.odd_row], case.job.ops[d.reference_row]
    what, long = _what(case, d, odd, reference)
    who, lead = ranks_text(d.odd), case.names.ranks(d.odd)
    if d.tied:
        who = lead = f"the two sides of {where}" if len(d.odd) > 2 else f"rank {odd.rank}"
    steps = [_step(case, d, odd, reference)]
    if any(case.liveness.error(rank) is not None for rank in d.odd):
        steps.append("an exception caught on one rank must not skip a collective: re-raise it, or vote on it first")
    if not a.hang:
        steps.append("do not trust results of this run from that step on")
    after = ": the job hangs." if a.hang else "; nothing hung, but the result is silently wrong."
    return Words(f"{who} {what}", f"{sentence(lead)} {long} {where}{after}", dict.fromkeys(d.odd, what), steps)


def _what(case: Case, d: Divergence, odd: Operation, reference: Operation) -> tuple[str, str]:
    """What the odd ranks did, briefly and as it goes on with the place."""
    others = "the rest" if not d.tied else f"rank {reference.rank}"
    passed = shape_text(odd), shape_text(reference)
    here, there = called(case, odd), called(case, reference)
    if d.shape in (Shape.SKIPPED, Shape.ADDED):
        call = case.job.ops[d.calls[0]]
        title = f"{call.name} #{d.seq}"
        return _count(d, f"{title}{called(case, call)}"), f"{_count(d, f'{title}{at(call.frames)}')}, in"
    if d.shape is Shape.OTHER_OPERATION:
        theirs = there if there != here else ""
        text = f"ran {odd.name}{here} where {others} ran {reference.name}{theirs} (#{d.seq})"
        return text, f"{text} in"
    if d.shape is Shape.OTHER_SPLITS:
        text = f"passed other split sizes to {reference.name} #{d.seq}"
        return f"{text}{here}", f"{text} in"
    sizes = odd.size_bytes, reference.size_bytes
    if d.shape is not Shape.OTHER_TYPE and None not in sizes and sizes[0] != sizes[1]:
        passed = size_text(sizes[0]), size_text(sizes[1])
    text = f"passed {passed[0]} to {reference.name} #{d.seq}"
    return f"{text}{here}, {others} {passed[1]}", f"{text}, {others} {passed[1]}, in"


def _count(d: Divergence, first: str) -> str:
    """``left out all_reduce #9``, ``made 2 calls too many, from broadcast #24 on``."""
    count = len(d.calls)
    if d.shape is Shape.SKIPPED:
        return f"left out {first}" if count == 1 else f"left out {count} calls, from {first} on"
    return f"made one call too many: {first}" if count == 1 else f"made {count} calls too many, from {first} on"


def _step(case: Case, d: Divergence, odd: Operation, reference: Operation) -> str:
    names, own, theirs = ranks_text(d.odd), at(case.frames_of(odd)), at(case.frames_of(reference))
    mine = f"; {names} {verb(d.odd, 'was', 'were')}{own}" if own and own != theirs else ""
    if d.shape is Shape.SKIPPED:
        return f"code: find the branch that keeps {names} from the call{theirs}{mine}"
    if d.shape is Shape.ADDED:
        return f"code: find the extra call of {names}{own}"
    if d.shape is Shape.OTHER_SPLITS:
        return f"code: print the input and output split sizes on every rank before the call{theirs}"
    if d.shape is Shape.OTHER_OPERATION and not d.tied:
        here = f"{verb(d.odd, 'calls', 'call')} {odd.name}{_reached(odd)}"
        return f"code: find why {names} {here}, and the rest {reference.name}{theirs}"
    return f"code: compare what the ranks pass to the call{theirs}{mine}"


def _reached(operation: Operation) -> str:
    """Where a call was made, and from where that was called: the innermost line is often a helper that all share."""
    own = own_frames(operation.frames)
    return at(operation.frames) + (f" (from {line(own[1])})" if len(own) > 1 else "")


def ragged(_: Case, a: Accusation) -> Words:
    assert a.operation is not None
    waiting = {rank for wait in a.explains for rank in wait.waiters}
    stuck = f", and {ranks_text(waiting)} cannot finish it" if waiting else ""
    call = f"the call{at(a.operation.frames)}"
    return Words(
        f"{a.detail}; whose split sizes are wrong is not recorded",
        f"Split sizes disagree: {a.detail} in {a.operation.group}{stuck}. A recording holds the sums alone, so nobody "
        "can be named.",
        steps=[f"code: print the split sizes of every rank before {call}, and compare them pair by pair"],
    )


def reported_calls(case: Case, a: Accusation) -> Words:
    assert a.operation is not None
    title = f"{a.operation.name} #{a.operation.seq}"
    deeds = {x.rank: f"ran {x.operation} where the rest ran {x.text} (#{a.operation.seq})" for x in a.accused}
    rest = f" in {a.operation.group}, as the watchdog's lines say: the job hangs."
    step = f"code: compare what the ranks pass to {title}; with dumps the line would be known"
    return did(case, a, deeds[a.ranks[0]], rest, step, deeds=deeds)


def reported_size(case: Case, a: Accusation) -> Words:
    where = a.accused[0].operation
    rest = f": {a.detail}. Gloo ends a process over that, and its peers lose their connection."
    step = f"code: compare the sizes and types that {ranks_text(a.ranks)} and the others pass{where or ' to the call'}"
    what = verb(a.ranks, "expected another size than it was sent", "passed different sizes")
    return did(case, a, f"{what}{where}", rest, step)


def went_past(case: Case, a: Accusation) -> Words:
    names, title, inside = ranks_text(a.ranks), case.names.wait(a.its_wait), a.its_wait.waiters
    rest = f": {ranks_text(inside)} {verb(inside, 'is', 'are')} still inside it, they did not run the same operations."
    dumps = verb(a.ranks, "its dump", "their dumps")
    step = f"code: compare the calls of {names} before {title} with the others'; collect {dumps}"
    return did(case, a, f"went past {title}, which nobody can finish alone", rest, step)


def one_call_more(case: Case, a: Accusation) -> Words:
    title, only = case.names.wait(a.its_wait), f"only {ranks_text(a.ranks)} {verb(a.ranks, 'makes', 'make')}"
    step = f"code: see why {only} the call {title}: one batch more than the others, or a call behind a condition"
    what = f"called {title}, and most ranks ended without it"
    return did(case, a, what, f": {a.detail} exited with status 0 before.", step)


def other_line(case: Case, a: Accusation) -> Words:
    assert isinstance(a.detail, Divergence)
    d, odd, reference = a.detail, case.job.ops[a.detail.odd_row], case.job.ops[a.detail.reference_row]
    compare = f"code: compare the source rank that the two calls of {odd.name} pass ({two_lines(odd, reference)})"
    network = "if they agree, suspect the network: collect NCCL's log and the port counters"
    if not a.hang:
        text = f"called {odd.name} #{d.seq} once from a line that nobody else ever used"
        rest = "; nothing hangs, but then the result is wrong."
        return did(case, a, f"{text}, perhaps with another root", rest, compare, deeds=text)
    here, there, others = called(case, odd), called(case, reference), "its peer" if d.tied else "all others"
    text = f"called {odd.name} #{d.seq}{here}, not where {others} did{f',{there}' if there else ''}"
    what, rest = f"{text}; perhaps with another root", f"; {a.findings[-1].text}."
    return did(case, a, what, rest, compare, network, deeds=text)


# ---- over several groups ---------------------------------------------------------------------------------------------


def call_order(case: Case, a: Accusation) -> Words:
    assert isinstance(a.detail, Outlier)
    call, usual = case.job.ops[a.detail.row], case.job.ops[a.detail.usual_row]
    names, here = ranks_text(a.ranks), called(case, call)
    if call.kind in (Kind.SEND, Kind.RECV) and (call.kind, call.frames) == (usual.kind, usual.frames):
        what = f"called {call.title}{here}, which names another peer than is usual there"
        step = f"code: check the peer in the call{here}"
    elif a.detail.sort is Sort.SKIPPED:
        what = f"left out {usual.name}{called(case, usual)} and went on with {call.title}{here}"
        step = f"code: find the branch that keeps {names} from the call{at(usual.frames)}"
    else:
        what = f"called {call.title}{here}, which does not belong there"
        step = f"code: find why only {names} {verb(a.ranks, 'makes', 'make')} the call{here}"
    return did(case, a, what, f", where the rest called {usual.name}: the job hangs.", step)


def wait_cycle(case: Case, a: Accusation) -> Words:
    assert isinstance(a.detail, Sides)
    sides = a.detail.sides
    labels = list(dict.fromkeys(case.names.group(w.group) for w, _ in sides))
    listed = "; ".join(f"{ranks_text(ranks)} in {case.names.wait_in_group(w)}" for w, ranks in sides[:3])
    groups = ", then ".join(dict.fromkeys([case.names.group(a.its_wait.group), *labels]))
    over, step = f"over {len(labels)} groups", f"use these groups in the same order: {groups}"
    if len(labels) == 1:
        over, step = f"in {labels[0]}", f"make its calls in {labels[0]} in the same order"
    lines = {rank: called_by(case, w, rank) for w, ranks in sides for rank in ranks}
    order = f"{verb(a.ranks, 'makes its', 'make their')} calls in another order than the rest"
    wrong, headline = "no side is in the minority", f"ranks wait for each other {over}"
    if a.detail.tied:
        each = [f"{ranks_text(ranks)}{lines[ranks[0]]}" for _, ranks in sides if lines[ranks[0]]]
        headline += f": {', '.join(each[:3])}; {wrong}" if each else f"; {wrong}"
    else:
        wrong = f"{ranks_text(a.ranks)} {order}"
        headline = f"{ranks_text(a.ranks)}{lines.get(a.ranks[0], '')} {order}; {headline}"
    return Words(
        headline,
        f"Deadlock {over}: {listed}; {wrong}.",
        {x.rank: f"is inside {x.operation}{lines.get(x.rank, '')}" for x in a.accused},
        [f"code: make every rank {step}", "NCCL 2.26 and newer can order them itself: NCCL_LAUNCH_ORDER_IMPLICIT=1"],
    )


# ---- point-to-point --------------------------------------------------------------------------------------------------


def other_peer(case: Case, a: Accusation) -> Words:
    first, rest = a.accused[0], ": sender and receiver do not name each other, and the job hangs."
    step = f"code: check the peer that rank {first.rank} passes to {first.operation}"
    deeds = {x.rank: f"called {x.operation}, {x.text}" for x in a.accused}
    return did(case, a, f"called {first.operation}, {a.detail}", rest, step, deeds=deeds)


def open_connection(case: Case, a: Accusation) -> Words:
    what = f"{verb(a.ranks, 'connects', 'connect')} to a point-to-point peer that is elsewhere"
    step = f"code: check the peer that {ranks_text(a.ranks)} {verb(a.ranks, 'passes', 'pass')} to send or recv"
    rest = f", while {a.detail} wait: sender and receiver do not name each other."
    return did(case, a, what, rest, step, COLLECT, deeds={x.rank: f"connects to {x.text}" for x in a.accused})
