"""none: no recording, but the log shows the job moving, and no failure that it did not outlive."""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.causes.shared.outlived import lasting_errors, lasting_failures
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.model import LogProgress
from hangscope.text import sentence

_ABOUT_AS_FAR = 0.9
"""Of the counters with which several logs end: what is written late may be missing of one of them."""

LOG_PROGRESS = Grounds("log_progress", Layer.NO_HANG, MEDIUM, "its log shows progress, and no failure that stopped it")


def propose(case: Case) -> Iterator[Accusation[LogProgress]]:
    """That all is well, where logs show progress to their ends, all about as far, and nobody saved them for a hang."""
    facts = case.job.facts
    wrong = facts.watchdog or lasting_failures(facts) or lasting_errors(facts) or case.job.reason is not None
    if facts.progress and not wrong and not case.job.dumps and not _falls_behind(facts.progress):
        yield Accusation(LOG_PROGRESS, CauseKind.NONE, _clearest(facts.progress), hang=False)


def _falls_behind(progress: tuple[LogProgress, ...]) -> bool:
    """Whether one log ends far before another: its rank may be the one that the others wait for."""
    lasts = [one.last for one in progress if one.last is not None]
    return bool(lasts) and min(lasts) < _ABOUT_AS_FAR * max(lasts)


def _clearest(progress: tuple[LogProgress, ...]) -> LogProgress:
    return max(progress, key=lambda one: (one.finished, one.last or 0.0, len(one.lines)))


def words(case: Case, accusation: Accusation[LogProgress]) -> Words:
    del case  # all that is said is in the log
    progress = accusation.facts
    what = _what(progress)
    return Words(
        headline=f"no hang found: {what}",
        summary=f"No hang: {what}.",
        why=[Finding(sentence(what), (progress.source,))],
    )


def _what(progress: LogProgress) -> str:
    if progress.finished:
        return "the log shows that the job finished normally"
    if progress.first is None or progress.last is None:
        return "the log shows a server that is responding or idle"
    return f"the log shows the job making progress, from {progress.first:g} to {progress.last:g} by its own count"


CAUSE = Cause(propose, words, (LOG_PROGRESS,), Asked.OF_A_JOB_THAT_RUNS)
