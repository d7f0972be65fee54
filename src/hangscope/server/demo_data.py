"""Jobs and incidents that never were, for a demo: kept as if agents had pushed and a child had diagnosed them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, insert, update

from hangscope.server.digest import issue_groups
from hangscope.server.digest.fingerprint import completed, fingerprint, program_of
from hangscope.server.intake.entities import COMMIT, IMAGE, LEAF, NODE, Entity
from hangscope.server.intake.job_rosters import JobName, entity_rows, expose, job_row
from hangscope.server.store import access_tokens
from hangscope.server.store.database import Database
from hangscope.server.store.tables import ACCUSED, INCIDENTS, JOBS


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One job; `nodes` with their leaf switches, `accused` (kind, name) of its verdict where it hung."""

    name: str
    started_at: float
    ended_at: float
    nodes: Mapping[str, str]
    commit: str
    image: str
    hung_at: float | None
    accused: Sequence[tuple[str, str]]
    function: str


def fill(database: Database, project: str, jobs: Sequence[DemoJob]) -> None:
    """Put all of it into one project, in one transaction."""
    with database.write() as connection:
        project_id = access_tokens.project(connection, project)
        for job in jobs:
            _add(connection, project_id, job)


def _add(connection: Connection, project_id: int, job: DemoJob) -> None:
    job_id = job_row(connection, project_id, JobName("demo", job.name, "0"), job.started_at)
    nodes = {Entity(NODE, node, Entity(LEAF, leaf)): (number,) for number, (node, leaf) in enumerate(job.nodes.items())}
    leaves = {Entity(LEAF, leaf): () for leaf in job.nodes.values()}
    code = {Entity(COMMIT, job.commit): (), Entity(IMAGE, job.image): ()}
    expose(connection, project_id, job_id, {**leaves, **nodes, **code}, job.started_at, cluster="demo")
    connection.execute(
        update(JOBS)
        .where(JOBS.c.id == job_id)
        .values(
            ended_at=job.ended_at,
            exit_status=0 if job.hung_at is None else 1,
            world_size=len(job.nodes),
            details=json.dumps({"commit": job.commit, "image": job.image}),
        )
    )
    if job.hung_at is not None:
        _add_incident(connection, project_id, job_id, job, job.hung_at)


def _add_incident(connection: Connection, project_id: int, job_id: int, job: DemoJob, at: float) -> None:
    module, _, function = job.function.partition(".")
    parts = fingerprint("absent", "all_reduce", "mesh_dp", function, module).explanation
    found = completed(parts, program_of(job.name))
    fingerprint_id, _ = issue_groups.assign(connection, project_id, found, at, job.commit)
    named = [name for _, name in job.accused]
    headline = f"{named[0] if named else 'a rank'} is in {job.function}, and never launched all_reduce (simulated)"
    incident = connection.execute(
        insert(INCIDENTS)
        .values(
            project_id=project_id,
            job_id=job_id,
            fingerprint_id=fingerprint_id,
            identity=json.dumps(["demo", job.name, "0", "hang-1"]),
            state="digested",
            received_at=at,
            happened_at=at,
            digested_at=at,
            outcome="hang",
            kind="absent",
            confidence="high" if named else "low",
            headline=headline,
            summary=headline,
            words=" ".join(("demo", job.name, headline, found.value, *found.explanation.values(), *named)).lower(),
        )
        .returning(INCIDENTS.c.id)
    ).scalar_one()
    entities = [Entity(kind, name) for kind, name in job.accused]
    for entity, row in entity_rows(connection, project_id, entities, at, cluster="demo").items():
        role = "culprit" if entity.kind == NODE else "link"
        connection.execute(insert(ACCUSED).values(incident_id=incident, entity_id=row, role=role))
