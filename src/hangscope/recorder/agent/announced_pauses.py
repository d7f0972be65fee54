"""Pauses that the training code announced with `hangscope.expect_pause`: while one lasts, a wait is no stall.

Looked at only when something has waited for longer than the threshold, so that it costs nothing while all is well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hangscope.recorder.live.polling import Polling
from hangscope.recorder.rundir import run_directory
from hangscope.recorder.rundir.peer_files import finite
from hangscope.recorder.rundir.run_directory import RunFolders
from hangscope.safeio.safe_files import read_file

ENDING = ".pause"
MOST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Pause:
    """`ago_s` is how long ago it ended, 0 while it lasts. `overdue` says that it went on past its own bound."""

    ago_s: float
    reason: str = ""
    overdue: bool = False


def newest(sockets: Path, pids: Iterable[int]) -> Pause | None:
    """Of these processes' announcements the one that holds, or ended last; None where nobody ever made one."""
    found = [pause for pid in pids if (pause := _read(sockets / f"{pid}{ENDING}")) is not None]
    return min(found, key=lambda pause: pause.ago_s, default=None)


def of_this_node(polling: Polling) -> Pause | None:
    """As `newest`, of the ranks that live here."""
    return newest(polling.sockets, [rank.process.pid for rank in polling.living])


def of_all_nodes(polling: Polling, folders: RunFolders) -> Pause | None:
    """As `newest`, of the ranks here and, by their agents' status, of those of other nodes."""
    found = [of_this_node(polling)]
    for _, status in run_directory.statuses(folders.root, folders.own):
        if status.pause_ago_s is not None and not status.ended:
            found.append(Pause(max(0.0, status.pause_ago_s)))
    return min((pause for pause in found if pause is not None), key=lambda pause: pause.ago_s, default=None)


def _read(path: Path) -> Pause | None:
    try:
        value = json.loads(read_file(path, MOST_BYTES, follow=False))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    now = time.time()
    ended = finite(value.get("ended"))
    if ended is not None:
        return Pause(max(0.0, now - ended))
    if finite(value.get("since")) is None:
        return None
    reason = "".join(char for char in str(value.get("reason") or "")[:200] if char.isprintable())
    until = finite(value.get("until"))
    if until is None:
        return Pause(0.0, reason)
    return Pause(max(0.0, now - until), reason or "something", overdue=now > until)
