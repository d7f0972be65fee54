"""What the pages and the API show, each as one question to the database, of one project and of bounded length."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, and_, func, or_, select

from hangscope.server.digest import issue_groups
from hangscope.server.store.tables import (
    ACCUSED,
    ENTITIES,
    EXPOSURES,
    FINGERPRINTS,
    INCIDENTS,
    ISSUE_EVENTS,
    ISSUES,
    JOBS,
)

PAGE = 50
MOST = 200
MOST_TERMS = 8
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Filters:
    """Which incidents. Empty: all of them."""

    text: str = ""
    kind: str = ""
    outcome: str = ""
    state: str = ""
    node: str = ""
    issue: int | None = None
    before: float | None = None
    before_id: int | None = None


def _row(row: Any) -> Row:
    return dict(row._mapping)


_SHOWN = (
    *(INCIDENTS.c[name] for name in ("id", "state", "outcome", "kind", "confidence", "headline", "problem")),
    *(INCIDENTS.c[name] for name in ("happened_at", "received_at", "fingerprint_id", "summary")),
    JOBS.c.cluster,
    JOBS.c.name.label("job"),
    JOBS.c.attempt,
    INCIDENTS.c.job_id,
    FINGERPRINTS.c.value.label("fingerprint"),
    FINGERPRINTS.c.issue_id,
)


def _incidents(project_id: int) -> Select[Any]:
    return (
        select(*_SHOWN)
        .outerjoin(JOBS, JOBS.c.id == INCIDENTS.c.job_id)
        .outerjoin(FINGERPRINTS, FINGERPRINTS.c.id == INCIDENTS.c.fingerprint_id)
        .where(INCIDENTS.c.project_id == project_id)
    )


def incidents(connection: Connection, project_id: int, filters: Filters, most: int = PAGE) -> list[Row]:
    """The newest incidents that fit, with their job and fingerprint."""
    asked = _incidents(project_id)
    for term in filters.text.lower().split()[:MOST_TERMS]:
        asked = asked.where(INCIDENTS.c.words.contains(term[:100], autoescape=True))
    for name in ("kind", "outcome", "state"):
        if getattr(filters, name):
            asked = asked.where(INCIDENTS.c[name] == getattr(filters, name))
    if filters.node:
        named = select(ACCUSED.c.incident_id).join(ENTITIES, ENTITIES.c.id == ACCUSED.c.entity_id)
        same = and_(ENTITIES.c.project_id == project_id, ENTITIES.c.kind == "node", ENTITIES.c.name == filters.node)
        asked = asked.where(INCIDENTS.c.id.in_(named.where(same)))
    if filters.issue is not None:
        ids = [row.id for row in issue_groups.fingerprints_of(connection, filters.issue)]
        asked = asked.where(INCIDENTS.c.fingerprint_id.in_(ids))
    if filters.before is not None:
        later = INCIDENTS.c.happened_at < filters.before
        same_time = and_(INCIDENTS.c.happened_at == filters.before, INCIDENTS.c.id < (filters.before_id or 0))
        asked = asked.where(or_(later, same_time))
    asked = asked.order_by(INCIDENTS.c.happened_at.desc(), INCIDENTS.c.id.desc()).limit(min(most, MOST))
    return [_row(row) for row in connection.execute(asked)]


def incident(connection: Connection, project_id: int, incident_id: int) -> Row | None:
    """One incident with what its fingerprint is made of and the machines that its verdict names."""
    found = connection.execute(
        _incidents(project_id)
        .add_columns(INCIDENTS.c.verdict_sha256, INCIDENTS.c.page_sha256, FINGERPRINTS.c.explanation)
        .where(INCIDENTS.c.id == incident_id)
    ).first()
    if found is None:
        return None
    row = _row(found)
    row["explanation"] = json.loads(row["explanation"] or "{}")
    row["issue_id"] = issue_groups.final(connection, row["issue_id"]) if row["issue_id"] is not None else None
    accused = connection.execute(
        select(ENTITIES.c.kind, ENTITIES.c.name, ACCUSED.c.role)
        .join(ACCUSED, ACCUSED.c.entity_id == ENTITIES.c.id)
        .where(ACCUSED.c.incident_id == incident_id)
        .order_by(ENTITIES.c.kind, ENTITIES.c.name)
    )
    row["accused"] = [_row(each) for each in accused]
    return row


def issues(connection: Connection, project_id: int, state: str = "", most: int = PAGE) -> list[Row]:
    """Issues that were not merged into another, the one seen last first."""
    asked = select(ISSUES).where(ISSUES.c.project_id == project_id, ISSUES.c.merged_into.is_(None))
    if state:
        asked = asked.where(ISSUES.c.state == state)
    found = connection.execute(asked.order_by(ISSUES.c.last_seen_at.desc(), ISSUES.c.id.desc()).limit(min(most, MOST)))
    return [_with_count(connection, _row(row)) for row in found]


def issue(connection: Connection, project_id: int, issue_id: int) -> Row | None:
    """One issue, with its fingerprints and what happened to it; of one that was merged, the one that it is now."""
    asked = select(ISSUES).where(ISSUES.c.project_id == project_id)
    found = connection.execute(asked.where(ISSUES.c.id == issue_id)).first()
    if found is None:
        return None
    row = _with_count(
        connection, _row(connection.execute(asked.where(ISSUES.c.id == issue_groups.final(connection, issue_id))).one())
    )
    row["fingerprints"] = [
        {"value": each.value, "explanation": json.loads(each.explanation)}
        for each in issue_groups.fingerprints_of(connection, row["id"])
    ]
    events = connection.execute(
        select(ISSUE_EVENTS).where(ISSUE_EVENTS.c.issue_id == row["id"]).order_by(ISSUE_EVENTS.c.id.desc()).limit(MOST)
    )
    row["events"] = [_row(each) for each in events]
    return row


def _with_count(connection: Connection, row: Row) -> Row:
    ids = [each.id for each in issue_groups.fingerprints_of(connection, row["id"])]
    count = select(func.count()).select_from(INCIDENTS).where(INCIDENTS.c.fingerprint_id.in_(ids))
    row.pop("resolved_commits", None)
    return {**row, "incidents": connection.execute(count).scalar_one()}


def jobs(connection: Connection, project_id: int, before: float | None = None, most: int = PAGE) -> list[Row]:
    asked = select(JOBS).where(JOBS.c.project_id == project_id)
    if before is not None:
        asked = asked.where(JOBS.c.started_at < before)
    found = [_row(row) for row in connection.execute(asked.order_by(JOBS.c.started_at.desc()).limit(min(most, MOST)))]
    ids = [row["id"] for row in found]
    counts: Mapping[int, int] = dict(
        tuple(row)
        for row in connection.execute(
            select(INCIDENTS.c.job_id, func.count()).where(INCIDENTS.c.job_id.in_(ids)).group_by(INCIDENTS.c.job_id)
        )
    )
    return [{**row, **json.loads(row.pop("details")), "incidents": counts.get(row["id"], 0)} for row in found]


def job(connection: Connection, project_id: int, job_id: int) -> Row | None:
    """One attempt of a job, with what it ran on and its incidents."""
    found = connection.execute(select(JOBS).where(JOBS.c.project_id == project_id, JOBS.c.id == job_id)).first()
    if found is None:
        return None
    row = _row(found)
    ran_on = connection.execute(
        select(ENTITIES.c.kind, ENTITIES.c.name, EXPOSURES.c.ranks)
        .join(EXPOSURES, EXPOSURES.c.entity_id == ENTITIES.c.id)
        .where(EXPOSURES.c.job_id == job_id)
        .order_by(ENTITIES.c.kind, ENTITIES.c.name)
        .limit(2000)
    )
    of_job = _incidents(project_id).where(INCIDENTS.c.job_id == job_id).limit(MOST)
    return {
        **row,
        **json.loads(row.pop("details")),
        "ran_on": [_row(each) for each in ran_on],
        "incidents": [_row(each) for each in connection.execute(of_job)],
    }


def nodes(connection: Connection, project_id: int, text: str = "", most: int = MOST) -> list[Row]:
    """Nodes, the one seen last first, with how many jobs they were in."""
    ran = select(func.count()).where(EXPOSURES.c.entity_id == ENTITIES.c.id).scalar_subquery()
    named = select(func.count()).where(ACCUSED.c.entity_id == ENTITIES.c.id).scalar_subquery()
    asked = select(ENTITIES.c.name, ENTITIES.c.last_seen_at, ran.label("jobs"), named.label("accused")).where(
        ENTITIES.c.project_id == project_id, ENTITIES.c.kind == "node"
    )
    if text:
        asked = asked.where(ENTITIES.c.name.contains(text[:100], autoescape=True))
    return [_row(row) for row in connection.execute(asked.order_by(ENTITIES.c.last_seen_at.desc()).limit(most))]


def node(connection: Connection, project_id: int, name: str) -> Row | None:
    """One node: the jobs that ran on it, and the incidents whose verdict names it."""
    found = connection.execute(
        select(ENTITIES).where(ENTITIES.c.project_id == project_id, ENTITIES.c.kind == "node", ENTITIES.c.name == name)
    ).first()
    if found is None:
        return None
    ran = connection.execute(
        select(JOBS.c.id, JOBS.c.cluster, JOBS.c.name, JOBS.c.attempt, JOBS.c.started_at, JOBS.c.ended_at)
        .join(EXPOSURES, EXPOSURES.c.job_id == JOBS.c.id)
        .where(EXPOSURES.c.entity_id == found.id)
        .order_by(JOBS.c.started_at.desc())
        .limit(MOST)
    )
    return {
        "name": found.name,
        "first_seen_at": found.first_seen_at,
        "last_seen_at": found.last_seen_at,
        "jobs": [_row(row) for row in ran],
        "incidents": incidents(connection, project_id, Filters(node=name), MOST),
    }


def counts(connection: Connection, project_id: int) -> Sequence[tuple[str, str, int]]:
    """How many incidents there are by state and kind."""
    found = connection.execute(
        select(INCIDENTS.c.state, func.coalesce(INCIDENTS.c.kind, "unknown"), func.count())
        .where(INCIDENTS.c.project_id == project_id)
        .group_by(INCIDENTS.c.state, func.coalesce(INCIDENTS.c.kind, "unknown"))
    )
    return [(row[0], row[1], row[2]) for row in found]
