"""gpu: everybody is inside one operation, and the kernel reports an error (Xid) of a member's GPU."""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import HIGH, Accusation, Accused, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.everybody_joined import GpuErrors, find_joined, find_sign
from hangscope.diagnosis.findings import kernel_lines
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind

GPU_ERROR = Grounds(
    "gpu_error", Layer.STUCK_BYTES, HIGH, "everyone is inside, and the kernel reports an error of one member's GPU"
)


def propose(case: Case) -> Iterator[Accusation[GpuErrors]]:
    """Members of an operation that everybody is inside of, whose GPU reports an error."""
    wait = case.once(find_joined).everybody
    sign = case.once(find_sign)
    if wait is not None and isinstance(sign, GpuErrors):
        title = case.names.wait(wait)
        accused = [Accused(rank, CauseKind.GPU, title) for rank in sign.by_rank]
        yield Accusation(GPU_ERROR, CauseKind.GPU, sign, accused, wait)


def words(case: Case, accusation: Accusation[GpuErrors]) -> Words:
    by_rank = accusation.facts.by_rank
    title = case.names.wait(accusation.its_wait)
    names = ranks_text(accusation.ranks)
    codes = {rank: f"Xid {messages[0].code}" for rank, messages in by_rank.items()}
    nodes = [case.job.nodes.get(rank) or f"the node of rank {rank}" for rank in accusation.ranks]
    error = f"an error ({', '.join(dict.fromkeys(codes.values()))})"
    return Words(
        headline=f"the GPU of {names} failed inside {title}",
        summary=f"The GPU of {names} reported {error} while all members were inside {title}.",
        why=[finding for messages in by_rank.values() for finding in kernel_lines(messages)],
        each={rank: f"its GPU reported {code}" for rank, code in codes.items()},
        steps=[f"node: drain {node}, then nvidia-smi -q and a GPU reset" for node in nodes],
    )


CAUSE = Cause(propose, words, (GPU_ERROR,))
