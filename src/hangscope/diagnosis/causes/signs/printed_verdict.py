"""Any cause, as we named it when it happened: `hangscope run` printed its verdict into a log, and only that is left.

It was made with evidence that is not here any more. What the log shows besides are ends, of ranks that `--on-hang kill`
or the scheduler ended because of the hang.
"""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Accused, Doubt, Grounds, Layer, doubts_where
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.model import FailureKind, PrintedVerdict
from hangscope.text import sentence
from hangscope.verdict_words import Outcome, first_word

PRINTED_VERDICT = Grounds(
    "printed_verdict",
    Layer.OTHER_CALLS,
    MEDIUM,
    "hangscope's own verdict, which this log repeats; the evidence for it is not here",
)
PRINTED_WHILE_RUNNING = Grounds(
    "printed_while_running",
    Layer.NO_HANG,
    MEDIUM,
    "hangscope's own verdict on the running job, which this log repeats; the evidence for it is not here",
    before={"log_progress": "test_edges.py::test_wrong_results_go_before_steps_that_go_on"},
)
_KINDS = {str(kind): kind for kind in CauseKind}
_ENDED = (Outcome.HANG, Outcome.CRASH)
_RUNNING = (Outcome.DESYNC, Outcome.WRONG, Outcome.SLOW, Outcome.WAIT)
"""The other words say that all was well, or that nothing could be said: nothing to repeat of a job that has gone on."""
_SAYS_WHY = (FailureKind.HOST_OOM, FailureKind.EVICTED, FailureKind.NODE_FAILED)
"""What a scheduler knows of the end of a process of which `run` saw only that it was gone."""


def propose(case: Case) -> Iterator[Accusation[PrintedVerdict]]:
    """What the logs repeat, where they agree and no recording is here."""
    printed = [verdict for verdict in case.job.facts.printed_verdicts if verdict.outcome in (*_ENDED, *_RUNNING)]
    if not printed or case.job.dumps or len({(verdict.ranks, _kind(verdict)) for verdict in printed}) > 1:
        return
    verdict = max(printed, key=lambda each: bool(each.incident))
    kind = _kind(verdict)
    if _is_explained(case, verdict, kind):
        return
    ranks = verdict.ranks if kind not in (CauseKind.UNKNOWN, CauseKind.NONE) else ()
    ended = verdict.outcome in _ENDED
    yield Accusation(
        PRINTED_VERDICT if ended else PRINTED_WHILE_RUNNING,
        kind,
        verdict,
        [Accused(rank, kind) for rank in ranks],
        doubts=doubts_where({Doubt.WAS_NOT_SURE: verdict.doubtful}),
        explains=case.waits.all if ended else (),
        hang=verdict.outcome == Outcome.HANG,
        outcome=None if ended else Outcome(verdict.outcome),
    )


def _kind(verdict: PrintedVerdict) -> CauseKind:
    return _KINDS.get(verdict.kind, CauseKind.UNKNOWN)


def _is_explained(case: Case, verdict: PrintedVerdict, kind: CauseKind) -> bool:
    """Whether a scheduler says why those are gone that it calls dead, or of which it had no word."""
    failures = [failure for failure in case.job.facts.failures if not failure.effect]
    if kind is CauseKind.UNKNOWN and verdict.outcome == Outcome.CRASH:
        return any(failure.kind in (FailureKind.POD_STOPPED, *_SAYS_WHY) for failure in failures)
    known = {failure.rank for failure in failures if failure.kind in _SAYS_WHY}
    return kind is CauseKind.DEAD and bool(verdict.ranks) and set(verdict.ranks) <= known


def words(_case: Case, accusation: Accusation[PrintedVerdict]) -> Words:
    verdict = accusation.facts
    return Words(
        headline=verdict.headline,
        summary=f"{sentence(verdict.headline)}, according to the verdict that hangscope printed into this log.",
        why=[
            Finding(f"hangscope printed: {first_word(Outcome(verdict.outcome))} {verdict.headline}", (verdict.source,))
        ],
        each=dict.fromkeys(accusation.ranks, verdict.headline),
        steps=[f"diagnose what was saved at the time: {verdict.incident or 'the log names its directory'}"],
    )


CAUSE = Cause(propose, words, (PRINTED_VERDICT, PRINTED_WHILE_RUNNING), Asked.ALWAYS)
