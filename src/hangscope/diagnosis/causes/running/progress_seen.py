"""none: the job runs or ran to its end, seen on every rank, and no line of failure anywhere."""

from collections.abc import Iterator

import numpy as np

from hangscope.diagnosis.accusation import HIGH, Accusation, Doubt, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.causes.shared.progress_made import makes_progress
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.text import plural

PROGRESS_SEEN = Grounds(
    "progress_seen", Layer.NO_HANG, HIGH, "every rank made progress, all members agree, and nothing reports a failure"
)


def propose(case: Case) -> Iterator[Accusation[None]]:
    """That nothing is wrong, where every rank was seen to make progress."""
    if case.once(makes_progress).says is not Says.YES:
        return
    timed = bool(np.any(np.isfinite(case.job.ops.columns["duration_ms"].astype(float))))
    doubts = case.doubts_of_running if timed else {*case.doubts_of_running, Doubt.NOT_TIMED}
    yield Accusation(PROGRESS_SEEN, CauseKind.NONE, None, doubts=doubts, hang=False)


def words(case: Case, accusation: Accusation[None]) -> Words:
    del accusation  # it says nothing that the case does not
    text = case.hang.why
    if len(case.job.ops):
        recorded = f"{plural(len(case.job.ops), 'recorded operation')} of {plural(len(case.job.dumps), 'rank')}"
        text = f"no rank waits for another in {recorded}"
    findings = [Finding(text)]
    if case.waits.all:
        findings.append(Finding(case.hang.why))
    return Words("no hang found", f"No hang: {text}.", why=findings)


CAUSE = Cause(propose, words, (PROGRESS_SEEN,), Asked.OF_A_JOB_THAT_RUNS)
