"""absent, by name: PyTorch (a monitored barrier, the desync report) or every node's agent says who did not come."""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause
from hangscope.diagnosis.causes.shared.failure_lines import FailureLines, failure_words, naming_ranks
from hangscope.diagnosis.verdict import CauseKind
from hangscope.model import Trait

REPORTED_MISSING = Grounds(
    "reported_missing",
    Layer.MISSED_RANKS,
    MEDIUM,
    "PyTorch itself, or every node's agent, names the ranks that never joined",
    before={
        "idle": "test_edges.py::test_a_report_by_name_goes_before_who_is_seen_in_nothing",
    },
)


def propose(case: Case) -> Iterator[Accusation[FailureLines]]:
    """Ranks that are named as those that did not come; nobody where lines name different ones."""
    lines = [failure for failure in case.job.facts.failures if failure.kind.is_of(Trait.MISSING) and failure.ranks]
    if lines:
        yield naming_ranks(case, REPORTED_MISSING, CauseKind.ABSENT, lines, {line.ranks for line in lines})


CAUSE = Cause(propose, failure_words, (REPORTED_MISSING,), Asked.ALWAYS)
