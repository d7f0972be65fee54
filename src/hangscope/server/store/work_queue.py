"""The queue as a table: what is to be digested or delivered, leased for a while by whoever works on it.

Work is added in the transaction that accepts its subject, so neither exists without the other. Who dies over it loses
the lease, and another takes it. On Postgres `FOR UPDATE SKIP LOCKED` keeps workers out of each other's way; SQLite has
one writer at a time anyway.

The queue is fair between projects: next is the project with the least running, then with the least time spent lately,
however much another has waiting. It does not trust clocks: new work is due whatever the time, and what lies further in
the future than anything is ever put counts as due (a clock was set back).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, case, delete, func, or_, select, update

from hangscope.server.store.database import Database, clock, insert_new
from hangscope.server.store.tables import USAGE, WORK

DIGEST = "digest"
DELIVER = "deliver"
RETRY_S = 10.0
LONGEST_RETRY_S = 3600.0
JUMP_S = 60.0
"""A clock that shows so much less than it did was set back."""
DIGEST_S_AN_HOUR = 1800.0
"""Of the digesters' time, what a project has spent is forgotten at this rate."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Work that is ours for a while. `attempts` counts this one, `failures` those that ended with an error."""

    id: int
    kind: str
    subject: int
    revision: int
    attempts: int
    project_id: int | None = None
    failures: int = 0


def add(connection: Connection, kind: str, subject: int, project_id: int, *, not_before: float = 0.0) -> None:
    """Have `subject` worked on. Where it waits already or is being worked on, it is worked on once more."""
    row = {"kind": kind, "subject": subject, "project_id": project_id, "revision": 1, "attempts": 0}
    if not insert_new(connection, WORK, {**row, "failures": 0, "not_before": not_before}):
        connection.execute(
            update(WORK)
            .where(WORK.c.kind == kind, WORK.c.subject == subject)
            .values(revision=WORK.c.revision + 1, attempts=0, failures=0, not_before=not_before, put_back_at=None)
        )


def waiting(connection: Connection, kind: str, project_id: int) -> int:
    """How much of a project's waits or is being worked on."""
    mine = (WORK.c.kind == kind, WORK.c.project_id == project_id)
    return int(connection.execute(select(func.count()).select_from(WORK).where(*mine)).scalar_one())


def take(
    database: Database, worker: str, lease_s: float, kind: str | None = None, *, spare: bool = False
) -> Lease | None:
    """The work whose turn it is, for `lease_s`; None where nothing is due. With `spare`, only work of a project of
    which nothing is running: a lane that a project which has much cannot fill."""
    with database.read() as connection:  # a look that locks nobody out: most of the time there is nothing
        now = clock(connection)
        turns = _turns(connection, kind, now, lease_s, spare=spare)
    for project_id in turns:
        same_project = WORK.c.project_id.is_(None) if project_id is None else WORK.c.project_id == project_id
        which = [same_project] if kind is None else [same_project, WORK.c.kind == kind]
        due = (
            select(WORK)
            .where(*which, _is_due(now), _is_free(now, lease_s))
            .order_by(WORK.c.not_before, WORK.c.id)
            .limit(1)
        )
        with database.write() as connection:
            if spare and _runs(connection, which, now, lease_s):
                continue
            row = connection.execute(due.with_for_update(skip_locked=True)).first()
            if row is None:
                continue
            connection.execute(
                update(WORK)
                .where(WORK.c.id == row.id)
                .values(leased_until=now + lease_s, leased_by=worker, attempts=row.attempts + 1)
            )
        return Lease(row.id, row.kind, row.subject, row.revision, row.attempts + 1, row.project_id, row.failures)
    return None


def _is_due(now: float) -> ColumnElement[bool]:
    set_back = and_(WORK.c.put_back_at.is_not(None), WORK.c.put_back_at > now + JUMP_S)
    return or_(WORK.c.not_before <= now, WORK.c.not_before > now + LONGEST_RETRY_S + JUMP_S, set_back)


def _is_free(now: float, lease_s: float) -> ColumnElement[bool]:
    too_far = WORK.c.leased_until > now + lease_s + JUMP_S
    return or_(WORK.c.leased_until.is_(None), WORK.c.leased_until < now, too_far)


def _runs(connection: Connection, which: Sequence[ColumnElement[bool]], now: float, lease_s: float) -> bool:
    running = WORK.c.leased_until.between(now, now + lease_s + JUMP_S)
    return connection.execute(select(WORK.c.id).where(*which, running).limit(1)).first() is not None


def _turns(connection: Connection, kind: str | None, now: float, lease_s: float, *, spare: bool) -> list[int | None]:
    """The projects that have something due, in the order in which they get their turn."""
    is_waiting = and_(_is_due(now), _is_free(now, lease_s))
    is_running = WORK.c.leased_until.between(now, now + lease_s + JUMP_S)
    asked = select(
        WORK.c.project_id,
        func.min(case((is_waiting, WORK.c.id))).label("oldest"),
        func.sum(case((is_running, 1), else_=0)).label("running"),
    ).group_by(WORK.c.project_id)
    if kind is not None:
        asked = asked.where(WORK.c.kind == kind)
    rows = [row for row in connection.execute(asked) if row.oldest is not None and not (spare and row.running)]
    if len(rows) < 2:
        return [row.project_id for row in rows]
    spent = {row.project_id: _left(row, now) for row in connection.execute(select(USAGE))} if kind == DIGEST else {}
    rows.sort(key=lambda row: (row.running, spent.get(row.project_id, 0.0), row.oldest))
    return [row.project_id for row in rows]


def _left(usage: Row[Any], now: float) -> float:
    """Of the seconds that a project spent, those that are not forgotten yet."""
    elapsed = max(0.0, now - usage.digest_at)
    return float(max(0.0, usage.digest_s - elapsed * DIGEST_S_AN_HOUR / 3600))


def spend(connection: Connection, project_id: int, seconds: float) -> None:
    """The project has used a digester for so long."""
    now = clock(connection)
    row = connection.execute(select(USAGE).where(USAGE.c.project_id == project_id)).first()
    if row is not None:
        values = {"digest_s": _left(row, now) + seconds, "digest_at": now}
        connection.execute(update(USAGE).where(USAGE.c.project_id == project_id).values(**values))


def renew(database: Database, worker: str, held: list[int], lease_s: float) -> None:
    """We live, and still work on these."""
    with database.write() as connection:
        until = clock(connection) + lease_s
        mine = (WORK.c.id.in_(held), WORK.c.leased_by == worker)
        connection.execute(update(WORK).where(*mine).values(leased_until=until))


def finish(connection: Connection, lease: Lease) -> None:
    """The work is done. Where more of its subject came meanwhile, it waits again."""
    same = and_(WORK.c.id == lease.id, WORK.c.revision == lease.revision)
    if connection.execute(delete(WORK).where(same)).rowcount == 0:
        connection.execute(
            update(WORK).where(WORK.c.id == lease.id).values(leased_until=None, leased_by=None, attempts=0, failures=0)
        )


def put_back(connection: Connection, lease: Lease) -> None:
    """It did not work this time: later again, each time twice as much later."""
    now = clock(connection)
    wait = min(LONGEST_RETRY_S, RETRY_S * 2 ** max(0, lease.failures))
    values = {"leased_until": None, "leased_by": None, "not_before": now + wait, "put_back_at": now}
    connection.execute(update(WORK).where(WORK.c.id == lease.id).values(**values, failures=lease.failures + 1))
