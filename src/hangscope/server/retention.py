"""Clears away what a project keeps no longer: incidents, jobs, and what only they were kept for.

How long is counted from when a thing arrived: what a node's clock said of it decides nothing. Rows go in short
transactions. A blob's file goes in the transaction that takes its row, in which nobody else notes one: see
`budgets.use`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

from sqlalchemy import Connection, delete, exists, func, or_, select, update

from hangscope.server.intake import budgets as project_budgets
from hangscope.server.store import audit_log, outbox, work_queue
from hangscope.server.store.blob_store import BlobStore
from hangscope.server.store.database import Database
from hangscope.server.store.tables import (
    ACCUSED,
    BLOBS,
    DELIVERIES,
    ENTITIES,
    EXPOSURES,
    FINGERPRINTS,
    INCIDENTS,
    ISSUES,
    JOBS,
    PARTS,
    PROJECTS,
    SESSIONS,
    WORK,
)

ORPHAN_S = 7 * 86400.0
"""A chunk that no incident ever referred to is of a push that was given up."""
FEW = 50
"""Of what is cleared away in one transaction."""


def clear_expired(database: Database, blobs: BlobStore, now: float | None = None) -> int:
    """Clear away in every project; returns how many incidents went."""
    now = time.time() if now is None else now
    with database.read() as connection:
        projects = connection.execute(select(PROJECTS.c.id, PROJECTS.c.retention_days)).all()
    gone = 0
    for project in projects:
        if project.retention_days is not None:
            gone += _clear_project(database, blobs, project.id, now - project.retention_days * 86400)
        _clear_orphans(database, blobs, project.id, now - ORPHAN_S)
        with database.write() as connection:
            project_budgets.recount(connection, project.id)
    with database.write() as connection:
        audit_log.forget_old(connection, now)
        outbox.forget_old(connection, now)
        connection.execute(delete(SESSIONS).where(SESSIONS.c.expires_at < now))
    return gone


def delete_incident(database: Database, blobs: BlobStore, project_id: int, incident_id: int) -> bool:
    """Take one incident away now, with its blobs and what was only kept for it. Whether there was one."""
    with database.write() as connection:
        mine = (INCIDENTS.c.project_id == project_id, INCIDENTS.c.id == incident_id)
        if connection.execute(select(INCIDENTS.c.id).where(*mine)).first() is None:
            return False
        _delete(connection, blobs, project_id, [incident_id])
        _clear_issues(connection, project_id)
    return True


def digest_again(connection: Connection, project_id: int, incident_id: int) -> bool:
    """Have an incident diagnosed once more. Whether there is one."""
    mine = (INCIDENTS.c.project_id == project_id, INCIDENTS.c.id == incident_id)
    if connection.execute(update(INCIDENTS).where(*mine).values(state="accepted", problem=None)).rowcount == 0:
        return False
    work_queue.add(connection, work_queue.DIGEST, incident_id, project_id)
    return True


def _clear_project(database: Database, blobs: BlobStore, project_id: int, before: float) -> int:
    gone = 0
    old = (INCIDENTS.c.project_id == project_id, INCIDENTS.c.received_at < before)
    while True:
        with database.write() as connection:
            few = list(connection.execute(select(INCIDENTS.c.id).where(*old).limit(FEW)).scalars())
            _delete(connection, blobs, project_id, few)
        gone += len(few)
        if len(few) < FEW:
            break
    with database.write() as connection:
        arrived = func.coalesce(JOBS.c.received_at, JOBS.c.started_at)
        kept = select(INCIDENTS.c.job_id).where(INCIDENTS.c.job_id.is_not(None))
        old_jobs = (JOBS.c.project_id == project_id, arrived < before, JOBS.c.id.not_in(kept))
        connection.execute(delete(JOBS).where(*old_jobs))
        _clear_issues(connection, project_id)
        _clear_entities(connection, project_id, before)
    return gone


def _delete(connection: Connection, blobs: BlobStore, project_id: int, incident_ids: list[int]) -> None:
    """Rows and blobs of these incidents. What another incident refers to as well stays."""
    if not incident_ids:
        return
    project_budgets.use(connection, project_id, None)
    theirs = PARTS.c.incident_id.in_(incident_ids)
    parts = connection.execute(select(PARTS.c.chunks, PARTS.c.size).where(theirs)).all()
    sha256s = {sha256 for part in parts for sha256 in json.loads(part.chunks)}
    made = select(INCIDENTS.c.verdict_sha256, INCIDENTS.c.page_sha256).where(INCIDENTS.c.id.in_(incident_ids))
    sha256s |= {sha256 for row in connection.execute(made) for sha256 in row if sha256 is not None}
    deliveries = select(DELIVERIES.c.id).where(DELIVERIES.c.incident_id.in_(incident_ids))
    waits = or_(
        (WORK.c.kind == "digest") & WORK.c.subject.in_(incident_ids),
        (WORK.c.kind == "deliver") & WORK.c.subject.in_(deliveries),
    )
    connection.execute(delete(WORK).where(waits))
    connection.execute(delete(INCIDENTS).where(INCIDENTS.c.id.in_(incident_ids)))
    delete_blobs(connection, blobs, project_id, sha256s)
    claimed = sum(part.size for part in parts)
    project_budgets.use(connection, project_id, None, claimed_bytes=-claimed, kept_rows=-len(parts) - len(incident_ids))


def delete_blobs(connection: Connection, blobs: BlobStore, project_id: int, sha256s: Iterable[str]) -> None:
    """Those of these blobs that nothing refers to any more."""
    project_budgets.use(connection, project_id, None)
    unused = sorted(set(sha256s) - _used(connection, project_id))
    for start in range(0, len(unused), 500):
        few = unused[start : start + 500]
        same = (BLOBS.c.project_id == project_id, BLOBS.c.sha256.in_(few))
        gone = connection.execute(delete(BLOBS).where(*same).returning(BLOBS.c.size)).scalars().all()
        project_budgets.use(connection, project_id, None, stored_bytes=-sum(gone), kept_rows=-len(gone))
        for sha256 in few:
            blobs.delete(project_id, sha256)


def _clear_orphans(database: Database, blobs: BlobStore, project_id: int, before: float) -> None:
    with database.read() as connection:
        used = _used(connection, project_id)
        old = (BLOBS.c.project_id == project_id, BLOBS.c.received_at < before)
        unused = [row for row in connection.execute(select(BLOBS.c.sha256).where(*old)).scalars() if row not in used]
    for start in range(0, len(unused), FEW):
        with database.write() as connection:
            delete_blobs(connection, blobs, project_id, unused[start : start + FEW])


def _clear_issues(connection: Connection, project_id: int) -> None:
    """Fingerprints that no incident has, and issues that no fingerprint belongs to: nothing of them is left to see."""
    seen = exists().where(INCIDENTS.c.fingerprint_id == FINGERPRINTS.c.id)
    connection.execute(delete(FINGERPRINTS).where(FINGERPRINTS.c.project_id == project_id, ~seen))
    merged = ISSUES.alias("merged")
    while True:  # an issue into which others were merged goes after them
        has_fingerprint = exists().where(FINGERPRINTS.c.issue_id == ISSUES.c.id)
        has_merged = exists().where(merged.c.merged_into == ISSUES.c.id)
        empty = (ISSUES.c.project_id == project_id, ~has_fingerprint, ~has_merged)
        ids = list(connection.execute(select(ISSUES.c.id).where(*empty).limit(500)).scalars())
        if not ids:
            return
        connection.execute(delete(ISSUES).where(ISSUES.c.id.in_(ids)))


def _clear_entities(connection: Connection, project_id: int, before: float) -> None:
    """Machines, images and commits of which no job and no verdict is left."""
    ran = exists().where(EXPOSURES.c.entity_id == ENTITIES.c.id)
    named = exists().where(ACCUSED.c.entity_id == ENTITIES.c.id)
    inside = ENTITIES.alias("inside")
    holds = exists().where(inside.c.part_of == ENTITIES.c.id)
    gone = (ENTITIES.c.project_id == project_id, ENTITIES.c.last_seen_at < before, ~ran, ~named)
    connection.execute(update(ENTITIES).where(*gone).values(part_of=None))
    connection.execute(delete(ENTITIES).where(*gone, ~holds))


def _used(connection: Connection, project_id: int) -> set[str]:
    parts = connection.execute(select(PARTS.c.chunks).where(PARTS.c.project_id == project_id)).scalars()
    used = {sha256 for chunks in parts for sha256 in json.loads(chunks)}
    mine = INCIDENTS.c.project_id == project_id
    for row in connection.execute(select(INCIDENTS.c.verdict_sha256, INCIDENTS.c.page_sha256).where(mine)):
        used.update(sha256 for sha256 in row if sha256 is not None)
    return used
