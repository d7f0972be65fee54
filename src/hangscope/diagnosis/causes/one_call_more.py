"""mismatch, by how ranks ended: most finished and exited with status 0, and a few wait in one more collective."""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import Accusation, Accused, Basis
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.findings import cited, who_waits
from hangscope.diagnosis.phrases import ranks_text


def one_call_more(case: Case) -> Iterator[Accusation]:
    """Ranks inside an operation that waits only for ranks which exited cleanly, as most of the job did."""
    finished = case.liveness.finished_cleanly
    for wait in case.waits.all:
        if not wait.blockers or not set(wait.blockers) <= finished or set(wait.waiters) & finished:
            continue
        accused = [Accused(rank, "mismatch", case.names.wait(wait)) for rank in wait.waiters]
        text = f"{ranks_text(finished)} came to their end and exited with status 0"
        findings = [who_waits(case, wait), cited(text, case.job.processes[min(wait.blockers)].source)]
        detail = ranks_text(finished)
        yield Accusation(Basis.ONE_CALL_MORE, "mismatch", accused, wait, findings=findings, detail=detail)
        return
