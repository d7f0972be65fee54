"""absent, from logs alone: ranks say in their logs for which rank they gave up waiting, and that one says nothing.

DeepEP's timeouts name both ends. Whoever is waited for and reports no wait of its own is where the waits end.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Accused, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.model import Failure
from hangscope.text import verb

AWAITED_IN_LOGS = Grounds(
    "awaited_in_logs", Layer.SIGNS, MEDIUM, "in the logs, ranks name the one that they wait for, and it reports no wait"
)
_LEAST_WAITING = 2
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class LoggedWaits:
    """The lines by the rank that is waited for, of the ranks where the waits end."""

    lines: Mapping[int, Sequence[Failure]]

    @property
    def waiting(self) -> list[int]:
        return sorted({line.rank for lines in self.lines.values() for line in lines if line.rank is not None})


def propose(case: Case) -> Iterator[Accusation[LoggedWaits]]:
    """The ranks that others say they wait for, and that say nothing of the kind; fewer than those who wait."""
    lines = [line for line in case.job.facts.failures if _is_wait(line)]
    waiters = {line.rank for line in lines}
    ends = sorted({line.peer_rank for line in lines if line.peer_rank is not None and line.peer_rank not in waiters})
    found = LoggedWaits({rank: [line for line in lines if line.peer_rank == rank] for rank in ends})
    if ends and len(found.waiting) >= max(_LEAST_WAITING, len(ends) + 1):
        accused = [Accused(rank, CauseKind.ABSENT) for rank in ends]
        yield Accusation(AWAITED_IN_LOGS, CauseKind.ABSENT, found, accused, explains=case.waits.all)


def _is_wait(line: Failure) -> bool:
    return line.kind == "engine_stuck" and line.rank is not None and line.peer_rank is not None


def words(case: Case, accusation: Accusation[LoggedWaits]) -> Words:
    found = accusation.facts
    ranks = accusation.ranks
    waiting = ranks_text(found.waiting)
    lines = [line for rank in ranks for line in found.lines[rank]][:_SHOWN]
    it = verb(ranks, "it", "them")
    return who_did_what(
        case,
        accusation,
        f"{verb(ranks, 'is', 'are')} waited for by {waiting}, and {verb(ranks, 'reports', 'report')} no wait",
        f": what {verb(ranks, 'it does', 'they do')} instead is not in the logs.",
        why=[Finding(f"rank {line.rank} gave up waiting for rank {line.peer_rank}", (line.source,)) for line in lines],
        steps=[f"py-spy dump --pid of {ranks_text(ranks)} while it is stuck, and the log of {it}"],
    )


CAUSE = Cause(propose, words, (AWAITED_IN_LOGS,), Asked.ALWAYS)
