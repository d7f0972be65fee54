"""Rosters: which ranks of a job ran on which nodes, GPUs and ports, with which image and code; and how the job ended.

Every job's are kept, of healthy ones too: that a node was in four of five hangs means nothing if it ran in all jobs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, case, or_, select, update

from hangscope.errors import InputError
from hangscope.server.intake import budgets as project_budgets
from hangscope.server.intake import plain_values as plain
from hangscope.server.intake.budgets import DEFAULT, Budgets
from hangscope.server.intake.entities import COMMIT, IMAGE, NODE, PLACES, VERSION, Entity, of_node
from hangscope.server.store.database import Database, row_id, upsert
from hangscope.server.store.tables import ENTITIES, EXPOSURES, JOBS

MOST_NODES = 20_000
MOST_VERSIONS = 40
MOST_ENTITIES = 100_000
"""Of one roster."""
BATCH = 250
"""Rows that are written in one transaction: so long others wait, on a machine that is busy as well."""


class TooLarge(InputError):
    """More than one request may hold."""


class JobName(NamedTuple):
    """Which attempt of which job of which cluster."""

    cluster: str
    job: str
    attempt: str

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> JobName:
        return cls(plain.text(value, "cluster"), plain.needed(value, "job"), plain.text(value, "attempt", 40) or "0")


def job_row(connection: Connection, project_id: int, name: JobName, started_at: float) -> int:
    """The id of the job's row, made where this is the first that is known of it."""
    key = {"project_id": project_id, "cluster": name.cluster, "name": name.job, "attempt": name.attempt}
    return row_id(connection, JOBS, key, {"started_at": started_at, "details": "{}", "received_at": time.time()})[0]


def entity_rows(
    connection: Connection,
    project_id: int,
    entities: Iterable[Entity],
    at: float,
    budgets: Budgets | None = None,
    *,
    cluster: str = "",
) -> dict[Entity, int]:
    """The ids of these, made where they are new and seen now: one statement a batch, and in one order, so that two who
    do the same do not wait for each other in a ring. What has a place is of `cluster`."""
    project_budgets.use(connection, project_id, None)  # before any row of it, as everywhere: no two wait in a ring
    known = {(entity.kind, entity.name): entity for entity in reversed(list(entities))}
    rows = [
        {
            "project_id": project_id,
            "kind": kind,
            "name": name,
            "first_seen_at": at,
            "last_seen_at": at,
            "cluster": cluster if kind in PLACES else "",
        }
        for kind, name in sorted(known)
    ]
    found: dict[Entity, int] = {}
    made = upsert(connection, ENTITIES)
    is_later = made.excluded.last_seen_at > ENTITIES.c.last_seen_at
    later = case((is_later, made.excluded.last_seen_at), else_=ENTITIES.c.last_seen_at)
    made = made.on_conflict_do_update(
        index_elements=["project_id", "kind", "name", "cluster"], set_={"last_seen_at": later}
    ).returning(ENTITIES.c.id, ENTITIES.c.kind, ENTITIES.c.name, ENTITIES.c.first_seen_at)
    new = 0
    for start in range(0, len(rows), BATCH):
        for row in connection.execute(made, rows[start : start + BATCH]):
            found[known[row.kind, row.name]] = row.id
            new += row.first_seen_at == at
    project_budgets.use(connection, project_id, budgets, kept_rows=new)
    return found


def only_cluster(connection: Connection, project_id: int, nodes: Iterable[str]) -> str:
    """The cluster of nodes of which nobody said it: the one that has all of them that are known; empty where they are
    known without one, or in several."""
    names = list(nodes)[:BATCH]
    same = (ENTITIES.c.project_id == project_id, ENTITIES.c.kind == NODE, ENTITIES.c.name.in_(names))
    found = set(connection.execute(select(ENTITIES.c.cluster).where(*same)).scalars())
    return found.pop() if len(found) == 1 else ""


def expose(
    connection: Connection,
    project_id: int,
    job_id: int,
    on: Mapping[Entity, Iterable[int]],
    at: float,
    *,
    cluster: str = "",
) -> None:
    """The job ran on, or with, these. `on` gives the ranks that did, where that is known."""
    rows = entity_rows(connection, project_id, on, at, cluster=cluster)
    _note_places(connection, rows)
    _note_exposures(connection, job_id, rows, on)


