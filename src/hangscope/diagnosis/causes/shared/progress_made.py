"""Whether a job makes progress, or has come to a clean end: "OK" has to be earned on every rank."""

import numpy as np

from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.answer import Answer, no, not_known, yes
from hangscope.diagnosis.phrases import ranks_text
from hangscope.model import State


def makes_progress(case: Case) -> Answer:
    """Does every rank of the job make progress, or has it come to a clean end?"""
    job = case.job
    if job.facts.errors or any(not failure.effect for failure in job.facts.failures):
        return no()
    if job.stood_still and not _any_moved(case):
        return not_known("the evidence was captured because the job stood still, and no rank was seen to move since")
    left = set(job.ranks) - {rank for rank, process in job.processes.items() if process.exit_status == 0}
    unseen = {rank for rank in left if not _moved(case, rank)}
    if job.ranks and not unseen:
        return yes()
    return not_known(f"no progress is recorded of {ranks_text(unseen) if unseen else 'any rank'}")


def _any_moved(case: Case) -> bool:
    return any(process.moved or process.exit_status == 0 for process in case.job.processes.values())


def _moved(case: Case, rank: int) -> bool:
    """Whether the rank was seen to move; where nobody looked, whether its own recording has something completed."""
    process = case.job.processes.get(rank)
    if process is not None and process.moved is not None:
        return process.moved
    state = case.job.ops.column("state")[case.job.ops.span(rank)]
    return case.progress.of[rank].own_record and bool(np.any(state == State.COMPLETED))
