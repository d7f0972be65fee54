"""The queue as a table: what is to be digested or delivered, leased for a while by whoever works on it.

Work is added in the transaction that accepts its subject, so neither exists without the other. Who dies over it loses
the lease, and another takes it. On Postgres `FOR UPDATE SKIP LOCKED` keeps workers out of each other's way; SQLite has
one writer at a time anyway.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import Connection, and_, delete, or_, select, update

from hangscope.server.store.database import Database, insert_new
from hangscope.server.store.tables import WORK

DIGEST = "digest"
DELIVER = "deliver"
RETRY_S = 10.0
LONGEST_RETRY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Lease:
    """Work that is ours for a while. `attempts` counts this one."""

    id: int
    kind: str
    subject: int
    revision: int
    attempts: int


def add(connection: Connection, kind: str, subject: int, *, not_before: float | None = None) -> None:
    """Have `subject` worked on. Where it waits already or is being worked on, it is worked on once more."""
    due = time.time() if not_before is None else not_before
    row = {"kind": kind, "subject": subject, "revision": 1, "attempts": 0, "not_before": due}
    if not insert_new(connection, WORK, row):
        connection.execute(
            update(WORK)
            .where(WORK.c.kind == kind, WORK.c.subject == subject)
            .values(revision=WORK.c.revision + 1, attempts=0, not_before=due)
        )


def take(database: Database, worker: str, lease_s: float) -> Lease | None:
    """The work that has waited longest, for `lease_s`; None where nothing is due."""
    now = time.time()
    free = or_(WORK.c.leased_until.is_(None), WORK.c.leased_until < now)
    due = select(WORK).where(WORK.c.not_before <= now, free).order_by(WORK.c.not_before, WORK.c.id).limit(1)
    with database.read() as connection:  # a look that locks nobody out: most of the time there is nothing
        if connection.execute(due).first() is None:
            return None
    with database.write() as connection:
        row = connection.execute(due.with_for_update(skip_locked=True)).first()
        if row is None:
            return None
        connection.execute(
            update(WORK)
            .where(WORK.c.id == row.id)
            .values(leased_until=now + lease_s, leased_by=worker, attempts=row.attempts + 1)
        )
    return Lease(row.id, row.kind, row.subject, row.revision, row.attempts + 1)


def finish(connection: Connection, lease: Lease) -> None:
    """The work is done. Where more of its subject came meanwhile, it waits again."""
    same = and_(WORK.c.id == lease.id, WORK.c.revision == lease.revision)
    if connection.execute(delete(WORK).where(same)).rowcount == 0:
        connection.execute(
            update(WORK).where(WORK.c.id == lease.id).values(leased_until=None, leased_by=None, attempts=0)
        )


def put_back(connection: Connection, lease: Lease) -> None:
    """It did not work this time: later again, each time twice as much later."""
    wait = min(LONGEST_RETRY_S, RETRY_S * 2 ** (lease.attempts - 1))
    connection.execute(
        update(WORK)
        .where(WORK.c.id == lease.id)
        .values(leased_until=None, leased_by=None, not_before=time.time() + wait)
    )
