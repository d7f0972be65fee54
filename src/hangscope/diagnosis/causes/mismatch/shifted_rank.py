"""shift: nothing hangs, but a rank's calls have met the wrong ones of its group ever since it left some out or added
some, so that the results of different steps are mixed.

Where all calls of a program look alike, or a whole step of a program without anything else is left out, displaced or
not looks the same: then nothing is said.
"""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import HIGH, Accusation, Accused, Doubt, Grounds, Layer, doubts_where
from hangscope.diagnosis.align.lasting_shifts import LastingShift
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.evidence.code_lines import at, function_line, shown, user_frame, where_paths_part
from hangscope.diagnosis.findings import entry
from hangscope.diagnosis.phrases import ranks_text, shape_text, shape_texts
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.model import Operation
from hangscope.text import plural, sentence, verb
from hangscope.verdict_words import Outcome

CALLS_SHIFTED = Grounds(
    "calls_shifted",
    Layer.NO_HANG,
    HIGH,
    "the rank's calls are those of the others, some numbers off, ever since",
    before={
        "lasting_mismatch": "test_edges.py::test_a_shift_goes_before_the_sizes_that_differ_by_it",
    },
)

_FEW = 24
_NEAR = 16
"""A distance in the other direction that is said: further away it is no explanation that people look for."""
_SHOWN = 3


# ---- what it looks for -----------------------------------------------------------------------------------------------


def propose(case: Case) -> Iterator[Accusation[LastingShift]]:
    """The ranks whose calls are the others', some numbers off, until the end; of two halves nobody is accused."""
    for shift in case.lasting.shifts[:1]:
        accused = () if shift.tied else shift.ranks
        yield Accusation(
            CALLS_SHIFTED,
            CauseKind.SHIFT,
            shift,
            [Accused(rank, CauseKind.SHIFT) for rank in accused],
            operation=case.recorded_operation(shift.group, shift.seq, case.job.ops[shift.usual_row]),
            group=shift.group,
            doubts=_doubts(case, shift),
            hang=False,
            outcome=Outcome.DESYNC,
        )


def _doubts(case: Case, shift: LastingShift) -> list[Doubt]:
    members = case.groups[shift.group].members or ()
    compared = len(shift.ranks) + len(shift.others)
    return doubts_where(
        {
            Doubt.TWO_SIDES: shift.tied,
            Doubt.START_NOT_SEEN: not shift.shift.begins and not shift.by_size,
            Doubt.FEW_CONFIRM: shift.shift.explained < _FEW,
            Doubt.MANY_ACCUSED: len(shift.ranks) > 1 and len(shift.ranks) * 4 > len(members),
            Doubt.VOTES_MISSING: compared < len(members) and compared <= 2 * len(shift.ranks),
        }
    )


# ---- its words -------------------------------------------------------------------------------------------------------


def words(case: Case, accusation: Accusation[LastingShift]) -> Words:
    shift = accusation.facts
    odd = case.job.ops[shift.odd_row]
    usual = case.job.ops[shift.usual_row]
    who = ranks_text(shift.ranks)
    where = case.names.group(shift.group)
    others = ranks_text(shift.others) if shift.tied else "the others"
    since = f"since #{shift.seq}" if shift.shift.begins else f"since #{shift.seq} or earlier"
    what = _what(shift, odd, usual, others)
    each = f"is {plural(abs(shift.shift.by), 'call')} {'ahead' if shift.shift.by > 0 else 'behind'} {since}"
    mixed = "nothing hangs, but what is reduced together is of different calls or steps, so the results are wrong"
    return Words(
        headline=f"{since} {who} {what}",
        summary=f"{sentence(since)}, {case.names.ranks(shift.ranks)} {what}, in {where}; {mixed}.",
        why=_findings(case, shift, odd, usual, others),
        each=dict.fromkeys(accusation.ranks, each),
        steps=_steps(case, shift),
    )


