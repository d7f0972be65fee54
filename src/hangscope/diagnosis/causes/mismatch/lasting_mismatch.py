"""mismatch that goes on: nothing hangs, but again and again a rank passes another size or type than its group, or runs
another operation. NCCL reduces what it gets, without a word."""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import HIGH, Accusation, Accused, Doubt, Grounds, Layer, doubts_where
from hangscope.diagnosis.align.lasting_shifts import LastingMismatch
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.causes.shared.sentences import called_in
from hangscope.diagnosis.evidence.code_lines import at
from hangscope.diagnosis.findings import entry
from hangscope.diagnosis.phrases import ranks_text, shape_texts
from hangscope.diagnosis.verdict import CauseKind
from hangscope.text import plural, sentence
from hangscope.verdict_words import Outcome

LASTING_MISMATCH = Grounds(
    "lasting_mismatch",
    Layer.NO_HANG,
    HIGH,
    "at the same number the rank has passed something else than most, again and again",
    before={
        "calls_differ_silently": "test_edges.py::test_a_lasting_mismatch_goes_before_its_first_time",
    },
)


def propose(case: Case) -> Iterator[Accusation[LastingMismatch]]:
    """The ranks whose sizes, types or operations differ from most, again and again; of two halves nobody is accused."""
    for found in case.lasting.mismatches[:1]:
        accused = () if found.tied else found.ranks
        yield Accusation(
            LASTING_MISMATCH,
            CauseKind.MISMATCH,
            found,
            [Accused(rank, CauseKind.MISMATCH) for rank in accused],
            operation=case.recorded_operation(found.group, found.seq, case.job.ops[found.usual_row]),
            group=found.group,
            doubts=_doubts(case, found),
            hang=False,
            outcome=Outcome.DESYNC,
        )


def _doubts(case: Case, found: LastingMismatch) -> list[Doubt]:
    members = case.groups[found.group].members or ()
    compared = sum(rank in case.dumped for rank in members)
    return doubts_where(
        {
            Doubt.TWO_SIDES: found.tied,
            Doubt.MANY_ACCUSED: len(found.ranks) > 1 and len(found.ranks) * 4 > len(members),
            Doubt.VOTES_MISSING: compared < len(members) and compared <= 2 * len(found.ranks),
            Doubt.OTHER_VOTES_MISSING: found.tied and compared < len(members),
        }
    )


def words(case: Case, accusation: Accusation[LastingMismatch]) -> Words:
    found = accusation.facts
    odd = case.job.ops[found.odd_row]
    usual = case.job.ops[found.usual_row]
    where = case.names.group(found.group)
    who = f"rank {odd.rank}" if found.tied else ranks_text(found.ranks)
    others = f"rank {usual.rank}" if found.tied else "the others"
    if odd.name != usual.name:
        mine = f"ran {odd.name}{called_in(case, odd)}"
        theirs = f"ran {usual.name}{called_in(case, usual)}"
    else:
        passed, usually = shape_texts(odd, usual)
        mine = f"passed {passed} to {odd.name}{called_in(case, odd)}"
        theirs = f"passed {usually}"
    times = plural(found.times, "time")
    what = f"{mine} where {others} {theirs}, {times} since #{found.seq}"
    named = who if found.tied else case.names.ranks(found.ranks)
    differs = f"at #{found.seq} of {where}, {who} {mine}, {others} {theirs}; so {times} until the end of the recording"
    return Words(
        headline=f"{who} {what}",
        summary=f"{sentence(named)} {what}, in {where}; nothing hangs, but the results are silently wrong.",
        why=[entry(case, differs, odd, usual, frames=True)],
        each=dict.fromkeys(accusation.ranks, what),
        steps=[
            f"code: compare what the ranks pass to the call{at(usual.frames)}",
            f"do not trust this run's results from #{found.seq} on",
        ],
    )


CAUSE = Cause(propose, words, (LASTING_MISMATCH,), Asked.OF_A_JOB_THAT_RUNS)
