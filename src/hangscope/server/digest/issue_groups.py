"""Issues: the fingerprints that people treat as one, and what became of them.

A fingerprint belongs to an issue, and an issue may be merged into another: both are pointers that can be turned back,
and no incident is ever rewritten.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, func, or_, select, update

from hangscope.errors import InputError
from hangscope.server.digest.fingerprint import Fingerprint, title
from hangscope.server.store.database import insert_new
from hangscope.server.store.tables import FINGERPRINTS, INCIDENTS, ISSUE_EVENTS, ISSUES, JOBS

OPEN = "open"
RESOLVED = "resolved"
MUTED = "muted"
NEW = "new"
REOPENED = "reopened"
AGAIN = "again"
MOST_MERGES = 100
SERVER = "hangscope"


class NoSuchThing(InputError):
    """What is asked for is not in this project."""


def assign(
    connection: Connection, project_id: int, found: Fingerprint, happened_at: float, commit: str
) -> tuple[int, str]:
    """The id of the fingerprint, and what the incident means for its issue: new, reopened, again, muted or resolved."""
    row = _fingerprint(connection, project_id, found.value)
    if row is None:
        issue_id = _new_issue(connection, project_id, title(found.explanation), happened_at)
        made = {
            "project_id": project_id,
            "issue_id": issue_id,
            "value": found.value,
            "explanation": json.dumps(found.explanation),
        }
        if insert_new(connection, FINGERPRINTS, made):
            return _fingerprint(connection, project_id, found.value).id, NEW
        connection.execute(ISSUES.delete().where(ISSUES.c.id == issue_id))  # another digest was first
        row = _fingerprint(connection, project_id, found.value)
    issue = issue_row(connection, project_id, final(connection, row.issue_id))
    connection.execute(
        update(ISSUES)
        .where(ISSUES.c.id == issue.id)
        .values(last_seen_at=max(happened_at, issue.last_seen_at), first_seen_at=min(happened_at, issue.first_seen_at))
    )
    return row.id, _after(connection, issue, happened_at, commit)


def _after(connection: Connection, issue: Any, happened_at: float, commit: str) -> str:
    """What one more incident does to an issue's state."""
    if issue.state == MUTED:
        if issue.muted_until is None or happened_at < issue.muted_until:
            return MUTED
        _set(connection, issue.id, REOPENED, SERVER, "seen after it was muted", state=OPEN, muted_until=None)
        return REOPENED
    if issue.state == RESOLVED:
        # The code from before the cure still runs here and there: that it hangs again says nothing about the cure.
        if happened_at <= (issue.resolved_at or 0) or (commit and commit in json.loads(issue.resolved_commits)):
            return RESOLVED
        _set(connection, issue.id, REOPENED, SERVER, f"seen again{' in ' + commit if commit else ''}", state=OPEN)
        return REOPENED
    return AGAIN


def final(connection: Connection, issue_id: int) -> int:
    """The issue that this one was merged into, and that one, and so on."""
    for _ in range(MOST_MERGES):
        following = connection.execute(select(ISSUES.c.merged_into).where(ISSUES.c.id == issue_id)).scalar()
        if following is None:
            return issue_id
        issue_id = following
    return issue_id


def issue_row(connection: Connection, project_id: int, issue_id: int) -> Any:
    row = connection.execute(select(ISSUES).where(ISSUES.c.id == issue_id, ISSUES.c.project_id == project_id)).first()
    if row is None:
        raise NoSuchThing(f"there is no issue {issue_id} in this project")
    return row


def fingerprints_of(connection: Connection, issue_id: int) -> list[Any]:
    """The fingerprints of an issue and of all that were merged into it."""
    family = {issue_id}
    for _ in range(MOST_MERGES):
        below = set(connection.execute(select(ISSUES.c.id).where(ISSUES.c.merged_into.in_(family))).scalars())
        if below <= family:
            break
        family |= below
    found = connection.execute(select(FINGERPRINTS).where(FINGERPRINTS.c.issue_id.in_(family)))
    return list(found.all())


# ---- what people do --------------------------------------------------------------------------------------------------


def merge(connection: Connection, project_id: int, issue_id: int, into: int, who: str) -> None:
    """From now on both are one; splitting takes a fingerprint out again."""
    issue_row(connection, project_id, issue_id)
    issue_row(connection, project_id, into)
    target = final(connection, into)
    if final(connection, issue_id) == target:
        raise InputError(f"issues {issue_id} and {into} are one already")
    source = issue_row(connection, project_id, final(connection, issue_id))
    goal = issue_row(connection, project_id, target)
    _set(connection, source.id, "merged", who, f"into {target}", merged_into=target)
    _set(
        connection,
        target,
        "merged",
        who,
        f"with {source.id}",
        first_seen_at=min(source.first_seen_at, goal.first_seen_at),
        last_seen_at=max(source.last_seen_at, goal.last_seen_at),
    )


