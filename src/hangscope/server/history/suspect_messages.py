"""Who became suspect, and who is no longer: one message each, however often the summary is made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select

from hangscope.server.store import outbox
from hangscope.server.store.tables import SUMMARIES

SUSPECT = "suspect"
CLEARED = "suspect cleared"
STILL_ODDS = 3.0
"""Who was proposed stays suspect until its odds are less: messages do not come and go with every job."""
_KEPT = ("kind", "name", "cluster", "label", "node", "says", "odds", "named", "jobs")


def tell(connection: Connection, project_id: int, value: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Queue what changed against the summary before; returns who was announced, to be kept in this one."""
    before = connection.execute(
        select(SUMMARIES.c.value).where(SUMMARIES.c.project_id == project_id).with_for_update()
    ).scalar()
    announced: dict[str, Any] = json.loads(before).get("announced", {}) if before else {}
    now_there = {f"{each['kind']} {each['label']}": each for each in value["suspects"]}
    kept = {}
    for key, suspect in announced.items():
        found = now_there.get(key)
        if found is not None and (found["proposed"] or found["odds"] >= STILL_ODDS):
            kept[key] = suspect
        else:
            _queue(connection, project_id, CLEARED, key, suspect, now)
    for key, found in now_there.items():
        if found["proposed"] and key not in kept:
            kept[key] = {**{name: found[name] for name in _KEPT}, "since": now}
            _queue(connection, project_id, SUSPECT, key, kept[key], now)
    return kept


def _queue(
    connection: Connection, project_id: int, event: str, key: str, suspect: Mapping[str, Any], now: float
) -> None:
    subject = f"{key} since {suspect['since']:.0f}"
    outbox.tell(connection, project_id, event, subject, now, about={"suspect": suspect})
