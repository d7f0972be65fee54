"""Exceptions that name no rank, given to the ranks that can have printed them.

Before init_process_group nothing puts `[rank2]:` in front of a line, and ranks share one pipe. But an exception that
nobody caught ends its process with status 1, one of C++ with SIGABRT, and who ended how is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from hangscope.model import FATAL_ERROR, GLOO_SIZE, Process, PythonError
from hangscope.reader.logs.tracebacks import of_launcher

_RAISED = frozenset((1,))
_ABORTED = frozenset((-6, 134))
_OF_SPAWN = ".ProcessRaisedException"
"""What the parent of mp.spawn raises; the exception of its child follows, as its parent quotes it."""
_MOST = 64


def claimed(errors: Sequence[PythonError], processes: Mapping[int, Process]) -> list[PythonError]:
    """Each with its rank, where only one exception and those that ended so are left to be matched."""
    nameless = [e for e in errors if e.rank is None and e.type != FATAL_ERROR]
    loose = [e for e in nameless if not of_launcher(e.frames) and not e.type.endswith(_OF_SPAWN)]
    taken = {e.rank for e in errors if e.rank is not None and not e.consequence}
    given: dict[int, list[PythonError]] = {}
    for statuses, mine in (
        (_ABORTED, [e for e in loose if e.type == GLOO_SIZE]),
        (_RAISED, [e for e in loose if e.type != GLOO_SIZE]),
    ):
        for error, copies in _only(mine):
            ranks = [r for r in _ended(processes.values(), statuses, error) if r not in taken]
            if 0 < len(ranks) <= min(len(copies), _MOST):
                given[id(error)] = [replace(copy, rank=rank) for rank, copy in zip(ranks, copies, strict=False)]
    return [made for error in errors for made in given.get(id(error), (error,))]


def _only(errors: Sequence[PythonError]) -> Iterator[tuple[PythonError, list[PythonError]]]:
    """The exception of which all that was printed are copies, and the copies; nothing where there are several."""
    if len({(e.node, e.type, e.message.split("\n", 1)[0]) for e in errors}) == 1:
        yield errors[0], list(errors)


def _ended(processes: Iterable[Process], statuses: frozenset[int], error: PythonError) -> list[int]:
    """Ranks that ended so on the exception's node."""
    near = [p for p in processes if error.node is None or p.node is None or p.node == error.node]
    return sorted(p.rank for p in near if p.exit_status in statuses)
