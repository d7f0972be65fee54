"""How long a rank has stood still by its own flight recorder, which has the time of everything that it launched.

Looking twice, some seconds apart, tells who moves. Where the recorder shows that a rank has launched and finished
nothing for longer than that, those seconds have passed already.
"""

from __future__ import annotations

import time
from typing import Any

from hangscope.recorder.live.unfinished_ops import rows
from hangscope.safeio.safe_files import Patience
from hangscope.sources.cannot_read import CannotRead
from hangscope.sources.flight_recorder.outside import open_process

READ_S = 2.0
_TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")


def stood_s(pid: int) -> float | None:
    """Seconds since the process launched or finished an operation; None where its recorders do not say."""
    try:
        newest = Patience(READ_S).ask(str(pid), lambda: _newest_ns(pid))
    except (CannotRead, OSError):
        return None
    return None if newest is None else max(0.0, (time.time_ns() - newest) / 1e9)


def newest_by_group(dump: dict[str, Any]) -> dict[str, int]:
    """By the group's number in the process, when (wall clock) an operation of it was last launched or finished."""
    found: dict[str, int] = {}
    for entry in rows(dump):
        number = str(entry.get("pg_id"))
        found[number] = max(found.get(number, 0), *_times(entry), 0)
    return found


def _newest_ns(pid: int) -> int | None:
    with open_process(pid) as process:
        dumps = [process.dump(backend, stacks=False) for backend in process.recorders()]
    return max((newest for dump in dumps for entry in rows(dump) for newest in _times(entry)), default=None)


def _times(entry: dict[str, Any]) -> list[int]:
    return [value for name in _TIMES if isinstance(value := entry.get(name), int)]
