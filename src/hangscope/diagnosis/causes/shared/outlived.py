"""Failures that a log itself outlives: it shows the job moving on after them, so they stopped nothing."""

from hangscope.model import Facts, Failure, FailureKind, PythonError, Trait

_ENDS = frozenset((FailureKind.LAUNCHER_KILL, FailureKind.LAUNCHER_SIGNAL))
"""A launcher that ends its workers ends them all, also where a progress bar is drawn once more."""


def lasting_failures(facts: Facts) -> list[Failure]:
    """The failures but for warnings that the job outlived."""
    return [failure for failure in facts.failures if not _is_outlived(facts, failure)]


def _is_outlived(facts: Facts, failure: Failure) -> bool:
    may_be = (failure.effect and failure.kind not in _ENDS) or failure.kind.is_of(Trait.WARNING)
    return may_be and any(progress.outlives(failure.source) for progress in facts.progress)


def lasting_errors(facts: Facts) -> list[PythonError]:
    """Exceptions after which no log shows the job moving on."""
    return [error for error in facts.errors if not any(p.outlives(error.source) for p in facts.progress)]
