"""absent, from logs alone: ranks say in their logs for which rank they gave up waiting, and that one says nothing.

DeepEP's timeouts name both ends. Whoever is waited for and reports no wait of its own is where the waits end.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Accused, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.causes.shared.outlived import lasting_failures
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.model import Failure, FailureKind
from hangscope.text import verb

AWAITED_IN_LOGS = Grounds(
    "awaited_in_logs", Layer.SIGNS, MEDIUM, "in the logs, ranks name the one that they wait for, and it reports no wait"
)
_LEAST_WAITING = 2
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class LoggedWaits:
    """The lines of the ranks that wait, directly or through others, for those where the waits end; and these ranks."""

    lines: Sequence[Failure]
    waiting: tuple[int, ...]


def propose(case: Case) -> Iterator[Accusation[LoggedWaits]]:
    """The ranks that others say they wait for, and that say nothing of the kind; fewer than those who wait."""
    lines = [line for line in lasting_failures(case.job.facts) if _is_wait(line)]
    waits_for: dict[int, set[int]] = {}
    for line in lines:
        if line.rank is not None and line.peer_rank is not None:
            waits_for.setdefault(line.rank, set()).add(line.peer_rank)
    ends = sorted({peer for peers in waits_for.values() for peer in peers} - waits_for.keys())
    waiting = _behind(ends, waits_for)
    if ends and len(waiting) >= max(_LEAST_WAITING, len(ends) + 1):
        direct_first = sorted(lines, key=lambda line: line.peer_rank not in ends)
        found = LoggedWaits([line for line in direct_first if line.rank in waiting], tuple(sorted(waiting)))
        accused = [Accused(rank, CauseKind.ABSENT) for rank in ends]
        yield Accusation(AWAITED_IN_LOGS, CauseKind.ABSENT, found, accused, explains=case.waits.all)


def _behind(ends: Iterable[int], waits_for: Mapping[int, Set[int]]) -> set[int]:
    """Who waits for these ranks, directly or through others."""
    waited_by: dict[int, set[int]] = {}
    for rank, peers in waits_for.items():
        for peer in peers:
            waited_by.setdefault(peer, set()).add(rank)
    found: set[int] = set()
    new = set(ends)
    while new:
        new = {rank for peer in new for rank in waited_by.get(peer, ())} - found
        found |= new
    return found


def _is_wait(line: Failure) -> bool:
    return line.kind == FailureKind.ENGINE_STUCK and line.rank is not None and line.peer_rank is not None


def words(case: Case, accusation: Accusation[LoggedWaits]) -> Words:
    found = accusation.facts
    ranks = accusation.ranks
    waiting = ranks_text(found.waiting)
    lines = found.lines[:_SHOWN]
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
