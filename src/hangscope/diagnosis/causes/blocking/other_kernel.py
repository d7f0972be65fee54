"""gpu, by cores of the GPUs: a rank's GPU runs a kernel of its own, while all others are inside one of NCCL's."""

from collections.abc import Iterator
from dataclasses import dataclass

from hangscope.diagnosis.accusation import HIGH, Accusation, Accused, Doubt, Grounds, Layer, doubts_where
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.causes.shared.black_boxes import oldest_wait_of
from hangscope.diagnosis.causes.shared.blockers import find_blockers
from hangscope.diagnosis.causes.shared.sentences import place_of
from hangscope.diagnosis.findings import who_waits
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import State
from hangscope.text import sentence

OTHER_KERNEL = Grounds(
    "other_kernel",
    Layer.MISSED_RANKS,
    HIGH,
    "its GPU runs another kernel, and its peers' GPUs are inside NCCL's",
)


@dataclass(frozen=True, slots=True)
class OtherKernel:
    """The ranks whose GPUs are inside NCCL's kernels."""

    waiting: tuple[int, ...]


def propose(case: Case) -> Iterator[Accusation[OtherKernel]]:
    """Ranks that run a kernel which waits for nobody, where no recording shows who is missed."""
    kernels = case.kernels
    waiting = tuple(rank for rank in kernels.of if kernels.in_nccl(rank))
    ranks = [rank for rank in kernels.of if kernels.other(rank) is not None]
    if not ranks or not waiting or len(ranks) > len(waiting) or case.once(find_blockers).causes:
        return
    wait = oldest_wait_of(case, waiting)
    if wait is not None:
        ranks = [rank for rank in ranks if rank in (*wait.waiters, *wait.blockers)]
    if ranks:
        yield Accusation(
            OTHER_KERNEL,
            CauseKind.GPU,
            OtherKernel(waiting),
            [Accused(rank, CauseKind.GPU) for rank in ranks],
            wait,
            doubts=_doubts(case, ranks, waiting, wait),
        )


def _doubts(case: Case, ranks: list[int], waiting: tuple[int, ...], wait: Wait | None) -> list[Doubt]:
    launched = wait is not None and all(rank in wait.waiters for rank in ranks)
    looks = [case.unrecorded_calls.get(rank) for rank in ranks]
    on_gpu = all(call is not None and call.waits_for_gpu for call in looks)
    members = set(case.job.ranks)
    if wait is not None:
        members = {*wait.waiters, *wait.blockers, *(case.groups[wait.group].members or ())}
    started = wait is not None and any(u.rank in ranks and u.state is State.STARTED for u in wait.inside)
    return doubts_where(
        {
            Doubt.MAY_RUN: not case.hung,
            Doubt.CORE_CONTRADICTED: started,
            Doubt.KERNEL_MAY_PASS: not launched and not on_gpu,
            Doubt.NOT_SEEN_TO_LAUNCH: not launched,
            Doubt.CORES_MISSING: not members <= case.kernels.of.keys(),
            Doubt.ONE_PEER: len(waiting) < 2,
            Doubt.AGE_NOT_KNOWN: not case.hang.age_known,
        }
    )


def words(case: Case, accusation: Accusation[OtherKernel]) -> Words:
    ranks = accusation.ranks
    wait = accusation.wait
    said = case.kernels.said_of(ranks)
    before = f"; {case.names.wait_in_group(wait)} waits behind it" if wait is not None else ""
    findings = [who_waits(case, wait, ranks)] if wait is not None else []
    findings += [
        Finding(f"rank {rank}'s GPU runs {case.kernels.of[rank].kernels[0].name}", case.kernels.sources([rank]))
        for rank in ranks
    ]
    return Words(
        headline=said,
        summary=f"{sentence(said)}{before}.",
        why=[*findings, *_places(case, ranks)],
        each={rank: _each(case, rank) for rank in ranks},
        steps=[
            f"code: see what launches it on {ranks_text(ranks)}, and why it does not end: an endless loop, a flag that "
            "nobody sets, far more work than on the others",
        ],
    )


def _each(case: Case, rank: int) -> str:
    kernel = case.kernels.other(rank)
    return f"its GPU runs {kernel.title if kernel is not None else 'a kernel'}, which does not end"


def _places(case: Case, ranks: tuple[int, ...]) -> Iterator[Finding]:
    for rank in ranks:
        place = place_of(case, rank)
        stack = case.stacks.main(rank)
        if place and stack is not None:
            yield Finding(f"rank {rank} {place}", (stack.source,))


CAUSE = Cause(propose, words, (OTHER_KERNEL,), Asked.ALWAYS)
