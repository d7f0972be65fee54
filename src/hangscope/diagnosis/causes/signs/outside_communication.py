"""absent, from stacks, where nothing was recorded: all others are inside communication, and a few are elsewhere.

An engine's watchdog writes the stacks of its processes into its log. Whoever is not in the collective holds it up.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Accused, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.evidence.code_lines import place, shown
from hangscope.diagnosis.evidence.training_thread import in_collective
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.model import FailureKind, ThreadStack
from hangscope.text import plural, verb

OUTSIDE_COMMUNICATION = Grounds(
    "outside_communication",
    Layer.SIGNS,
    MEDIUM,
    "from stacks alone, all other ranks are inside communication",
)
_LEAST_STACKS = 3
# At most one rank in so many: of more, those inside may be the ones that are wrong.
_FEW = 3
_FRAMES_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Outside:
    by_rank: Mapping[int, ThreadStack]
    inside: tuple[int, ...]


def propose(case: Case) -> Iterator[Accusation[Outside]]:
    """Ranks outside of all communication while every other rank is in some, of a job that is known to hang."""
    stuck = case.hung or any(failure.kind == FailureKind.ENGINE_STUCK for failure in case.job.facts.failures)
    stacks = case.stacks.of_all(case.job.ranks)
    if case.job.dumps or not stuck or len(stacks) < max(_LEAST_STACKS, len(case.job.ranks)):
        return
    inside = tuple(rank for rank in stacks if _communicates(case, rank, stacks[rank]))
    outside = [rank for rank in stacks if rank not in inside]
    # Who waits for its own GPU may wait there for a peer, too.
    if outside and len(outside) * _FEW <= len(stacks) and not any(rank in case.unrecorded_calls for rank in outside):
        accused = [Accused(rank, CauseKind.ABSENT) for rank in outside]
        yield Accusation(OUTSIDE_COMMUNICATION, CauseKind.ABSENT, Outside(stacks, inside), accused)


def _communicates(case: Case, rank: int, stack: ThreadStack) -> bool:
    call = case.unrecorded_calls.get(rank)
    return in_collective(stack) or (call is not None and not call.waits_for_gpu)


def words(case: Case, accusation: Accusation[Outside]) -> Words:
    found = accusation.facts
    ranks = accusation.ranks
    others = plural(len(found.inside), "rank")
    here = place(found.by_rank[ranks[0]].frames) or "an unknown place"
    texts = {rank: f"rank {rank} is here" for rank in ranks}
    like = f"{others} like rank {found.inside[0]}"
    texts[found.inside[0]] = f"{like} {verb(found.inside, 'is', 'are')} inside communication"
    return who_did_what(
        case,
        accusation,
        f"{verb(ranks, 'is', 'are')} at {here}, outside any communication",
        f": the other {others} {verb(found.inside, 'waits', 'wait')} in some.",
        why=[
            Finding(text, (found.by_rank[rank].source,), shown(found.by_rank[rank].frames, _FRAMES_SHOWN))
            for rank, text in texts.items()
        ],
        steps=[f"code: see what {ranks_text(ranks)} {verb(ranks, 'does', 'do')} at {here}"],
        place=False,
    )


CAUSE = Cause(propose, words, (OUTSIDE_COMMUNICATION,), Asked.ALWAYS)
