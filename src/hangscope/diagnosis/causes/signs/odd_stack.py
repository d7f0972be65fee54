"""absent, from stacks alone: a few ranks are at another line than the rest, which says where to look and no more."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hangscope.diagnosis.accusation import LOW, Accusation, Accused, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.causes.shared.advice import SWITCH_ON
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.evidence.code_lines import place, shown
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.model import ThreadStack
from hangscope.text import plural, verb

ODD_STACK = Grounds(
    "odd_stack", Layer.LAST_RESORT, LOW, "from stacks alone: a few ranks are in a different place than the rest"
)

_LEAST_STACKS = 3
# At most one rank in so many may be elsewhere: more than that are roles, not culprits.
_FEW = 4
_SHOWN = 3
_FRAMES_COMPARED = 8
_FRAMES_SHOWN = 4


@dataclass(frozen=True, slots=True)
class OddStacks:
    """The stacks of all ranks, and one of those that are where most are."""

    by_rank: Mapping[int, ThreadStack]
    usual: int


def propose(case: Case) -> Iterator[Accusation[OddStacks]]:
    """Ranks whose main thread is elsewhere than most others', where nothing else was recorded."""
    stacks = case.stacks.of_all(case.job.ranks)
    if len(stacks) < max(_LEAST_STACKS, len(case.job.ranks)):
        return
    # Ranks of different roles come to the same wait by different lines: then the innermost one is compared alone.
    odd = _odd(stacks, _FRAMES_COMPARED) or _odd(stacks, 1)
    if odd and not any(_communicates(case, rank) for rank in odd):
        yield Accusation(
            ODD_STACK,
            CauseKind.ABSENT,
            OddStacks(stacks, next(rank for rank in stacks if rank not in odd)),
            [Accused(rank, CauseKind.ABSENT) for rank in odd],
            explains=case.waits.all,
        )


def _communicates(case: Case, rank: int) -> bool:
    """Whether it is inside communication that no recorder sees, where it may wait for the others."""
    call = case.unrecorded_calls.get(rank)
    return call is not None and not call.waits_for_gpu


def _odd(stacks: Mapping[int, ThreadStack], depth: int) -> list[int]:
    """The few that are elsewhere than most, by so many frames of the user's code."""
    places = {rank: shown(stack.frames, depth) for rank, stack in stacks.items()}
    usual = Counter(places.values()).most_common(1)[0][0]
    odd = sorted(rank for rank, mine in places.items() if mine != usual)
    return odd if usual and len(odd) * _FEW <= len(stacks) else []


def words(case: Case, accusation: Accusation[OddStacks]) -> Words:
    ranks = accusation.ranks
    stacks = accusation.facts.by_rank
    usual = accusation.facts.usual
    others = plural(len(stacks) - len(ranks), "rank")
    here = place(stacks[ranks[0]].frames) or "an unknown place"
    there = f"the other {others} at {place(stacks[usual].frames)}"
    texts = {rank: f"rank {rank} is here" for rank in ranks[:_SHOWN]}
    texts[usual] = f"{others} like rank {usual} are here"
    awaited = f"they are probably waiting for {verb(ranks, 'it', 'them')}"
    return who_did_what(
        case,
        accusation,
        f"{verb(ranks, 'is', 'are')} at {here}, {there}",
        f": {awaited}. Only stacks were found, and they show no waits.",
        why=[
            Finding(text, (stacks[rank].source,), shown(stacks[rank].frames, _FRAMES_SHOWN))
            for rank, text in texts.items()
        ],
        steps=[f"code: find out what {ranks_text(ranks)} {verb(ranks, 'does', 'do')} at {here}", SWITCH_ON],
        each="is in a different place than the other ranks",
        place=False,
    )


CAUSE = Cause(propose, words, (ODD_STACK,), Asked.ALWAYS)
