"""unknown: ranks that NCCL's RAS did not reach, or that launched other collectives than most; nothing was recorded."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hangscope.diagnosis.accusation import LOW, Accusation, Accused, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.causes.shared.advice import SWITCH_ON
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.evidence.ras_ranks import odd_in_ras
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.model import Source

ODD_IN_RAS = Grounds(
    "odd_in_ras",
    Layer.LAST_RESORT,
    LOW,
    "from a single NCCL RAS answer, in which a healthy job can look the same",
    before={
        "odd_stack": "test_edges.py::test_an_odd_count_in_ras_goes_before_an_odd_stack",
    },
)

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class OddInRas:
    """What RAS says of each odd rank, and where it says so."""

    by_rank: Mapping[int, str]
    source: Source


def propose(case: Case) -> Iterator[Accusation[OddInRas]]:
    """Ranks that differ from most in an answer of RAS, where there is no recording."""
    found = None if case.job.dumps else odd_in_ras(case.job)
    if found is not None:
        by_rank, source = found
        yield Accusation(
            ODD_IN_RAS,
            CauseKind.UNKNOWN,
            OddInRas(by_rank, source),
            [Accused(rank, CauseKind.UNKNOWN) for rank in sorted(by_rank)],
            explains=case.waits.all,
        )


def words(case: Case, accusation: Accusation[OddInRas]) -> Words:
    ranks = accusation.ranks
    odd = accusation.facts
    return who_did_what(
        case,
        accusation,
        odd.by_rank[ranks[0]],
        ": the others are probably waiting for it, if the job is stuck. Nothing else was recorded.",
        why=[Finding(f"rank {rank} {odd.by_rank[rank]}", (odd.source,)) for rank in ranks[:_SHOWN]],
        steps=["query RAS again: what does not change between two answers is stuck", SWITCH_ON],
    )


CAUSE = Cause(propose, words, (ODD_IN_RAS,), Asked.ALWAYS)
