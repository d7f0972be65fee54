"""Messages to webhooks: one row for each webhook and event, kept after it was sent, and its work in the queue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, select, update

from hangscope.server.store import work_queue
from hangscope.server.store.database import insert_new
from hangscope.server.store.tables import DELIVERIES, WEBHOOKS, WORK

KEPT_S = 30 * 86400.0
TEST = "test"


def tell(
    connection: Connection,
    project_id: int,
    event: str,
    subject: str,
    now: float,
    *,
    incident_id: int | None = None,
    about: Mapping[str, Any] | None = None,
    webhook_id: int | None = None,
) -> int:
    """Have `event` about `subject` sent to every webhook of the project, or to one; each once. How many there are."""
    hooks = select(WEBHOOKS.c.id).where(WEBHOOKS.c.project_id == project_id)
    if webhook_id is not None:
        hooks = hooks.where(WEBHOOKS.c.id == webhook_id)
    count = 0
    for hook in list(connection.execute(hooks).scalars()):
        key = {"webhook_id": hook, "event": event, "subject": subject[:600]}
        rest = {"incident_id": incident_id, "created_at": now, "about": json.dumps(about or {}), "attempts": 0}
        if not insert_new(connection, DELIVERIES, {**key, **rest}):
            continue
        same = [DELIVERIES.c[name] == value for name, value in key.items()]
        made = connection.execute(select(DELIVERIES.c.id).where(*same)).scalar_one()
        work_queue.add(connection, work_queue.DELIVER, made, project_id)
        count += 1
    return count


def again(connection: Connection, project_id: int, delivery_id: int) -> bool:
    """Send one once more, now. Whether there is one."""
    mine = select(WEBHOOKS.c.id).where(WEBHOOKS.c.project_id == project_id)
    same = (DELIVERIES.c.id == delivery_id, DELIVERIES.c.webhook_id.in_(mine))
    if connection.execute(update(DELIVERIES).where(*same).values(delivered_at=None, problem=None)).rowcount == 0:
        return False
    work_queue.add(connection, work_queue.DELIVER, delivery_id, project_id)
    return True


def forget_old(connection: Connection, now: float) -> None:
    """What was sent long ago, or given up."""
    waits = select(WORK.c.subject).where(WORK.c.kind == work_queue.DELIVER)
    old = (DELIVERIES.c.created_at < now - KEPT_S, DELIVERIES.c.id.not_in(waits))
    connection.execute(delete(DELIVERIES).where(*old))
