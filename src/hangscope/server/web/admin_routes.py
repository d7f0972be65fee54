"""What people change: issues, incidents, tokens, webhooks, how long a project keeps what it has; and who did what."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection, select, update
from starlette.concurrency import run_in_threadpool

from hangscope.errors import InputError
from hangscope.server.digest import issue_groups
from hangscope.server.retention import delete_incident, digest_again
from hangscope.server.store import access_tokens, outbox, work_queue
from hangscope.server.store.access_tokens import Access
from hangscope.server.store.audit_log import write_down
from hangscope.server.store.tables import AUDIT, DELIVERIES, PROJECTS, TOKENS, USAGE, WEBHOOKS, WORK
from hangscope.server.web import answers
from hangscope.server.web.bodies import IssueChange, NewToken, NewWebhook, Retention, described, taken
from hangscope.server.web.guard import Admin, Number, Reader, Refusal, Triager
from hangscope.server.web.webhooks import check_address

router = APIRouter(prefix="/api/v1", tags=["admin"], responses=answers.ERRORS)
Done = TypeVar("Done")
Action = Literal["merge", "split", "mute", "resolve", "reopen"]


def act_on_issue(
    connection: Connection, access: Access, issue_id: int, action: Action, value: IssueChange
) -> dict[str, Any]:
    """merge (`into`), split (`fingerprint`), mute (`days`), resolve or reopen an issue."""
    project = access.project_id
    who = access.name
    allowed = {"merge": {"into"}, "split": {"fingerprint"}, "mute": {"days"}}.get(action, set())
    beside = (
        value.model_fields_set - allowed - {name for name in value.model_fields_set if getattr(value, name) is None}
    )
    if beside:
        raise InputError(f"`{sorted(beside)[0]}` says nothing to {action}")
    write_down(connection, access, f"{action} issue", str(issue_id))
    if action == "merge":
        if value.into is None:
            raise InputError("`into` is the number of the issue that this one becomes part of")
        issue_groups.merge(connection, project, issue_id, value.into, who)
        return {"issue": issue_groups.final(connection, value.into)}
    if action == "split":
        issue_groups.issue_row(connection, project, issue_id)
        if not value.fingerprint:
            raise InputError("`fingerprint` is the one that gets an issue of its own")
        return {"issue": issue_groups.split(connection, project, value.fingerprint, who)}
    now = time.time()
    if action == "mute":
        outbox.tell(connection, project, "muted", f"issue {issue_id} at {now:.0f}", now, about={"issue": issue_id})
        until = None if value.days is None else time.time() + value.days * 86400
        issue_groups.mute(connection, project, issue_id, until, who)
    elif action == "resolve":
        outbox.tell(connection, project, "resolved", f"issue {issue_id} at {now:.0f}", now, about={"issue": issue_id})
        issue_groups.resolve(connection, project, issue_id, who)
    else:
        issue_groups.reopen(connection, project, issue_id, who)
    return {"issue": issue_id}


@router.post(
    "/issues/{issue_id}/{action}",
    openapi_extra=described(IssueChange, optional=True),
    response_model=answers.IssueChanged,
)
async def change_issue(
    issue_id: Number,
    action: Action,
    request: Request,
    access: Triager,
    value: Annotated[IssueChange, taken(IssueChange, 1 << 16, optional=True)],
) -> dict[str, Any]:
    """merge (`into`), split (`fingerprint`), mute (`days`), resolve or reopen an issue."""
    return await _write(request, lambda connection: act_on_issue(connection, access, issue_id, action, value))


@router.delete("/incidents/{incident_id}", response_model=answers.Deleted)
async def delete(incident_id: Number, request: Request, access: Admin) -> dict[str, bool]:
    """Take an incident away now, with its bundles, its verdict and its page."""
    state = request.app.state

    def work() -> bool:
        return delete_incident(state.database, state.blobs, access.project_id, incident_id)

    if not await run_in_threadpool(work):
        raise Refusal(404, "there is no such incident in this project")
    await _write(request, lambda connection: _noted(connection, access, "delete incident", str(incident_id)))
    return {"deleted": True}


@router.post("/incidents/{incident_id}/digest", status_code=202, response_model=answers.IncidentAccepted)
async def digest(incident_id: Number, request: Request, access: Admin) -> dict[str, Any]:
    """Have an incident diagnosed once more: one that failed, or after an upgrade."""

    def again(connection: Connection) -> dict[str, Any]:
        if not digest_again(connection, access.project_id, incident_id):
            raise Refusal(404, "there is no such incident in this project")
        write_down(connection, access, "digest again", str(incident_id))
        return {"incident": incident_id, "new": False}

    done = await _write(request, again)
    request.app.state.wake()
    return done


@router.get("/tokens", response_model=answers.Tokens)
def tokens(request: Request, access: Admin) -> dict[str, Any]:
    """The project's tokens: names, scopes and times; nobody can show a token itself again."""
    columns = [TOKENS.c[name] for name in ("id", "name", "scopes", "created_at", "expires_at", "revoked_at")]
    with request.app.state.database.read() as connection:
        found = connection.execute(select(*columns).where(TOKENS.c.project_id == access.project_id))
        return {"tokens": [dict(row._mapping) for row in found]}


