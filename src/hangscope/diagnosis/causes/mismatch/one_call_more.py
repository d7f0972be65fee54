"""mismatch, by how ranks ended: most finished and exited with status 0, and a few wait in one more collective."""

from collections.abc import Iterator
from dataclasses import dataclass

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Accused, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.findings import cited, who_waits
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind
from hangscope.text import verb

ONE_CALL_MORE = Grounds("one_call_more", Layer.OTHER_CALLS, MEDIUM, "most ranks exited cleanly without this call")


@dataclass(frozen=True, slots=True)
class Finished:
    """The ranks that finished and exited with status 0."""

    ranks: frozenset[int]


def propose(case: Case) -> Iterator[Accusation[Finished]]:
    """Ranks inside an operation that waits only for ranks which exited cleanly, as most of the job did."""
    finished = case.liveness.finished_cleanly
    for wait in case.waits.all:
        if wait.blockers and finished.issuperset(wait.blockers) and finished.isdisjoint(wait.waiters):
            title = case.names.wait(wait)
            accused = [Accused(rank, CauseKind.MISMATCH, title) for rank in wait.waiters]
            yield Accusation(ONE_CALL_MORE, CauseKind.MISMATCH, Finished(finished), accused, wait)
            return


def words(case: Case, accusation: Accusation[Finished]) -> Words:
    wait = accusation.its_wait
    title = case.names.wait(wait)
    finished = ranks_text(accusation.facts.ranks)
    ended = f"{finished} finished and exited with status 0"
    only = f"only {ranks_text(accusation.ranks)} {verb(accusation.ranks, 'makes', 'make')}"
    return who_did_what(
        case,
        accusation,
        f"called {title}; most ranks exited without it",
        f": {finished} had exited with status 0.",
        why=[who_waits(case, wait), cited(ended, case.job.processes[min(wait.blockers)].source)],
        steps=[
            f"code: find out why {only} the call {title}: one more batch than the others, or a call behind a condition"
        ],
    )


CAUSE = Cause(propose, words, (ONE_CALL_MORE,))