def split(connection: Connection, project_id: int, fingerprint: str, who: str) -> int:
    """Give a fingerprint an issue of its own again; returns that issue's id."""
    row = _fingerprint(connection, project_id, fingerprint)
    if row is None:
        raise NoSuchThing(f"there is no fingerprint {fingerprint} in this project")
    seen = connection.execute(
        select(INCIDENTS.c.happened_at).where(INCIDENTS.c.fingerprint_id == row.id).order_by(INCIDENTS.c.happened_at)
    ).scalars()
    times = list(seen) or [time.time()]
    made = _new_issue(connection, project_id, title(json.loads(row.explanation)), times[0])
    connection.execute(update(FINGERPRINTS).where(FINGERPRINTS.c.id == row.id).values(issue_id=made))
    _set(connection, made, "split", who, f"from {final(connection, row.issue_id)}", last_seen_at=times[-1])
    return made


def mute(connection: Connection, project_id: int, issue_id: int, until: float | None, who: str) -> None:
    issue = issue_row(connection, project_id, final(connection, issue_id))
    _set(connection, issue.id, MUTED, who, "", state=MUTED, muted_until=until)


def resolve(connection: Connection, project_id: int, issue_id: int, who: str) -> None:
    """The cure is in the next release: incidents of commits that ran until now do not open it again."""
    issue = issue_row(connection, project_id, final(connection, issue_id))
    ids = [row.id for row in fingerprints_of(connection, issue.id)]
    details = connection.execute(
        select(JOBS.c.details)
        .join(INCIDENTS, INCIDENTS.c.job_id == JOBS.c.id)
        .where(INCIDENTS.c.fingerprint_id.in_(ids))
    ).scalars()
    commits = sorted({str(commit) for row in details if (commit := json.loads(row).get("commit"))})
    values = {"state": RESOLVED, "resolved_at": time.time(), "resolved_commits": json.dumps(commits[:1000])}
    _set(connection, issue.id, RESOLVED, who, "", **values)


def reopen(connection: Connection, project_id: int, issue_id: int, who: str) -> None:
    issue = issue_row(connection, project_id, final(connection, issue_id))
    _set(connection, issue.id, REOPENED, who, "", state=OPEN, muted_until=None)


def _set(connection: Connection, issue_id: int, what: str, who: str, detail: str, **values: Any) -> None:
    connection.execute(update(ISSUES).where(ISSUES.c.id == issue_id).values(**values))
    event: Mapping[str, Any] = {"issue_id": issue_id, "at": time.time(), "what": what, "who": who, "detail": detail}
    connection.execute(ISSUE_EVENTS.insert().values(**event))


def _new_issue(connection: Connection, project_id: int, said: str, at: float) -> int:
    made = connection.execute(
        ISSUES.insert()
        .values(
            project_id=project_id,
            title=said,
            state=OPEN,
            first_seen_at=at,
            last_seen_at=at,
            resolved_commits="[]",
        )
        .returning(ISSUES.c.id)
    )
    return int(made.scalar_one())


def _fingerprint(connection: Connection, project_id: int, value: str) -> Any:
    return connection.execute(
        select(FINGERPRINTS).where(FINGERPRINTS.c.project_id == project_id, FINGERPRINTS.c.value == value)
    ).first()


def seen_before(connection: Connection, project_id: int, value: str, job: str) -> dict[str, Any] | None:
    """The issue of a fingerprint, with how often jobs of another name had it, and since when; None where it is new."""
    row = _fingerprint(connection, project_id, value) if value else None
    if row is None:
        return None
    issue = issue_row(connection, project_id, final(connection, row.issue_id))
    ids = [each.id for each in fingerprints_of(connection, issue.id)]
    count = select(func.count()).select_from(INCIDENTS).where(INCIDENTS.c.fingerprint_id.in_(ids))
    if job:
        own = select(JOBS.c.id).where(JOBS.c.project_id == project_id, JOBS.c.name == job)
        count = count.where(or_(INCIDENTS.c.job_id.is_(None), INCIDENTS.c.job_id.not_in(own)))
    return {
        "id": issue.id,
        "title": issue.title,
        "state": issue.state,
        "incidents": connection.execute(count).scalar_one(),
        "first_seen_at": issue.first_seen_at,
        "last_seen_at": issue.last_seen_at,
    }
