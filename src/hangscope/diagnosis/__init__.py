"""From a job to a verdict: align, waits, one file a rule, verdict. Rules are plain functions; nothing here does I/O."""

from hangscope.diagnosis.case import Case
from hangscope.diagnosis.conclude import conclude
from hangscope.diagnosis.rules import HANG_RULES, NO_HANG_RULES
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.errors import NotFoundError
from hangscope.model import Job

__all__ = ["Diagnosis", "diagnose"]


def diagnose(job: Job) -> Diagnosis:
    """Say what hung the job, who caused it and how sure that is. Depends on nothing but the job."""
    case = Case(job)
    rules = HANG_RULES if case.stuck.hangs or _fell(case) else NO_HANG_RULES
    for rule in rules:
        draft = rule(case)
        if draft is not None:
            return conclude(case, draft)
    raise NotFoundError(
        "there is nothing here to diagnose: no operation, no log line and no process was found",
        hint="give the folder with the flight recorder dumps or the training logs",
    )


def _fell(case: Case) -> bool:
    """Whether a rank ended in a way that brings a job down, even where nobody was caught waiting for it."""
    fates = [case.fates.of(rank) for rank in case.job.ranks]
    return any(f.kind == "dead" and f.strength == "strong" and not f.clean for f in fates)
