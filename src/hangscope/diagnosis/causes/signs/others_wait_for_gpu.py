"""absent, from stacks, where nothing unfinished was recorded: all others wait for their GPUs, and a few are elsewhere.

A CUDA graph's replay, a fused all_reduce or a kernel that waits for a peer's flag leaves no operation in any recorder.
Whoever waits in `synchronize` waits for it; one such rank may have a slow GPU, all but one at once wait for that one.
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
from hangscope.model import ThreadStack
from hangscope.text import plural, verb

OTHERS_WAIT_FOR_GPU = Grounds(
    "others_wait_for_gpu",
    Layer.SIGNS,
    MEDIUM,
    "from stacks alone, all other ranks wait for their GPUs",
)
_LEAST_STACKS = 3
# At most one rank in so many: of more, those that wait may have work on their GPUs.
_FEW = 3
_FRAMES_SHOWN = 4


@dataclass(frozen=True, slots=True)
class GpuWaiters:
    by_rank: Mapping[int, ThreadStack]
    waiting: tuple[int, ...]


def propose(case: Case) -> Iterator[Accusation[GpuWaiters]]:
    """Ranks outside of all communication while every other rank of a job that stood still waits for its GPU."""
    if not case.job.stood_still or case.waits.all:
        return
    stacks = case.stacks.of_all(case.job.ranks)
    waiting = tuple(rank for rank in stacks if _waits_for_gpu(case, rank))
    outside = [rank for rank in stacks if rank not in waiting]
    everybody = len(stacks) >= max(_LEAST_STACKS, len(case.job.ranks))
    few = 0 < len(outside) * _FEW <= len(stacks)
    if everybody and few and not any(_is_inside(case, rank) for rank in outside):
        accused = [Accused(rank, CauseKind.ABSENT) for rank in outside]
        yield Accusation(OTHERS_WAIT_FOR_GPU, CauseKind.ABSENT, GpuWaiters(stacks, waiting), accused)


def _waits_for_gpu(case: Case, rank: int) -> bool:
    call = case.unrecorded_calls.get(rank)
    return call is not None and call.waits_for_gpu


def _is_inside(case: Case, rank: int) -> bool:
    """Whether it communicates itself, by its stack or by the kernel that its GPU is in."""
    stack = case.stacks.main(rank)
    in_call = rank in case.unrecorded_calls or (stack is not None and in_collective(stack))
    return in_call or case.kernels.in_nccl(rank)


def words(case: Case, accusation: Accusation[GpuWaiters]) -> Words:
    found = accusation.facts
    ranks = accusation.ranks
    others = plural(len(found.waiting), "rank")
    here = place(found.by_rank[ranks[0]].frames) or "an unknown place"
    texts = {rank: f"rank {rank} is here" for rank in ranks}
    texts[found.waiting[0]] = f"{others} like rank {found.waiting[0]} wait for their GPUs"
    return who_did_what(
        case,
        accusation,
        f"{verb(ranks, 'waits', 'wait')} for nothing, while all others wait for their GPUs",
        f": the other {others} wait for something on their GPUs that no recorder sees.",
        why=[
            Finding(text, (found.by_rank[rank].source,), shown(found.by_rank[rank].frames, _FRAMES_SHOWN))
            for rank, text in texts.items()
        ],
        steps=[f"code: see what {ranks_text(ranks)} {verb(ranks, 'does', 'do')} at {here}"],
    )


CAUSE = Cause(propose, words, (OTHERS_WAIT_FOR_GPU,), Asked.ALWAYS)
