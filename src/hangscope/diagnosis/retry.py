"""Whether a job that hung or crashed is worth starting again as it is, and where. Said, and never done.

Only what the evidence shows is an answer: a rank that is late in its own code may be so by its data, its storage or its
machine, and then nobody knows.
"""

from __future__ import annotations

from hangscope.diagnosis.causes.shared.outlived import lasting_errors
from hangscope.diagnosis.hardware.broken_nodes import broken_nodes
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Diagnosis, History, Retry
from hangscope.model import FailureKind, Job
from hangscope.verdict_words import Outcome, RetryAnswer

OF_CODE = {
    CauseKind.MISMATCH: "the ranks' calls do not match, whichever machines they run on",
    CauseKind.SHIFT: "a rank calls one operation more or less than the others, whichever machines they run on",
    CauseKind.DEADLOCK: "the ranks wait for each other by the order of their calls, whichever machines they run on",
}
PROGRAMMING_ERRORS = frozenset(
    (
        "AttributeError",
        "ImportError",
        "IndentationError",
        "ModuleNotFoundError",
        "NameError",
        "NotImplementedError",
        "SyntaxError",
        "TabError",
        "TypeError",
        "UnboundLocalError",
    )
)
"""Exceptions of Python that a program's text brings about. Of others (OSError, RuntimeError, KeyError …) data, files or
machines may be the reason."""
_OVER = (Outcome.HANG, Outcome.CRASH, Outcome.WRONG, Outcome.UNKNOWN)


def retry_of(job: Job, verdict: Diagnosis) -> Retry | None:
    """None where the job goes on or ended well."""
    if verdict.outcome not in _OVER:
        return None
    broken = broken_nodes(job, verdict)
    if broken:
        nodes = tuple(each.node for each in broken)
        return Retry(
            RetryAnswer.ELSEWHERE, nodes, f"the evidence shows that {', '.join(nodes)} failed, whoever ran there"
        )
    if not verdict.is_likely:
        return _unknown("the cause is not known well enough")
    if verdict.kind in OF_CODE:
        return Retry(RetryAnswer.NO, (), f"code: {OF_CODE[verdict.kind]}")
    ranks = {culprit.rank for culprit in verdict.culprits}
    if ranks and verdict.kind is CauseKind.DEAD:
        return _of_the_dead(job, ranks)
    return _unknown("nothing here says whether it was the code, its data or a machine")


def _of_the_dead(job: Job, ranks: set[int]) -> Retry:
    raised = {
        error.rank: error.type for error in lasting_errors(job.facts) if error.rank in ranks and not error.consequence
    }
    if raised.keys() == ranks and all(kind in PROGRAMMING_ERRORS for kind in raised.values()):
        return Retry(RetryAnswer.NO, (), f"code: {ranks_text(sorted(ranks))} raised {sorted(set(raised.values()))[0]}")
    stopped = {f.rank for f in job.facts.failures if f.kind == FailureKind.POD_STOPPED and not f.effect}
    if ranks <= stopped:
        return Retry(RetryAnswer.SAME, (), "its pods were ended from outside: the job itself did nothing wrong")
    return _unknown("why the process ended is not known, or may be its code, its data or its machine")


def retry_with_history(verdict: Diagnosis, history: History) -> Retry | None:
    """As the memory of other jobs says, where this job's own evidence does not."""
    known = verdict.retry
    if known is None or known.answer != RetryAnswer.UNKNOWN:
        return known
    if history.answer == "code":
        return Retry(RetryAnswer.NO, (), "history: other jobs of this program hung in the same way")
    if history.answer == "hardware":
        nodes = {culprit.node for culprit in verdict.culprits if culprit.node}
        named = {each.name for each in history.track_records if each.kind == "node" and each.named}
        if nodes & named:
            return Retry(RetryAnswer.ELSEWHERE, tuple(sorted(nodes & named)), "history: culprits in other jobs as well")
    if history.answer == "outage":
        return Retry(RetryAnswer.SAME, (), "history: other jobs were hit at the same time; once that is over")
    return known


def _unknown(why: str) -> Retry:
    return Retry(RetryAnswer.UNKNOWN, (), why)
