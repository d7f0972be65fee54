"""unknown: the evidence of so many ranks is missing that it was rather not collected, and nobody can be named."""

from collections.abc import Iterator
from dataclasses import dataclass

from hangscope.diagnosis.accusation import LOW, Accusation, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.advice import FIND_AGENT, SWITCH_ON
from hangscope.diagnosis.causes.shared.blockers import find_blockers, gone_agents
from hangscope.diagnosis.findings import who_waits
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind
from hangscope.text import sentence, verb

NOT_COLLECTED = Grounds(
    "not_collected",
    Layer.LAST_RESORT,
    LOW,
    "evidence is missing from too many ranks to name one of them",
    before={
        "odd_in_ras": "test_edges.py::test_what_was_not_collected_goes_before_an_odd_count_in_ras",
    },
)


@dataclass(frozen=True, slots=True)
class Missing:
    """The ranks that others wait for, and of which there is no evidence."""

    ranks: tuple[int, ...]


def propose(case: Case) -> Iterator[Accusation[Missing]]:
    """Ranks that others wait for, none of which left any evidence, and that are too many to accuse one."""
    found = case.once(find_blockers)
    if not found.not_collected:
        return
    missing = tuple(blocker.rank for blocker in found.all)
    waiting = [wait for rank in missing for wait in case.waits.waits_on(rank)]
    wait = case.first_missed(missing[0], waiting)
    yield Accusation(NOT_COLLECTED, CauseKind.UNKNOWN, Missing(missing), wait=wait, explains=waiting)


def words(case: Case, accusation: Accusation[Missing]) -> Words:
    wait = accusation.its_wait
    missing = ranks_text(accusation.facts.ranks)
    waits_in = f"{ranks_text(wait.waiters)} {verb(wait.waiters, 'waits', 'wait')} in"
    holds_up = f"one of {missing} is holding it up, without leaving evidence"
    gone = gone_agents(case, accusation.facts.ranks)
    collect = f"collect the dumps and logs of {missing}; `hangscope collect` gathers them from all nodes"
    return Words(
        headline=f"{waits_in} {case.names.wait(wait)}; there is no evidence from {missing}{gone}",
        summary=f"{sentence(waits_in)} {case.names.wait_in_group(wait)}; {holds_up}.",
        why=[who_waits(case, wait)],
        steps=[FIND_AGENT] if gone else [collect] if case.job.dumps else [SWITCH_ON, collect],
    )


CAUSE = Cause(propose, words, (NOT_COLLECTED,))
