"""mismatch, by PyTorch's own report: a fingerprint or desync report says that ranks called different things."""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause
from hangscope.diagnosis.causes.shared.failure_lines import FailureLines, failure_words, naming_ranks
from hangscope.diagnosis.verdict import CauseKind
from hangscope.model import FailureKind

REPORTED_MISMATCH = Grounds(
    "reported_mismatch", Layer.OTHER_CALLS, MEDIUM, "PyTorch itself reports that the ranks made different calls"
)


def propose(case: Case) -> Iterator[Accusation[FailureLines]]:
    """Ranks of which PyTorch itself says that they called something else. Of two sides nobody knows which is wrong."""
    lines = [failure for failure in case.job.facts.failures if failure.kind == FailureKind.MISMATCH]
    if lines:
        by_others = [line for line in lines if line.rank is not None and line.rank not in line.ranks]
        named = {line.ranks for line in by_others if len(line.ranks) == 1}
        yield naming_ranks(case, REPORTED_MISMATCH, CauseKind.MISMATCH, lines, named)


CAUSE = Cause(propose, failure_words, (REPORTED_MISMATCH,), Asked.ALWAYS)
