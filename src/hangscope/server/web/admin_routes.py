"""What people change: issues, tokens, webhooks, how long a project keeps its incidents; and who opened what."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from sqlalchemy import Connection, select, update
from starlette.concurrency import run_in_threadpool

from hangscope.errors import InputError
from hangscope.server.digest import issue_groups
from hangscope.server.intake import plain_values as plain
from hangscope.server.store import access_tokens
from hangscope.server.store.access_tokens import Access
from hangscope.server.store.tables import AUDIT, PROJECTS, TOKENS, WEBHOOKS
from hangscope.server.web.guard import Admin, Number, Refusal, json_body
from hangscope.server.web.webhooks import SHAPES

router = APIRouter(prefix="/api/v1", tags=["admin"])
LONGEST_DAYS = 36_500


def act_on_issue(
    connection: Connection, access: Access, issue_id: int, action: str, value: Mapping[str, Any]
) -> dict[str, Any]:
    """merge (`into`), split (`fingerprint`), mute (`days`), resolve or reopen an issue."""
    project = access.project_id
    who = access.name
    if action == "merge":
        into = plain.whole(value, "into")
        if into is None:
            raise InputError("`into` is the number of the issue that this one becomes part of")
        issue_groups.merge(connection, project, issue_id, into, who)
        return {"issue": issue_groups.final(connection, into)}
    if action == "split":
        issue_groups.issue_row(connection, project, issue_id)
        return {"issue": issue_groups.split(connection, project, plain.needed(value, "fingerprint"), who)}
    if action == "mute":
        days = plain.whole(value, "days", LONGEST_DAYS)
        issue_groups.mute(connection, project, issue_id, None if days is None else time.time() + days * 86400, who)
    elif action == "resolve":
        issue_groups.resolve(connection, project, issue_id, who)
    elif action == "reopen":
        issue_groups.reopen(connection, project, issue_id, who)
    else:
        raise Refusal(404, f"an issue cannot be {action!r}: merge, split, mute, resolve, reopen")
    return {"issue": issue_id}


@router.post("/issues/{issue_id}/{action}")
async def change_issue(issue_id: Number, action: str, request: Request, access: Admin) -> dict[str, Any]:
    """merge (`into`), split (`fingerprint`), mute (`days`), resolve or reopen an issue."""
    value = await json_body(request) if request.headers.get("content-length", "0") != "0" else {}
    given = value if isinstance(value, dict) else {}
    return await _write(request, lambda connection: act_on_issue(connection, access, issue_id, action, given))


@router.get("/tokens")
def tokens(request: Request, access: Admin) -> dict[str, Any]:
    """The project's tokens: names, scopes and times; nobody can show a token itself again."""
    columns = [TOKENS.c[name] for name in ("id", "name", "scopes", "created_at", "expires_at", "revoked_at")]
    with request.app.state.database.read() as connection:
        found = connection.execute(select(*columns).where(TOKENS.c.project_id == access.project_id))
        return {"tokens": [dict(row._mapping) for row in found]}


@router.post("/tokens", status_code=201)
async def new_token(request: Request, access: Admin) -> dict[str, str]:
    """Make a token with a `name`, `scopes` and, if wanted, a number of `days`. It is shown this once."""
    value = await _object(request)
    scopes = [scope for scope in plain.items(value, "scopes", 3) if isinstance(scope, str)]
    days = plain.whole(value, "days", LONGEST_DAYS)
    expires = None if days is None else time.time() + days * 86400

    def make(connection: Connection) -> dict[str, str]:
        name = plain.needed(value, "name", 100)
        _audit(connection, access, "new token", name)
        return {"token": access_tokens.make(connection, access.project_id, name, scopes, expires_at=expires)}

    return await _write(request, make)


