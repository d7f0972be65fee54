"""absent, by cores of the GPUs: nothing runs on a rank's GPU, while all others are inside one of NCCL's kernels.

That holds where no recorder looks: a replayed CUDA graph, NCCL called past torch.distributed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Accused, Doubt, Grounds, Layer, doubts_where
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.causes.shared.blockers import find_blockers
from hangscope.diagnosis.causes.shared.sentences import with_place
from hangscope.diagnosis.evidence.code_lines import shown
from hangscope.diagnosis.evidence.training_thread import in_collective
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.text import sentence, verb

EMPTY_GPU = Grounds(
    "empty_gpu",
    Layer.MISSED_RANKS,
    MEDIUM,
    "nothing runs on its GPU, and its peers' GPUs are inside NCCL's kernels",
)
_FRAMES_SHOWN = 4


@dataclass(frozen=True, slots=True)
class EmptyGpu:
    """The ranks whose GPUs are inside NCCL's kernels."""

    waiting: tuple[int, ...]


def propose(case: Case) -> Iterator[Accusation[EmptyGpu]]:
    """Ranks that have nothing on their GPU, where no recording shows who is missed, or that they have launched."""
    kernels = case.kernels
    waiting = tuple(rank for rank in kernels.of if kernels.in_nccl(rank))
    ranks = [rank for rank in kernels.of if kernels.nothing_runs(rank) and not _waits(case, rank)]
    elsewhere = any(kernels.other(rank) is not None for rank in kernels.of)
    if not ranks or elsewhere or len(ranks) > len(waiting) or case.once(find_blockers).causes:
        return
    accused = [Accused(rank, CauseKind.ABSENT) for rank in ranks]
    yield Accusation(EMPTY_GPU, CauseKind.ABSENT, EmptyGpu(waiting), accused, doubts=_doubts(case, ranks, waiting))


def _waits(case: Case, rank: int) -> bool:
    """Whether a rank is seen to wait for others itself: by its recording, or its stack."""
    stack = case.stacks.main(rank)
    call = case.unrecorded_calls.get(rank)
    in_a_call = stack is not None and in_collective(stack)
    return bool(case.waits.of.get(rank)) or in_a_call or (call is not None and not call.waits_for_gpu)


def _doubts(case: Case, ranks: list[int], waiting: tuple[int, ...]) -> list[Doubt]:
    calls = [case.unrecorded_calls.get(rank) for rank in ranks]
    seen = case.stacks.of_all(ranks)
    return doubts_where(
        {
            Doubt.MAY_RUN: not case.hung,
            Doubt.EMPTY_AND_WAITS: any(call is not None and call.waits_for_gpu for call in calls),
            Doubt.GPU_SHARED: len(seen) < len(ranks) and any(map(case.kernels.shares_gpu, ranks)),
            Doubt.STACK_NOT_SEEN: len(seen) < len(ranks),
            Doubt.CORES_MISSING: len(case.kernels.of) < len(case.job.ranks),
            Doubt.ONE_PEER: len(waiting) < 2,
        }
    )


def words(case: Case, accusation: Accusation[EmptyGpu]) -> Words:
    ranks = accusation.ranks
    waiting = accusation.facts.waiting
    said = case.kernels.said_of(ranks)
    launched = f"{verb(ranks, 'has', 'have')} nothing on {verb(ranks, 'its GPU', 'their GPUs')}"
    findings = [Finding(said, case.kernels.sources([*ranks, *waiting]))]
    for rank, stack in case.stacks.of_all(ranks).items():
        findings.append(Finding(f"rank {rank} is here", (stack.source,), shown(stack.frames, _FRAMES_SHOWN)))
    return Words(
        headline=f"{ranks_text(ranks)} {with_place(case, ranks, launched)}; {said.partition('; ')[2]}",
        summary=f"{sentence(said)}: {verb(waiting, 'it waits', 'they wait')} for {ranks_text(ranks)}.",
        why=findings,
        each=dict.fromkeys(ranks, "has nothing on its GPU, while its peers are inside NCCL's kernels"),
        steps=[f"code: see what {ranks_text(ranks)} {verb(ranks, 'does', 'do')} instead of launching it"],
    )


CAUSE = Cause(propose, words, (EMPTY_GPU,), Asked.ALWAYS)
