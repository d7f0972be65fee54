"""Who did what: one line an action, of the project in which it was done.

Lines are kept for a year. Opening the same thing again and again is one line a minute: whoever does so ten thousand
times does not bury the rest.
"""

from __future__ import annotations

import time

from sqlalchemy import Connection, delete, select

from hangscope.server.store.access_tokens import Access
from hangscope.server.store.tables import AUDIT

KEPT_S = 365 * 86400.0
AGAIN_S = 60.0
"""Reading the same thing again so soon is the same action."""
READING = ("page", "bundle", "verdict")


def write_down(connection: Connection, access: Access, what: str, subject: str) -> None:
    now = time.time()
    row = {"project_id": access.project_id, "who": access.name[:100], "what": what[:40], "subject": subject[:200]}
    if what in READING:
        same = [AUDIT.c[name] == value for name, value in row.items()]
        if connection.execute(select(AUDIT.c.id).where(*same, AUDIT.c.at > now - AGAIN_S).limit(1)).first() is not None:
            return
    connection.execute(AUDIT.insert().values(at=now, **row))


def forget_old(connection: Connection, now: float) -> None:
    connection.execute(delete(AUDIT).where(AUDIT.c.at < now - KEPT_S))
