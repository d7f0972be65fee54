"""From a job to a verdict: testimony, alignment, waits, one file a rule, weigh, wording. Nothing here does I/O."""

from hangscope.diagnosis.case import Case
from hangscope.diagnosis.causes import HANG_RULES, RUNNING_RULES
from hangscope.diagnosis.conclude import conclude
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.evidence.vet_dumps import vet_dumps
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.diagnosis.waits.proxy_waits import NotKnown
from hangscope.diagnosis.weigh import weigh
from hangscope.errors import NotFoundError
from hangscope.model import Job

__all__ = ["Diagnosis", "diagnose"]


def diagnose(job: Job) -> Diagnosis:
    """Say what hung the job, who caused it and how sure that is. Depends on nothing but the job."""
    case = Case(vet_dumps(job))
    stuck = case.hang.says is Says.YES or not isinstance(case.transfers, NotKnown)
    rules = HANG_RULES if stuck or case.ended else RUNNING_RULES
    choice = weigh(case, (accusation for rule in rules for accusation in rule(case)))
    if choice is None:
        raise NotFoundError(
            "there is nothing here to diagnose: no operation, no log line and no process was found",
            hint="give the folder with the flight recorder dumps or the training logs",
        )
    return conclude(case, choice)
