"""Exceptions that name no rank, given to the ranks that can have printed them.

Before init_process_group nothing puts `[rank2]:` in front of a line, and ranks share one pipe. But an exception that
nobody caught ends its process with status 1, one of C++ with SIGABRT, and who ended how is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hangscope.model import FATAL_ERROR, GLOO_SIZE, Process, PythonError
from hangscope.reader.logs.tracebacks import of_launcher

_RAISED = frozenset((1,))
_ABORTED = frozenset((-6, 134))
_OF_SPAWN = ".ProcessRaisedException"
"""What the parent of mp.spawn raises; the exception of its child follows, as its parent quotes it."""
_MOST = 64


def assign_ranks(errors: Sequence[PythonError], processes: Mapping[int, Process]) -> list[PythonError]:
    """Each with its rank, where only one exception and those that ended so are left to be matched."""
    nameless = [error for error in errors if _is_some_ranks(error)]
    taken = {e.rank for e in errors if e.rank is not None and not e.consequence}
    free = [process for process in processes.values() if process.rank not in taken]
    matched = {
        **_matched([e for e in nameless if e.type == GLOO_SIZE], free, _ABORTED),
        **_matched([e for e in nameless if e.type != GLOO_SIZE], free, _RAISED),
    }
    return [made for error in errors for made in matched.get(id(error), (error,))]


def _is_some_ranks(error: PythonError) -> bool:
    """Whether a rank raised it, and it does not say which."""
    if error.rank is not None or error.type == FATAL_ERROR:
        return False
    return not of_launcher(error.frames) and not error.type.endswith(_OF_SPAWN)


def _matched(
    copies: Sequence[PythonError], processes: Iterable[Process], statuses: frozenset[int]
) -> dict[int, list[PythonError]]:
    """The first copy of an exception, by its id → one copy for each rank that it ended; nothing where the copies are
    of several exceptions, or fewer than those ranks."""
    if len({(e.node, e.type, e.message.split("\n", 1)[0]) for e in copies}) != 1:
        return {}
    ranks = _ended(processes, statuses, copies[0])
    if not 0 < len(ranks) <= min(len(copies), _MOST):
        return {}
    return {id(copies[0]): [replace(copy, rank=rank) for rank, copy in zip(ranks, copies, strict=False)]}


def _ended(processes: Iterable[Process], statuses: frozenset[int], error: PythonError) -> list[int]:
    """Ranks that ended so on the exception's node."""
    near = [p for p in processes if error.node is None or p.node is None or p.node == error.node]
    return sorted(p.rank for p in near if p.exit_status in statuses)