@router.post("/tokens", status_code=201, openapi_extra=described(NewToken), response_model=answers.TokenMade)
async def new_token(
    request: Request, access: Admin, value: Annotated[NewToken, taken(NewToken, 1 << 16)]
) -> dict[str, str]:
    """Make a token with a `name`, `scopes` and, if wanted, a number of `days`. It is shown this once."""
    expires = None if value.days is None else time.time() + value.days * 86400

    def make(connection: Connection) -> dict[str, str]:
        write_down(connection, access, "new token", value.name)
        made = access_tokens.make(connection, access.project_id, value.name, value.scopes, expires_at=expires)
        return {"token": made}

    done = await _write(request, make)
    request.app.state.guard.forget()
    return done


@router.delete("/tokens/{token_id}", response_model=answers.Revoked)
async def revoke_token(token_id: Number, request: Request, access: Admin) -> dict[str, bool]:
    """From now on the token opens nothing, and the sessions that were opened with it neither: on this server at once,
    on others of the same database within two seconds."""

    def revoke(connection: Connection) -> dict[str, bool]:
        write_down(connection, access, "revoke token", str(token_id))
        return {"revoked": access_tokens.revoke(connection, access.project_id, token_id)}

    done = await _write(request, revoke)
    request.app.state.guard.forget()
    return done


@router.get("/webhooks", response_model=answers.Webhooks)
def webhooks(request: Request, access: Admin) -> dict[str, Any]:
    """Where messages go."""
    columns = [WEBHOOKS.c[name] for name in ("id", "url", "shape", "created_at")]
    with request.app.state.database.read() as connection:
        found = connection.execute(select(*columns).where(WEBHOOKS.c.project_id == access.project_id))
        return {"webhooks": [dict(row._mapping) for row in found]}


@router.post("/webhooks", status_code=201, openapi_extra=described(NewWebhook), response_model=answers.WebhookMade)
async def new_webhook(
    request: Request, access: Admin, value: Annotated[NewWebhook, taken(NewWebhook, 1 << 16)]
) -> dict[str, Any]:
    """Have `url` sent every new incident, as `shape` json, slack or alertmanager. The secret signs it: kept by both."""
    host = check_address(value.url)
    secret = secrets.token_hex(32)

    def make(connection: Connection) -> dict[str, Any]:
        write_down(connection, access, "new webhook", host)
        row = {"url": value.url, "shape": value.shape, "secret": secret, "created_at": time.time()}
        made = WEBHOOKS.insert().values(project_id=access.project_id, **row).returning(WEBHOOKS.c.id)
        return {"id": connection.execute(made).scalar_one(), "secret": secret}

    return await _write(request, make)


@router.post("/webhooks/{webhook_id}/test", status_code=202, response_model=answers.Queued)
async def test_webhook(webhook_id: Number, request: Request, access: Admin) -> dict[str, int]:
    """Have a message sent there that says that it is a test. What came of it is among the deliveries."""

    def work(connection: Connection) -> dict[str, int]:
        now = time.time()
        subject = f"test at {now:.3f}"
        count = outbox.tell(connection, access.project_id, outbox.TEST, subject, now, webhook_id=webhook_id)
        if not count:
            raise Refusal(404, "there is no such webhook in this project")
        return {"queued": count}

    done = await _write(request, work)
    request.app.state.wake()
    return done


@router.get("/deliveries", response_model=answers.Deliveries)
def deliveries(
    request: Request,
    access: Admin,
    webhook: Number | None = None,
    state: Literal["", "waiting", "delivered", "failed"] = "",
    before_id: Number | None = None,
    limit: int = Query(200, ge=1, le=1000),
) -> dict[str, Any]:
    """What was sent to webhooks, what waits, and what was given up with its problem; the newest first."""
    names = ("id", "webhook_id", "incident_id", "event", "subject", "created_at", "delivered_at", "problem", "attempts")
    waits = select(WORK.c.subject).where(WORK.c.kind == work_queue.DELIVER)
    is_waiting = DELIVERIES.c.id.in_(waits)
    asked = (
        select(*(DELIVERIES.c[name] for name in names), is_waiting.label("waiting"))
        .join(WEBHOOKS, WEBHOOKS.c.id == DELIVERIES.c.webhook_id)
        .where(WEBHOOKS.c.project_id == access.project_id)
    )
    if webhook is not None:
        asked = asked.where(DELIVERIES.c.webhook_id == webhook)
    if before_id is not None:
        asked = asked.where(DELIVERIES.c.id < before_id)
    if state == "delivered":
        asked = asked.where(DELIVERIES.c.delivered_at.is_not(None))
    elif state:
        asked = asked.where(DELIVERIES.c.delivered_at.is_(None), is_waiting if state == "waiting" else ~is_waiting)
    with request.app.state.database.read() as connection:
        found = [dict(row._mapping) for row in connection.execute(asked.order_by(DELIVERIES.c.id.desc()).limit(limit))]
    for each in found:
        waiting = each.pop("waiting")
        each["state"] = "delivered" if each["delivered_at"] is not None else "waiting" if waiting else "failed"
    more = {"webhook": webhook, "state": state, "limit": limit, "before_id": found[-1]["id"] if found else None}
    following = answers.following("/api/v1/deliveries", more) if len(found) == limit else None
    return {"deliveries": found, "next": following}


