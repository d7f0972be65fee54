"""Failures that a log itself outlives: it shows the job moving on after them, so they stopped nothing."""

from hangscope.model import Facts, Failure, PythonError

_WARNINGS = frozenset(
    (
        "other",
        "engine_waits",
        "kv_transfer",
        "jit_lock",
        "gpu_core",
        "wait_timeout",
        "socket_error",
        "heartbeat_stuck",
        "nccl_system_error",
        "nccl_internal_error",
        "ib_error",
        "xid",
        "node_resource",
        "store_timeout",
        "init_timeout",
        "hang_reported",
        "storage_lost",
        "node_not_ready",
        "memory_held",
    )
)
"""What may be a warning. A process that ended did end, whatever others print later."""


_ENDS = frozenset(("launcher_kill", "launcher_signal"))
"""A launcher that ends its workers ends them all, also where a progress bar is drawn once more."""


def lasting_failures(facts: Facts) -> list[Failure]:
    """The failures but for warnings that the job outlived."""
    return [failure for failure in facts.failures if not _is_outlived(facts, failure)]


def _is_outlived(facts: Facts, failure: Failure) -> bool:
    may_be = (failure.effect and failure.kind not in _ENDS) or failure.kind in _WARNINGS
    return may_be and any(progress.outlives(failure.source) for progress in facts.progress)


def lasting_errors(facts: Facts) -> list[PythonError]:
    """Exceptions after which no log shows the job moving on."""
    return [error for error in facts.errors if not any(p.outlives(error.source) for p in facts.progress)]
