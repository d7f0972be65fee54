"""Why an incident was captured, as docs/run.md lists it. A mark of another node may say what a later version knows."""

from __future__ import annotations

from enum import Enum


class Reason(str, Enum):
    STALL = "stall"
    WATCHDOG = "watchdog"
    """PyTorch's own, which saw a timeout."""
    DUMP_FILE = "dump-file"
    RANK_EXIT = "rank-exit"
    SNAPSHOT = "snapshot"
    DESYNC = "desync"
    """The ranks' calls have come apart, and nothing hangs."""

    def __str__(self) -> str:
        return self.value


MAY_RECOVER = (Reason.STALL, Reason.WATCHDOG, Reason.DUMP_FILE)
"""After these the job may go on by itself."""