@router.post("/deliveries/{delivery_id}/retry", status_code=202, response_model=answers.Queued)
async def retry(delivery_id: Number, request: Request, access: Admin) -> dict[str, int]:
    """Send one once more, now."""

    def work(connection: Connection) -> dict[str, int]:
        if not outbox.again(connection, access.project_id, delivery_id):
            raise Refusal(404, "there is no such delivery in this project")
        write_down(connection, access, "retry delivery", str(delivery_id))
        return {"queued": 1}

    done = await _write(request, work)
    request.app.state.wake()
    return done


@router.delete("/webhooks/{webhook_id}", response_model=answers.Deleted)
async def delete_webhook(webhook_id: Number, request: Request, access: Admin) -> dict[str, bool]:
    """No message goes there any more."""

    def work(connection: Connection) -> dict[str, bool]:
        write_down(connection, access, "delete webhook", str(webhook_id))
        same = (WEBHOOKS.c.id == webhook_id, WEBHOOKS.c.project_id == access.project_id)
        return {"deleted": connection.execute(WEBHOOKS.delete().where(*same)).rowcount == 1}

    return await _write(request, work)


@router.put("/retention", openapi_extra=described(Retention), response_model=answers.Kept)
async def retention(
    request: Request, access: Admin, value: Annotated[Retention, taken(Retention, 1 << 16)]
) -> dict[str, int | None]:
    """Keep incidents and rosters for `days` after they arrived; null keeps them for ever."""

    def change(connection: Connection) -> dict[str, int | None]:
        write_down(connection, access, "retention", "for ever" if value.days is None else f"{value.days} days")
        same = PROJECTS.c.id == access.project_id
        connection.execute(update(PROJECTS).where(same).values(retention_days=value.days))
        return {"days": value.days}

    return await _write(request, change)


@router.get("/usage", response_model=answers.Usage)
def usage(request: Request, access: Reader) -> dict[str, Any]:
    """What the project uses of its budgets."""
    budgets = request.app.state.budgets
    names = ("stored_bytes", "claimed_bytes", "kept_rows")
    with request.app.state.database.read() as connection:
        row = connection.execute(select(USAGE).where(USAGE.c.project_id == access.project_id)).first()
    return {
        "used": {name: 0 if row is None else getattr(row, name) for name in names},
        "budgets": {} if budgets is None else {name: getattr(budgets, name) for name in (*names, "waiting")},
    }


@router.get("/audit", response_model=answers.Audit)
def audit(
    request: Request,
    access: Admin,
    what: str = Query("", max_length=40),
    who: str = Query("", max_length=100),
    before_id: Number | None = None,
    limit: int = Query(1000, ge=1, le=1000),
) -> dict[str, Any]:
    """Who opened which bundle, verdict or page, and who changed what; the newest first."""
    asked = select(AUDIT).where(AUDIT.c.project_id == access.project_id)
    if what:
        asked = asked.where(AUDIT.c.what == what)
    if who:
        asked = asked.where(AUDIT.c.who == who)
    if before_id is not None:
        asked = asked.where(AUDIT.c.id < before_id)
    with request.app.state.database.read() as connection:
        found = [dict(row._mapping) for row in connection.execute(asked.order_by(AUDIT.c.id.desc()).limit(limit))]
    more = {"what": what, "who": who, "limit": limit, "before_id": found[-1]["id"] if found else None}
    return {"audit": found, "next": answers.following("/api/v1/audit", more) if len(found) == limit else None}


async def _write(request: Request, change: Callable[[Connection], Done]) -> Done:
    def work() -> Done:
        with request.app.state.database.write() as connection:
            return change(connection)

    return await run_in_threadpool(work)


def _noted(connection: Connection, access: Access, what: str, subject: str) -> None:
    write_down(connection, access, what, subject)
