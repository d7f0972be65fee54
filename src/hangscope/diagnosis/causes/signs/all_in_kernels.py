"""unknown, by cores of the GPUs: every GPU is inside a kernel of NCCL's, so nobody is missed; nothing says more."""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import LOW, Accusation, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.blockers import find_blockers
from hangscope.diagnosis.hardware import port_commands
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.text import sentence

ALL_IN_KERNELS = Grounds(
    "all_in_kernels",
    Layer.LAST_RESORT,
    LOW,
    "every GPU is inside a kernel of NCCL's, and nothing shows what it waits for",
    before={"odd_stack": "test_edges.py::test_gpus_that_are_all_in_nccl_go_before_an_odd_stack"},
)


def propose(case: Case) -> Iterator[Accusation[None]]:
    """All ranks inside NCCL's kernels, of a job whose operations no recorder shows."""
    kernels = case.kernels
    everybody = len(kernels.of) == len(case.job.ranks) and len(kernels.of) > 1
    explained = case.waits.all or case.once(find_blockers).causes
    if everybody and all(map(kernels.in_nccl, kernels.of)) and not explained:
        yield Accusation(ALL_IN_KERNELS, CauseKind.UNKNOWN, None)


def words(case: Case, _: Accusation[None]) -> Words:
    said = case.kernels.said_of_all()
    return Words(
        headline=f"{said}; none finishes",
        summary=f"{sentence(said)}, and none finishes: no rank stays away. The network, a GPU, or calls that do not "
        "fit together; which of them is not determined.",
        why=[Finding(said, case.kernels.sources(case.kernels.of))],
        steps=[port_commands.LOGS],
    )


CAUSE = Cause(propose, words, (ALL_IN_KERNELS,))
