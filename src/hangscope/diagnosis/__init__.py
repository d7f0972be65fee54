"""From a job to a verdict: evidence, alignment, waits, one file a cause, weigh. Nothing here does I/O."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from hangscope.diagnosis.accusation import Accusation, Doubt
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.causes import CAUSES, PRECEDENCE
from hangscope.diagnosis.conclude import conclude, not_judged
from hangscope.diagnosis.evidence.vet_dumps import vet_dumps
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.diagnosis.weigh import weigh
from hangscope.errors import LeftOut, NotFoundError, contained
from hangscope.model import Job

__all__ = ["Diagnosis", "diagnose"]


def diagnose(job: Job) -> Diagnosis:
    """Say what hung the job, who caused it and how sure that is. Depends on nothing but the job."""
    try:
        return _diagnose(job)
    except Exception as error:
        return not_judged(job, contained(error))


def _diagnose(job: Job) -> Diagnosis:
    case = Case(vet_dumps(job))
    left_out = LeftOut()
    accusations = list(_proposed(case, left_out))
    if left_out.reasons:  # one of the causes that could not be judged may be the right one
        accusations = [replace(each, doubts=[*each.doubts, Doubt.CAUSE_NOT_JUDGED]) for each in accusations]
    choice = weigh(case, accusations, PRECEDENCE)
    if choice is None and left_out.reasons:
        return not_judged(job, *(why for _, why in left_out.reasons))
    if choice is None:
        raise NotFoundError(
            "there is nothing here to diagnose: no operation, no log line and no process was found",
            hint="give the folder with the flight recorder dumps or the training logs",
        )
    return conclude(case, choice, left_out)


def _proposed(case: Case, left_out: LeftOut) -> Iterator[Accusation[Any]]:
    """What the causes propose. One that raises is left out, with all that it proposed."""
    for cause in CAUSES:
        what = f"cause {cause.propose.__module__.rpartition('.')[2]}"
        yield from left_out.several(what, partial(_asked, cause, case))


def _asked(cause: Cause[Any], case: Case) -> Iterable[Accusation[Any]]:
    return cause.propose(case) if cause.is_asked(case) else ()
