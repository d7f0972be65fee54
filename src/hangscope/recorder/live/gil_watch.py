"""Whether something keeps the GIL of a rank that nobody asks, as its memory shows."""

from __future__ import annotations

import threading
import time

from hangscope.processes import linux_process
from hangscope.sources.cannot_read import CannotRead
from hangscope.sources.distributed_state import DistributedState

LOOKS = 20
LEAST_S = 1.0
"""Code in C that keeps the GIL for less than this, again and again, is at work."""


CLOSE_S = 0.3
"""So long it is then looked at without a pause: a short call of C that is made again and again looks the same at each
of the looks."""


def keeps_gil(pid: int, ended: threading.Event, seconds: float) -> bool:
    """Look so long, again and again: whether one thread had the GIL at every look, in the very same place of its code
    with the very same values, so that no other could run. Takes `seconds`, or LEAST_S where that is more and the GIL is
    held."""
    until = time.monotonic() + seconds
    kept = _look(pid, ended, max(seconds, LEAST_S)) and not _is_stopped(pid)
    ended.wait(max(0.0, until - time.monotonic()))
    return kept


def _is_stopped(pid: int) -> bool:
    stat = linux_process.stat(pid)
    return stat is None or stat.state in "Tt"


def _look(pid: int, ended: threading.Event, seconds: float) -> bool:
    try:
        with DistributedState(pid) as state:
            first = state.gil_holder()
            for _ in range(LOOKS):
                if first is None or ended.wait(seconds / LOOKS) or state.gil_holder() != first:
                    return False
            return not state.gil_holder_runs(CLOSE_S)
    except (CannotRead, OSError):
        return False