def expose_in_batches(
    database: Database,
    project_id: int,
    job_id: int,
    on: Mapping[Entity, Iterable[int]],
    at: float,
    budgets: Budgets | None = DEFAULT,
    *,
    cluster: str = "",
) -> None:
    """As `expose`, in short transactions: between two of them others get their turn, however much it is."""
    entities = list(on)
    rows: dict[Entity, int] = {}
    for start in range(0, len(entities), BATCH):
        few = entities[start : start + BATCH]
        with database.write() as connection:
            rows.update(entity_rows(connection, project_id, few, at, budgets, cluster=cluster))
    for start in range(0, len(entities), BATCH):
        few = entities[start : start + BATCH]
        with database.write() as connection:
            project_budgets.use(connection, project_id, None)
            _note_places(connection, rows, few)
            new = _note_exposures(connection, job_id, rows, {entity: on[entity] for entity in few})
            project_budgets.use(connection, project_id, budgets, kept_rows=new)


def _note_exposures(
    connection: Connection, job_id: int, rows: Mapping[Entity, int], on: Mapping[Entity, Iterable[int]]
) -> int:
    exposures: list[dict[str, Any]] = [
        {"job_id": job_id, "entity_id": rows[entity], "ranks": " ".join(map(str, sorted(set(ranks))))}
        for entity, ranks in on.items()
    ]
    if not exposures:
        return 0
    exposures.sort(key=lambda row: row["entity_id"])
    return max(0, connection.execute(upsert(connection, EXPOSURES).on_conflict_do_nothing(), exposures).rowcount)


def _note_places(connection: Connection, rows: Mapping[Entity, int], entities: Iterable[Entity] | None = None) -> None:
    """Which node a GPU or a port is in, and which leaf a node is below: what was said last counts."""
    moves = []
    for entity in rows if entities is None else entities:
        above = rows.get(entity.part_of) if entity.part_of is not None else None
        if above is not None:
            moves.append({"of": rows[entity], "above": above})
    if moves:
        moved = or_(ENTITIES.c.part_of.is_(None), ENTITIES.c.part_of != bindparam("above"))
        change = update(ENTITIES).where(ENTITIES.c.id == bindparam("of"), moved).values(part_of=bindparam("above"))
        connection.execute(change, sorted(moves, key=lambda move: move["of"]))


def add_roster(
    database: Database, project_id: int, value: object, now: float | None = None, budgets: Budgets | None = DEFAULT
) -> int:
    """Take one or several nodes' roster of a job; returns the job's id. Sent twice it says the same."""
    now = time.time() if now is None else now
    if not isinstance(value, dict):
        raise InputError("a roster is a JSON object")
    name = JobName.of(value)
    started_at = plain.moment(value, "started_at", now)
    on = _exposed(value)
    if len(on) > MOST_ENTITIES:
        raise TooLarge(f"more than {MOST_ENTITIES:,} machines and devices in one roster", hint="send it node by node")
    details = {key: plain.text(value, key, 300) for key in (IMAGE, COMMIT)}
    with database.write() as connection:
        job_id = job_row(connection, project_id, name, started_at)
        before = connection.execute(select(JOBS).where(JOBS.c.id == job_id)).one()
        known = json.loads(before.details)
        connection.execute(
            update(JOBS)
            .where(JOBS.c.id == job_id)
            .values(
                started_at=min(started_at, before.started_at),
                world_size=plain.whole(value, "world_size") or before.world_size,
                details=json.dumps({**known, **{key: said for key, said in details.items() if said}}),
            )
        )
    expose_in_batches(database, project_id, job_id, on, started_at, budgets, cluster=name.cluster)
    return job_id


def end_job(database: Database, project_id: int, value: object, now: float | None = None) -> int:
    """The job's command ended on a node. The first bad status counts: the others follow from it."""
    now = time.time() if now is None else now
    if not isinstance(value, dict):
        raise InputError("the end of a job is a JSON object")
    name = JobName.of(value)
    ended_at = plain.moment(value, "ended_at", now)
    status = plain.whole(value, "exit_status", 1 << 16)
    with database.write() as connection:
        job_id = job_row(connection, project_id, name, ended_at)
        before = connection.execute(select(JOBS).where(JOBS.c.id == job_id)).one()
        connection.execute(
            update(JOBS)
            .where(JOBS.c.id == job_id)
            .values(ended_at=max(ended_at, before.ended_at or 0), exit_status=before.exit_status or status)
        )
    return job_id


def _exposed(value: Mapping[str, Any]) -> dict[Entity, tuple[int, ...]]:
    found: dict[Entity, tuple[int, ...]] = {}
    for node in plain.items(value, "nodes", MOST_NODES):
        if isinstance(node, dict) and (name := plain.text(node, "node")):
            found.update(of_node(name, node))
    for kind in (IMAGE, COMMIT):
        if said := plain.text(value, kind, 300):
            found[Entity(kind, said)] = ()
    versions = list(plain.table(value, "versions").items())[:MOST_VERSIONS]
    for name, version in versions:
        if isinstance(name, str) and isinstance(version, str) and version:
            found[Entity(VERSION, f"{plain.clean(name, 40)} {plain.clean(version, 100)}")] = ()
    return found
