"""From a job to a verdict: evidence, alignment, waits, one file a cause, weigh. Nothing here does I/O."""

from hangscope.diagnosis.case import Case
from hangscope.diagnosis.causes import CAUSES, PRECEDENCE
from hangscope.diagnosis.conclude import conclude
from hangscope.diagnosis.evidence.vet_dumps import vet_dumps
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.diagnosis.weigh import weigh
from hangscope.errors import NotFoundError
from hangscope.model import Job

__all__ = ["Diagnosis", "diagnose"]


def diagnose(job: Job) -> Diagnosis:
    """Say what hung the job, who caused it and how sure that is. Depends on nothing but the job."""
    case = Case(vet_dumps(job))
    accusations = (accusation for cause in CAUSES if cause.is_asked(case) for accusation in cause.propose(case))
    choice = weigh(case, accusations, PRECEDENCE)
    if choice is None:
        raise NotFoundError(
            "there is nothing here to diagnose: no operation, no log line and no process was found",
            hint="give the folder with the flight recorder dumps or the training logs",
        )
    return conclude(case, choice)
