"""What one project may use of the server: bytes, rows and places in the queue. One token must not take it away from
all others.

A project's usage is one row, changed in the transaction that uses it, so that every server counts alike. Housekeeping
counts anew now and then: whatever was counted wrongly is right again after an hour.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select, update

from hangscope.errors import HangscopeError
from hangscope.server.store import work_queue
from hangscope.server.store.database import insert_new
from hangscope.server.store.tables import ACCUSED, BLOBS, ENTITIES, EXPOSURES, INCIDENTS, JOBS, PARTS, USAGE


class OverBudget(HangscopeError):
    """The project has used what it may. `status` is what HTTP calls it: 507 where only deleting helps, 429 where
    waiting does."""

    def __init__(self, message: str, *, hint: str, status: int) -> None:
        super().__init__(message, hint=hint)
        self.status = status


@dataclass(frozen=True, slots=True)
class Budgets:
    """Of one project. `claimed_bytes` are those of its bundles, which may share their chunks."""

    stored_bytes: int = 64 << 30
    claimed_bytes: int = 256 << 30
    kept_rows: int = 20_000_000
    waiting: int = 1000
    """Incidents that wait for their diagnosis."""


DEFAULT = Budgets()


def use(
    connection: Connection,
    project_id: int,
    budgets: Budgets | None,
    *,
    stored_bytes: int = 0,
    claimed_bytes: int = 0,
    kept_rows: int = 0,
) -> None:
    """Count what is about to be used; raises where a budget does not allow it (`None` allows everything). Negative is
    given back. Until the transaction ends, nobody else changes what this project stores: so it comes before
    any other row of the project, else two transactions could wait for each other."""
    more = {"stored_bytes": stored_bytes, "claimed_bytes": claimed_bytes, "kept_rows": kept_rows}
    row = {"project_id": project_id, **dict.fromkeys(more, 0), "digest_s": 0.0, "digest_at": 0.0}
    same = USAGE.c.project_id == project_id
    values = {name: USAGE.c[name] + amount for name, amount in more.items()}
    columns = [USAGE.c[name] for name in more]
    changed = connection.execute(update(USAGE).where(same).values(**values).returning(*columns)).first()
    if changed is None:
        insert_new(connection, USAGE, row)
        changed = connection.execute(update(USAGE).where(same).values(**values).returning(*columns)).one()
    for name, amount in more.items():
        if budgets is not None and amount > 0 and getattr(changed, name) > getattr(budgets, name):
            raise _used_up(name, budgets)


_WORDS = {"stored_bytes": "bytes stored", "claimed_bytes": "bytes of bundles", "kept_rows": "rows"}


def _used_up(name: str, budgets: Budgets) -> OverBudget:
    return OverBudget(
        f"the project's budget of {getattr(budgets, name):,} {_WORDS[name]} is used up",
        hint="delete incidents, keep them for fewer days, or raise the budget where the server is started",
        status=507,
    )


def check_stored(connection: Connection, project_id: int, budgets: Budgets, size: int) -> None:
    """Raises where so many bytes more would be too many."""
    stored = connection.execute(select(USAGE.c.stored_bytes).where(USAGE.c.project_id == project_id)).scalar() or 0
    if stored + size > budgets.stored_bytes:
        raise _used_up("stored_bytes", budgets)


def check_queue(connection: Connection, project_id: int, budgets: Budgets | None) -> None:
    """Raises where so many of the project's incidents wait that one more would only wait longer."""
    if budgets is not None and work_queue.waiting(connection, work_queue.DIGEST, project_id) >= budgets.waiting:
        raise OverBudget(
            f"{budgets.waiting:,} incidents of this project wait for their diagnosis", hint="send it later", status=429
        )


def recount(connection: Connection, project_id: int) -> None:
    """What the project really uses."""
    use(connection, project_id, None)
    mine = JOBS.c.project_id == project_id
    counts = [
        select(func.count()).select_from(table).where(table.c.project_id == project_id)
        for table in (JOBS, INCIDENTS, ENTITIES, PARTS, BLOBS)
    ]
    counts.append(select(func.count()).select_from(EXPOSURES.join(JOBS, JOBS.c.id == EXPOSURES.c.job_id)).where(mine))
    of_incidents = INCIDENTS.c.project_id == project_id
    accused = ACCUSED.join(INCIDENTS, INCIDENTS.c.id == ACCUSED.c.incident_id)
    counts.append(select(func.count()).select_from(accused).where(of_incidents))
    stored = select(func.coalesce(func.sum(BLOBS.c.size), 0)).where(BLOBS.c.project_id == project_id)
    claimed = select(func.coalesce(func.sum(PARTS.c.size), 0)).where(PARTS.c.project_id == project_id)
    values = {
        "stored_bytes": int(connection.execute(stored).scalar_one()),
        "claimed_bytes": int(connection.execute(claimed).scalar_one()),
        "kept_rows": sum(int(connection.execute(count).scalar_one()) for count in counts),
    }
    connection.execute(update(USAGE).where(USAGE.c.project_id == project_id).values(**values))
