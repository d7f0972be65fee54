"""What people and schedulers say of a machine: repaired, not to be suspected, taken out, or a note.

`repaired`: from then on it is another machine. `dismissed`: the verdicts until then were wrong about it. A node that a
scheduler had taken out and put back is repaired without anybody saying so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, select

from hangscope.errors import InputError
from hangscope.server.digest.issue_groups import NoSuchThing
from hangscope.server.history.places import DISMISSED, DRAINED, NOTE, REPAIRED
from hangscope.server.intake import plain_values as plain
from hangscope.server.intake.entities import NODE
from hangscope.server.store.tables import ENTITIES, MARKS

ACTIONS = {"repaired": REPAIRED, "dismiss": DISMISSED, "note": NOTE}
_AT_A_TIME = 500


def find_node(connection: Connection, project_id: int, name: str, cluster: str | None = None) -> Any:
    """The row of a node. Where several clusters have one of that name, `cluster` says which is meant."""
    return find(connection, project_id, NODE, name, cluster)


def find(connection: Connection, project_id: int, kind: str, name: str, cluster: str | None = None) -> Any:
    rows = named(connection, project_id, kind, name)
    if cluster is not None:
        rows = [row for row in rows if row.cluster == cluster]
    if not rows:
        raise NoSuchThing(f"there is no such {kind} in this project")
    if len(rows) > 1:
        clusters = ", ".join(sorted(row.cluster or "(none)" for row in rows))
        raise InputError(f"{name} is in several clusters: {clusters}", hint="`cluster` says which")
    return rows[0]


def named(connection: Connection, project_id: int, kind: str, name: str) -> list[Any]:
    same = (ENTITIES.c.project_id == project_id, ENTITIES.c.kind == kind, ENTITIES.c.name == name)
    return list(connection.execute(select(ENTITIES).where(*same).order_by(ENTITIES.c.cluster)).all())


def of_entity(connection: Connection, entity_id: int, most: int) -> list[Any]:
    """The newest first."""
    asked = select(MARKS).where(MARKS.c.entity_id == entity_id).order_by(MARKS.c.at.desc(), MARKS.c.id.desc())
    return list(connection.execute(asked.limit(most)).all())


def add(
    connection: Connection, project_id: int, entity_id: int, what: str, who: str, detail: str, at: float, now: float
) -> None:
    """`at` is when it was, which may be a while ago and is never to come."""
    if what == NOTE and not detail:
        raise InputError("a note needs its text", hint="`note`")
    row = {"project_id": project_id, "entity_id": entity_id, "at": min(at, now), "what": what}
    connection.execute(MARKS.insert().values(**row, who=who[:100], detail=plain.clean(detail, 1000)))


def note_states(
    connection: Connection, project_id: int, cluster: str, said: Iterable[tuple[str, bool]], who: str, now: float
) -> list[str]:
    """Take (node, whether it is taken out) from a scheduler; returns those that are back, and so count as repaired.
    Nodes that no job ever ran on are left out."""
    states = dict(said)
    names = sorted(states)
    back: list[str] = []
    for start in range(0, len(names), _AT_A_TIME):
        few = names[start : start + _AT_A_TIME]
        same = (ENTITIES.c.project_id == project_id, ENTITIES.c.kind == NODE, ENTITIES.c.name.in_(few))
        asked = select(ENTITIES.c.id, ENTITIES.c.name).where(*same, ENTITIES.c.cluster == cluster)
        known = {row.id: row.name for row in connection.execute(asked)}
        out = _taken_out(connection, list(known))
        for entity, name in known.items():
            if states[name] and entity not in out:
                add(connection, project_id, entity, DRAINED, who, "", now, now)
            elif not states[name] and entity in out:
                add(connection, project_id, entity, REPAIRED, who, "in service again after it was taken out", now, now)
                back.append(name)
    return back


def _taken_out(connection: Connection, entities: list[int]) -> set[int]:
    """Those of which the last word is that a scheduler took them out."""
    rows = connection.execute(
        select(MARKS.c.entity_id, MARKS.c.what)
        .where(MARKS.c.entity_id.in_(entities), MARKS.c.what.in_((DRAINED, REPAIRED)))
        .order_by(MARKS.c.at, MARKS.c.id)
    )
    last = {row.entity_id: row.what for row in rows}
    return {entity for entity, what in last.items() if what == DRAINED}
