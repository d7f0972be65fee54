"""absent, from logs alone: every other rank reported a timeout of its own, and this one lives and did not."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.accusation import LOW, Accusation, Accused, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.advice import COLLECT, SWITCH_ON
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.findings import cited
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind
from hangscope.model import State
from hangscope.text import verb

NO_TIMEOUT = Grounds(
    "no_timeout", Layer.SIGNS, LOW, "from logs alone, the only live ranks without a timeout of their own"
)

# At most one rank in so many: more would rather be ranks that wait for nobody.
_FEW = 4


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The ranks that reported a timeout of their own."""

    ranks: frozenset[int]


def propose(case: Case) -> Iterator[Accusation[TimedOut]]:
    """The few ranks that answered a signal of the others' timeout, with none of their own: probably they are waited
    for."""
    reports = case.job.facts.watchdog
    timed_out = {r.rank for r in reports if r.kind in ("timeout", "async_error") or r.own_timeout or r.seq is not None}
    answered = {r.rank for r in reports} - timed_out
    rest = set(case.job.ranks) - timed_out
    unfinished = np.any(case.job.ops.column("state") != State.COMPLETED)
    if unfinished or not answered or rest != answered or len(rest) * _FEW > len(case.job.ranks):
        return
    yield Accusation(
        NO_TIMEOUT,
        CauseKind.ABSENT,
        TimedOut(frozenset(timed_out)),
        [Accused(rank, CauseKind.ABSENT) for rank in sorted(rest)],
        max(case.waits.all, key=lambda wait: len(wait.inside), default=None),
        explains=case.waits.all,
    )


def words(case: Case, accusation: Accusation[TimedOut]) -> Words:
    ranks = accusation.ranks
    timed_out = f"{ranks_text(accusation.facts.ranks)} reported a timeout of their own"
    source = next(report.source for report in case.job.facts.watchdog if report.rank in ranks)
    their_own = f"nothing of {verb(ranks, 'its', 'their')} own pending"
    return who_did_what(
        case,
        accusation,
        "reported no timeout; all others did",
        f"; {verb(ranks, 'it', 'they')} responded to their signal, with {their_own}.",
        why=[cited(f"{timed_out}; {ranks_text(ranks)} only responded to the signal", source)],
        steps=[SWITCH_ON, COLLECT],
        each="was alive and not waiting in anything while all others timed out",
    )


CAUSE = Cause(propose, words, (NO_TIMEOUT,))