def _what(shift: LastingShift, odd: Operation, usual: Operation, others: str) -> str:
    """``calls from backward (train.py:41) what the others call from forward (train.py:37)``; where the lines are not
    known, or the same, what each side calls."""
    calls = verb(shift.ranks, "calls", "call")
    call = verb(shift.others, "calls", "call") if shift.tied else "call"
    lines = where_paths_part(odd.frames, usual.frames)
    if lines is None:
        frame = user_frame(odd.frames)
        here = f" in {function_line(frame)}" if frame is not None else ""
        alike = odd.name == usual.name
        mine, theirs = shape_texts(odd, usual) if alike else (shape_text(odd), shape_text(usual))
        return f"{calls} {odd.name} {mine}{here} where {others} {call} {usual.name} {theirs}"
    return f"{calls} from {function_line(lines[0])} what {others} {call} from {function_line(lines[1])}"


def _findings(case: Case, shift: LastingShift, odd: Operation, usual: Operation, others: str) -> list[Finding]:
    mine = f"rank {odd.rank} called {_call(odd)}"
    theirs = f"rank {usual.rank} {_call(usual)}" if shift.tied else f"{others} {_call(usual)}"
    first = "from" if shift.shift.begins else "at"
    differs = entry(case, f"{first} #{shift.seq} of {case.names.group(shift.group)} on, {mine}, {theirs}", odd, usual)
    lines = tuple(
        f"{who}: {line}"
        for who, call in ((f"rank {odd.rank}", odd), (f"rank {usual.rank}", usual))
        for line in shown(call.frames)
    )
    return [
        Finding(differs.text, differs.sources, lines),
        Finding(_distance(shift), case.source(odd.rank)),
        *_left_out(case, shift),
    ]


def _distance(shift: LastingShift) -> str:
    """How the calls fit, and what that means."""
    moved = shift.shift
    count = abs(moved.by)
    agree = f"{moved.explained} calls that differ in place agree so"
    text = f"moved by {count}, the calls of {ranks_text(shift.ranks)} are the others' ({agree})"
    did = "left {} out" if moved.by > 0 else "made {} too many"
    text = f"{text}: {verb(shift.ranks, 'it', 'they')} {did.format(plural(count, 'call'))}"
    if moved.other_way is not None and abs(moved.other_way) <= _NEAR:
        other = "made {} too many" if moved.by > 0 else "left {} out"
        text = f"{text}, or {other.format(plural(abs(moved.other_way), 'call'))}: steps repeat themselves"
    return text


def _left_out(case: Case, shift: LastingShift) -> list[Finding]:
    if not shift.calls:
        return []
    calls = [case.job.ops[row] for row in shift.calls]
    listed = ", ".join(f"{call.name} {shape_text(call)}{_called_in(case, shift, call)}" for call in calls[:_SHOWN])
    more = f" and {len(calls) - _SHOWN} more" if len(calls) > _SHOWN else ""
    what = "left out" if shift.shift.by > 0 else "added"
    return [entry(case, f"{what} at #{shift.seq}: {listed}{more}", calls[0])]


def _called_in(case: Case, shift: LastingShift, call: Operation) -> str:
    """`` in backward (train.py:41)``: the line in which it differs from what the other side called instead."""
    instead = case.job.ops[shift.odd_row if shift.shift.by > 0 else shift.usual_row]
    lines = where_paths_part(call.frames, instead.frames)
    frame = lines[0] if lines is not None else user_frame(call.frames)
    return f" in {function_line(frame)}" if frame is not None else ""


def _call(call: Operation) -> str:
    return f"{call.name} {shape_text(call)}{at(call.frames)}"


def _steps(case: Case, shift: LastingShift) -> Iterator[str]:
    names = ranks_text(shift.ranks)
    calls = [case.job.ops[row] for row in shift.calls]
    line = _called_in(case, shift, calls[0]) if calls else ""
    if shift.tied:
        yield f"code: find the branch that {names} and {ranks_text(shift.others)} did not take alike"
    elif shift.shift.by > 0:
        yield f"code: find the branch that kept {names} from its call{line}: a batch skipped, a NaN, an error caught"
    else:
        yield f"code: find what {names} called once more than the others{line}: a retry, a branch"
    yield "have all ranks agree before one of them skips: all_reduce a flag, and let all skip or none"
    yield f"do not trust this run's results from #{shift.seq} on: go back to a checkpoint from before"


CAUSE = Cause(propose, words, (CALLS_SHIFTED,), Asked.OF_A_JOB_THAT_RUNS)