@router.delete("/tokens/{token_id}")
async def revoke_token(token_id: Number, request: Request, access: Admin) -> dict[str, bool]:
    """From now on the token opens nothing."""

    def revoke(connection: Connection) -> dict[str, bool]:
        _audit(connection, access, "revoke token", str(token_id))
        return {"revoked": access_tokens.revoke(connection, access.project_id, token_id)}

    return await _write(request, revoke)


@router.get("/webhooks")
def webhooks(request: Request, access: Admin) -> dict[str, Any]:
    columns = [WEBHOOKS.c[name] for name in ("id", "url", "shape", "created_at")]
    with request.app.state.database.read() as connection:
        found = connection.execute(select(*columns).where(WEBHOOKS.c.project_id == access.project_id))
        return {"webhooks": [dict(row._mapping) for row in found]}


@router.post("/webhooks", status_code=201)
async def new_webhook(request: Request, access: Admin) -> dict[str, Any]:
    """Have `url` sent every new incident, as `shape` json, slack or alertmanager. The secret signs it: kept by both."""
    value = await _object(request)
    url = plain.needed(value, "url", 2000)
    shape = plain.text(value, "shape") or "json"
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise InputError("`url` is an http or https address")
    if shape not in SHAPES:
        raise InputError(f"`shape` is one of {', '.join(SHAPES)}")
    secret = secrets.token_hex(32)

    def make(connection: Connection) -> dict[str, Any]:
        _audit(connection, access, "new webhook", url[:200])
        row = {"project_id": access.project_id, "url": url, "shape": shape, "secret": secret, "created_at": time.time()}
        made = connection.execute(WEBHOOKS.insert().values(**row).returning(WEBHOOKS.c.id)).scalar_one()
        return {"id": made, "secret": secret}

    return await _write(request, make)


@router.delete("/webhooks/{webhook_id}")
async def delete_webhook(webhook_id: Number, request: Request, access: Admin) -> dict[str, bool]:
    def delete(connection: Connection) -> dict[str, bool]:
        _audit(connection, access, "delete webhook", str(webhook_id))
        same = (WEBHOOKS.c.id == webhook_id, WEBHOOKS.c.project_id == access.project_id)
        return {"deleted": connection.execute(WEBHOOKS.delete().where(*same)).rowcount == 1}

    return await _write(request, delete)


@router.put("/retention")
async def retention(request: Request, access: Admin) -> dict[str, int | None]:
    """Keep incidents and rosters for `days`; null keeps them for ever."""
    value = await _object(request)
    days = plain.whole(value, "days", LONGEST_DAYS)
    if days == 0 or (days is None and value.get("days") is not None):
        raise InputError("`days` is a number from 1, or null")

    def change(connection: Connection) -> dict[str, int | None]:
        _audit(connection, access, "retention", f"{days} days")
        same = PROJECTS.c.id == access.project_id
        connection.execute(update(PROJECTS).where(same).values(retention_days=days))
        return {"days": days}

    return await _write(request, change)


@router.get("/audit")
def audit(request: Request, access: Admin) -> dict[str, Any]:
    """Who opened which bundle or page, and who changed what; the newest first."""
    asked = select(AUDIT).where(AUDIT.c.project_id == access.project_id).order_by(AUDIT.c.id.desc()).limit(1000)
    with request.app.state.database.read() as connection:
        return {"audit": [dict(row._mapping) for row in connection.execute(asked)]}


async def _object(request: Request) -> dict[str, Any]:
    value = await json_body(request)
    if not isinstance(value, dict):
        raise InputError("a JSON object is needed")
    return value


async def _write(request: Request, change: Callable[[Connection], dict[str, Any]]) -> dict[str, Any]:
    def work() -> dict[str, Any]:
        with request.app.state.database.write() as connection:
            return change(connection)

    return await run_in_threadpool(work)


def _audit(connection: Connection, access: Access, what: str, subject: str) -> None:
    row = {"project_id": access.project_id, "at": time.time(), "who": access.name, "what": what, "subject": subject}
    connection.execute(AUDIT.insert().values(**row))
