"""What the pages and the API show, each as one question to the database, of one project and of bounded length."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Column, ColumnElement, Connection, Select, and_, case, func, literal, or_, select

from hangscope.server.digest import issue_groups
from hangscope.server.history import marks
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
MOST_RAN_ON = 2000
Row = dict[str, Any]


class Before(NamedTuple):
    """Where a page ended: the time and number of its last row."""

    at: float
    id: int

    @classmethod
    def of(cls, at: float | None, number: int | None) -> Before | None:
        return None if at is None else cls(at, number or 0)


@dataclass(frozen=True, slots=True)
class Filters:
    """Which incidents. Empty: all of them."""

    text: str = ""
    kind: str = ""
    outcome: str = ""
    state: str = ""
    node: str = ""
    issue: int | None = None
    before: Before | None = None
    cluster: str = ""
    since: float | None = None
    """Received then or later."""
    happened_after: float | None = None
    happened_before: float | None = None
    named: int | None = None
    """The number of a machine that the verdict names."""


def _page(asked: Select[Any], at: Column[Any], number: Column[Any], before: Before | None, most: int) -> Select[Any]:
    """The newest of them, or those that follow the row that a page ended with."""
    if before is not None:
        # The first condition says nothing new, but an index can begin with it.
        asked = asked.where(at <= before.at, or_(at < before.at, number < before.id))
    return asked.order_by(at.desc(), number.desc()).limit(min(most, MOST))


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
        asked = asked.where(_has(connection, INCIDENTS.c.words, term[:100]))
    if filters.cluster:
        asked = asked.where(JOBS.c.cluster == filters.cluster)
    for column, least, most_at in (
        (INCIDENTS.c.received_at, filters.since, None),
        (INCIDENTS.c.happened_at, filters.happened_after, filters.happened_before),
    ):
        asked = asked if least is None else asked.where(column >= least)
        asked = asked if most_at is None else asked.where(column < most_at)
    for name in ("kind", "outcome", "state"):
        if getattr(filters, name):
            asked = asked.where(INCIDENTS.c[name] == getattr(filters, name))
    if filters.node:
        named = select(ACCUSED.c.incident_id).join(ENTITIES, ENTITIES.c.id == ACCUSED.c.entity_id)
        same = and_(ENTITIES.c.project_id == project_id, ENTITIES.c.kind == "node", ENTITIES.c.name == filters.node)
        asked = asked.where(INCIDENTS.c.id.in_(named.where(same)))
    if filters.named is not None:
        asked = asked.where(
            INCIDENTS.c.id.in_(select(ACCUSED.c.incident_id).where(ACCUSED.c.entity_id == filters.named))
        )
    if filters.issue is not None:
        ids = [row.id for row in issue_groups.fingerprints_of(connection, filters.issue)]
        asked = asked.where(INCIDENTS.c.fingerprint_id.in_(ids))
    asked = _page(asked, INCIDENTS.c.happened_at, INCIDENTS.c.id, filters.before, most)
    return [_row(row) for row in connection.execute(asked)]


def _has(connection: Connection, column: Column[Any], term: str) -> ColumnElement[bool]:
    """Whether a text holds a term. Numbers are whole: ``worker-7`` is not in ``worker-70``, ``481`` not in ``4812``."""
    ends = (term[0].isdigit() and term[0].isascii(), term[-1].isdigit() and term[-1].isascii())
    holds = column.contains(term, autoescape=True)
    if not any(ends):
        return holds
    if connection.dialect.name == "sqlite":
        pattern = "".join(f"[{character}]" if character in "*?[" else character for character in term)
        whole = f"*{'[^0-9]' if ends[0] else ''}{pattern}{'[^0-9]' if ends[1] else ''}*"
        return and_(holds, (literal(" ") + column + literal(" ")).op("GLOB")(whole))
    whole = f"{'(^|[^0-9])' if ends[0] else ''}{_escaped(term)}{'([^0-9]|$)' if ends[1] else ''}"
    return and_(holds, column.op("~")(whole))


def _escaped(term: str) -> str:
    """For a regular expression of Postgres."""
    return "".join(f"\\{each}" if not each.isalnum() and each.isascii() and each not in "_-" else each for each in term)


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
        select(ENTITIES.c.kind, ENTITIES.c.name, ENTITIES.c.cluster, ACCUSED.c.role)
        .join(ACCUSED, ACCUSED.c.entity_id == ENTITIES.c.id)
        .where(ACCUSED.c.incident_id == incident_id)
        .order_by(ENTITIES.c.kind, ENTITIES.c.name)
    )
    row["accused"] = [_row(each) for each in accused]
    return row


def issues(
    connection: Connection, project_id: int, state: str = "", before: Before | None = None, most: int = PAGE
) -> list[Row]:
    """Issues that were not merged into another, the one seen last first."""
    asked = select(ISSUES).where(ISSUES.c.project_id == project_id, ISSUES.c.merged_into.is_(None))
    if state:
        asked = asked.where(ISSUES.c.state == state)
    found = connection.execute(_page(asked, ISSUES.c.last_seen_at, ISSUES.c.id, before, most)).all()
    return _with_counts(connection, project_id, [_row(row) for row in found])


def issue(connection: Connection, project_id: int, issue_id: int) -> Row | None:
    """One issue, with its fingerprints and what happened to it; of one that was merged, the one that it is now."""
    asked = select(ISSUES).where(ISSUES.c.project_id == project_id)
    found = connection.execute(asked.where(ISSUES.c.id == issue_id)).first()
    if found is None:
        return None
    final = asked.where(ISSUES.c.id == issue_groups.final(connection, issue_id))
    (row,) = _with_counts(connection, project_id, [_row(connection.execute(final).one())])
    row["fingerprints"] = [
        {"value": each.value, "explanation": json.loads(each.explanation)}
        for each in issue_groups.fingerprints_of(connection, row["id"])
    ]
    events = connection.execute(
        select(ISSUE_EVENTS).where(ISSUE_EVENTS.c.issue_id == row["id"]).order_by(ISSUE_EVENTS.c.id.desc()).limit(MOST)
    )
    row["events"] = [_row(each) for each in events]
    return row


def _with_counts(connection: Connection, project_id: int, rows: list[Row]) -> list[Row]:
    """The issues with how many incidents they have, those of issues that were merged into them too."""
    merged = select(ISSUES.c.id, ISSUES.c.merged_into).where(
        ISSUES.c.project_id == project_id, ISSUES.c.merged_into.is_not(None)
    )
    into = {row.id: row.merged_into for row in connection.execute(merged)}
    shown = {row["id"] for row in rows}
    above = {number: number for number in shown} | {number: _top(number, into) for number in into}
    family = [number for number, top in above.items() if top in shown]
    counted = connection.execute(
        select(FINGERPRINTS.c.issue_id, func.count())
        .join(INCIDENTS, INCIDENTS.c.fingerprint_id == FINGERPRINTS.c.id)
        .where(FINGERPRINTS.c.issue_id.in_(family))
        .group_by(FINGERPRINTS.c.issue_id)
    )
    counts: Counter[int] = Counter()
    for number, count in counted:
        counts[above[number]] += count
    hidden = ("resolved_commits",)
    return [
        {**{name: each for name, each in row.items() if name not in hidden}, "incidents": counts[row["id"]]}
        for row in rows
    ]


def _top(number: int, into: Mapping[int, int]) -> int:
    for _ in range(issue_groups.MOST_MERGES):
        if number not in into:
            break
        number = into[number]
    return number


def jobs(connection: Connection, project_id: int, before: Before | None = None, most: int = PAGE) -> list[Row]:
    asked = select(JOBS).where(JOBS.c.project_id == project_id)
    found = [_row(row) for row in connection.execute(_page(asked, JOBS.c.started_at, JOBS.c.id, before, most))]
    ids = [row["id"] for row in found]
    counts = _counts_of(connection, INCIDENTS.c.job_id, ids)
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
        .order_by(case((ENTITIES.c.kind == "node", 0), else_=1), ENTITIES.c.kind, ENTITIES.c.name)
        .limit(MOST_RAN_ON)
    )
    counted = connection.execute(
        select(ENTITIES.c.kind, func.count())
        .join(EXPOSURES, EXPOSURES.c.entity_id == ENTITIES.c.id)
        .where(EXPOSURES.c.job_id == job_id)
        .group_by(ENTITIES.c.kind)
    )
    of_job = _incidents(project_id).where(INCIDENTS.c.job_id == job_id).limit(MOST)
    return {
        **row,
        **json.loads(row.pop("details")),
        "ran_on": [_row(each) for each in ran_on],
        "ran_on_total": {row[0]: row[1] for row in counted},
        "incidents": [_row(each) for each in connection.execute(of_job)],
    }


def nodes(
    connection: Connection,
    project_id: int,
    text: str = "",
    before: Before | None = None,
    most: int = PAGE,
    cluster: str = "",
) -> list[Row]:
    """Nodes, the one seen last first, with how many jobs they were in."""
    mine = (ENTITIES.c.project_id == project_id, ENTITIES.c.kind == "node")
    asked = select(ENTITIES.c.id, ENTITIES.c.name, ENTITIES.c.cluster, ENTITIES.c.last_seen_at).where(*mine)
    if cluster:
        asked = asked.where(ENTITIES.c.cluster == cluster)
    if text:
        asked = asked.where(_has(connection, ENTITIES.c.name, text[:100]))
    found = [
        _row(row) for row in connection.execute(_page(asked, ENTITIES.c.last_seen_at, ENTITIES.c.id, before, most))
    ]
    ids = [row["id"] for row in found]
    ran = _counts_of(connection, EXPOSURES.c.entity_id, ids)
    named = _counts_of(connection, ACCUSED.c.entity_id, ids)
    return [{**row, "jobs": ran.get(row["id"], 0), "accused": named.get(row["id"], 0)} for row in found]


def _counts_of(connection: Connection, column: Column[Any], ids: Sequence[int]) -> Mapping[int, int]:
    counted = connection.execute(select(column, func.count()).where(column.in_(ids)).group_by(column))
    return {row[0]: row[1] for row in counted}


def node(connection: Connection, project_id: int, name: str, cluster: str | None = None) -> Row:
    """One node: the jobs that ran on it, the incidents whose verdict names it, and what was noted of it. Lists are of
    bounded length, and the totals beside them are not."""
    found = marks.find_node(connection, project_id, name, cluster)
    of_node = (EXPOSURES.c.entity_id == found.id, EXPOSURES.c.job_id == JOBS.c.id)
    columns = (JOBS.c.id, JOBS.c.cluster, JOBS.c.name, JOBS.c.attempt, JOBS.c.started_at, JOBS.c.ended_at)
    ran = connection.execute(select(*columns).where(*of_node).order_by(JOBS.c.started_at.desc()).limit(MOST))
    return {
        "id": found.id,
        "name": found.name,
        "cluster": found.cluster,
        "first_seen_at": found.first_seen_at,
        "last_seen_at": found.last_seen_at,
        "jobs_total": _counts_of(connection, EXPOSURES.c.entity_id, [found.id]).get(found.id, 0),
        "incidents_total": _counts_of(connection, ACCUSED.c.entity_id, [found.id]).get(found.id, 0),
        "jobs": [_row(row) for row in ran],
        "incidents": incidents(connection, project_id, Filters(named=found.id), MOST),
        "marks": [
            {name: getattr(each, name) for name in ("at", "what", "who", "detail")}
            for each in marks.of_entity(connection, found.id, MOST)
        ],
    }


def counts(connection: Connection, project_id: int) -> Sequence[tuple[str, str, int]]:
    """How many incidents there are by state and kind."""
    found = connection.execute(
        select(INCIDENTS.c.state, INCIDENTS.c.kind, func.count())
        .where(INCIDENTS.c.project_id == project_id)
        .group_by(INCIDENTS.c.state, INCIDENTS.c.kind)
    )
    counted: Counter[tuple[str, str]] = Counter()
    for state, kind, count in found:
        counted[state, kind or "unknown"] += count
    return [(state, kind, count) for (state, kind), count in counted.items()]
