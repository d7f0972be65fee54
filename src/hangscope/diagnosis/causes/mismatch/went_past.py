"""mismatch: a few ranks finished, and went past, a collective that nobody can finish alone.

They ran something else there, and what that was is not recorded.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Accused, Doubt, Grounds, Layer, doubts_where
from hangscope.diagnosis.align.agreement import is_symmetric
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.findings import who_waits
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.text import verb

WENT_PAST = Grounds(
    "went_past",
    Layer.OTHER_CALLS,
    MEDIUM,
    "a minority got past a collective that needs every rank; what it ran instead is not recorded",
    before={
        "other_line": "test_edges.py::test_having_gone_past_goes_before_another_line",
    },
)


@dataclass(frozen=True, slots=True)
class WentPast:
    """The last operation that one of them completed."""

    completed: int


def propose(case: Case) -> Iterator[Accusation[WentPast]]:
    """Ranks that completed later operations of a group, while most are inside one that needs everybody."""
    for wait in case.waits.all:
        if wait.point_to_point or wait.seq is None or not is_symmetric(wait.name):
            continue
        past = [case.progress.of[rank] for rank in wait.finished]
        completed = max((mine.completed.get(wait.group, -1) for mine in past), default=-1)
        if completed <= wait.seq or len(past) >= len(wait.inside):
            continue
        title = case.names.wait(wait)
        yield Accusation(
            WENT_PAST,
            CauseKind.MISMATCH,
            WentPast(completed),
            [Accused(rank, CauseKind.MISMATCH, title) for rank in sorted(wait.finished)],
            wait,
            doubts=doubts_where({Doubt.FROM_LOGS: any(mine.source == "counters" for mine in past)}),
        )
        return


def words(case: Case, accusation: Accusation[WentPast]) -> Words:
    wait = accusation.its_wait
    title = case.names.wait(wait)
    inside = f"{ranks_text(wait.waiters)} {verb(wait.waiters, 'is', 'are')} still inside it"
    past = f"{ranks_text(accusation.ranks)} completed up to #{accusation.facts.completed}"
    compare = f"code: compare the calls of {ranks_text(accusation.ranks)} before {title} with the others'"
    return who_did_what(
        case,
        accusation,
        f"got past {title}, which no rank can complete alone",
        f": {inside}, they did not run the same operations.",
        why=[who_waits(case, wait), Finding(past)],
        steps=[f"{compare}; collect {verb(accusation.ranks, 'its dump', 'their dumps')}"],
    )


CAUSE = Cause(propose, words, (WENT_PAST,))
