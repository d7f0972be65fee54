"""Whether the server is well, known beforehand: who asks waits for nothing and needs no token.

`ok`; `read-only`: the disk is full, pages are shown and nothing is accepted; `unavailable`: the database does not
answer.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import text

from hangscope.server.store.database import Database

FRESH_S = 1.0
OLD_S = 10.0
LEAST_BYTES = 32 << 20
FULL_S = 10.0
"""After a write that failed for want of room it counts as full for so long, whatever the file system says."""


@dataclass(slots=True)
class Health:
    """Looks again in a thread of its own when it is asked and the last look is a second old."""

    database: Database
    folder: Path | None = None
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "health"))
    _looking: asyncio.Future[None] | None = None
    _looked_at: float = -1e9
    _gone: bool = False
    _full_at: float = -1e9

    async def state(self) -> tuple[int, dict[str, str]]:
        """The status and what is said with it."""
        if time.monotonic() - self._looked_at > FRESH_S and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().run_in_executor(self._thread, self._look)
        if time.monotonic() - self._looked_at > OLD_S and self._looking is not None:
            await asyncio.wait([self._looking], timeout=1.0)
        if self._gone or time.monotonic() - self._looked_at > OLD_S:
            return 503, {"status": "unavailable", "problem": "the database does not answer"}
        if time.monotonic() - self._full_at < FULL_S:
            return 200, {"status": "read-only", "problem": "the server's disk is full: nothing is accepted"}
        return 200, {"status": "ok"}

    def note_gone(self) -> None:
        self._gone = True
        self._looked_at = time.monotonic()

    def note_full(self) -> None:
        self._full_at = time.monotonic()

    def _look(self) -> None:
        try:
            with self.database.read() as connection:
                connection.execute(text("SELECT 1"))
            self._gone = False
        except Exception:  # whatever is wrong with it, it does not answer
            self._gone = True
        if self.folder is not None:
            try:
                found = os.statvfs(self.folder)
                if found.f_bavail * found.f_frsize < LEAST_BYTES:
                    self.note_full()
            except OSError:
                pass
        self._looked_at = time.monotonic()


def is_full(error: BaseException | None) -> bool:
    """Whether something could not be written for want of room, as the system, SQLite and Postgres say it."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "disk is full" in str(error) or getattr(error, "sqlstate", None) == "53100"
