"""Clears away what a project keeps no longer: incidents, jobs, and blobs that nothing refers to."""

from __future__ import annotations

import json
import time

from sqlalchemy import Connection, delete, select

from hangscope.server.store.blob_store import BlobStore
from hangscope.server.store.database import Database
from hangscope.server.store.tables import AUDIT, BLOBS, INCIDENTS, JOBS, PARTS, PROJECTS

ORPHAN_S = 7 * 86400.0
"""A chunk that no incident ever referred to is of a push that was given up."""
AUDIT_S = 365 * 86400.0


def clear_expired(database: Database, blobs: BlobStore, now: float | None = None) -> int:
    """Clear away in every project; returns how many incidents went. Rows go before files: a file that is left behind
    by a crash is found again as one that nobody refers to."""
    now = time.time() if now is None else now
    with database.read() as connection:
        projects = connection.execute(select(PROJECTS.c.id, PROJECTS.c.retention_days)).all()
    gone = 0
    for project in projects:
        if project.retention_days is not None:
            gone += _clear_project(database, project.id, now - project.retention_days * 86400)
        _clear_blobs(database, blobs, project.id, now - ORPHAN_S)
    with database.write() as connection:
        connection.execute(delete(AUDIT).where(AUDIT.c.at < now - AUDIT_S))
    return gone


def _clear_project(database: Database, project_id: int, before: float) -> int:
    with database.write() as connection:
        old = (INCIDENTS.c.project_id == project_id, INCIDENTS.c.happened_at < before)
        gone = connection.execute(delete(INCIDENTS).where(*old)).rowcount
        kept = select(INCIDENTS.c.job_id).where(INCIDENTS.c.job_id.is_not(None))
        old_jobs = (JOBS.c.project_id == project_id, JOBS.c.started_at < before, JOBS.c.id.not_in(kept))
        connection.execute(delete(JOBS).where(*old_jobs))
    return gone


def _clear_blobs(database: Database, blobs: BlobStore, project_id: int, before: float) -> None:
    with database.write() as connection:
        used = _used(connection, project_id)
        rows = connection.execute(
            select(BLOBS.c.sha256).where(BLOBS.c.project_id == project_id, BLOBS.c.received_at < before)
        ).scalars()
        unused = [sha256 for sha256 in rows if sha256 not in used]
        for start in range(0, len(unused), 500):
            few = BLOBS.c.sha256.in_(unused[start : start + 500])
            connection.execute(delete(BLOBS).where(BLOBS.c.project_id == project_id, few))
    for sha256 in unused:
        blobs.delete(project_id, sha256)


def _used(connection: Connection, project_id: int) -> set[str]:
    parts = connection.execute(select(PARTS.c.chunks).where(PARTS.c.project_id == project_id)).scalars()
    used = {sha256 for chunks in parts for sha256 in json.loads(chunks)}
    mine = INCIDENTS.c.project_id == project_id
    for row in connection.execute(select(INCIDENTS.c.verdict_sha256, INCIDENTS.c.page_sha256).where(mine)):
        used.update(sha256 for sha256 in row if sha256 is not None)
    return used
