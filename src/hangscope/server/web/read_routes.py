"""The API for programs: incidents, issues, nodes, jobs as JSON; verdict, page and bundles as they are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from hangscope.server.digest.digest_work import joined
from hangscope.server.history.fleet_history import as_json
from hangscope.server.store.access_tokens import Access
from hangscope.server.store.tables import AUDIT, PARTS
from hangscope.server.web import lists
from hangscope.server.web.guard import Number, Reader, Refusal, json_body
from hangscope.server.web.lists import Before

router = APIRouter(prefix="/api/v1", tags=["read"])
PAGE_POLICY = (
    "sandbox allow-scripts allow-modals; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""The incident's page allows its own two blocks by their checksums, in its own policy, and no others; here it loses the
rest: our cookies and our origin."""


def found(value: dict[str, Any] | None, what: str) -> dict[str, Any]:
    if value is None:
        raise Refusal(404, f"there is no such {what} in this project")
    return value


@router.get("/incidents")
def incidents(
    request: Request,
    access: Reader,
    q: str = Query("", max_length=400, description="words, all of which must be there"),
    kind: str = Query("", max_length=20),
    outcome: str = Query("", max_length=20),
    state: str = Query("", max_length=20),
    node: str = Query("", max_length=200),
    issue: Number | None = None,
    before: float | None = None,
    before_id: Number | None = None,
    limit: int = Query(lists.PAGE, ge=1, le=lists.MOST),
) -> dict[str, Any]:
    """The newest incidents that fit. `before` and `before_id` of the last one give the next ones."""
    filters = lists.Filters(q, kind, outcome, state, node, issue, Before.of(before, before_id))
    with request.app.state.database.read() as connection:
        return {"incidents": lists.incidents(connection, access.project_id, filters, limit)}


@router.get("/incidents/{incident_id}")
def incident(incident_id: Number, request: Request, access: Reader) -> dict[str, Any]:
    with request.app.state.database.read() as connection:
        return found(lists.incident(connection, access.project_id, incident_id), "incident")


@router.get("/incidents/{incident_id}/verdict")
def verdict(incident_id: Number, request: Request, access: Reader) -> Response:
    """The verdict, as `hangscope diagnose --json` gives it."""
    return Response(_blob(request, access, incident_id, "verdict_sha256"), media_type="application/json")


@router.get("/incidents/{incident_id}/page")
def page(incident_id: Number, request: Request, access: Reader) -> Response:
    """The incident's page, as `hangscope report -o FILE.html` writes it."""
    data = _blob(request, access, incident_id, "page_sha256")
    audit(request, access, "page", str(incident_id))
    return Response(data, media_type="text/html", headers={"Content-Security-Policy": PAGE_POLICY})


@router.get("/incidents/{incident_id}/bundles")
def bundles(incident_id: Number, request: Request, access: Reader) -> dict[str, Any]:
    """The bundles that the incident's parts are."""
    return {
        "bundles": [
            {"id": row.id, "size": row.size, "source": row.source} for row in _parts(request, access, incident_id)
        ]
    }


@router.get("/incidents/{incident_id}/bundles/{part_id}")
def bundle(incident_id: Number, part_id: Number, request: Request, access: Reader) -> StreamingResponse:
    """One bundle. Who opened it is written down."""
    part = next((row for row in _parts(request, access, incident_id) if row.id == part_id), None)
    if part is None:
        raise Refusal(404, "there is no such bundle in this project")
    audit(request, access, "bundle", f"{incident_id}/{part_id}")
    pieces: Iterator[bytes] = joined(request.app.state.blobs, access.project_id, part)
    name = f"hangscope-{incident_id}-{part_id}.tar.gz"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Length": str(part.size)}
    return StreamingResponse(pieces, media_type="application/gzip", headers=headers)


@router.get("/issues")
def issues(
    request: Request,
    access: Reader,
    state: str = Query("", max_length=20),
    before: float | None = None,
    before_id: Number | None = None,
    limit: int = Query(lists.PAGE, ge=1, le=lists.MOST),
) -> dict[str, Any]:
    """`before` (last_seen_at) and `before_id` of the last one give the next ones."""
    with request.app.state.database.read() as connection:
        found = lists.issues(connection, access.project_id, state, Before.of(before, before_id), limit)
    return {"issues": found}


@router.get("/issues/{issue_id}")
def issue(issue_id: Number, request: Request, access: Reader) -> dict[str, Any]:
    with request.app.state.database.read() as connection:
        return found(lists.issue(connection, access.project_id, issue_id), "issue")


@router.get("/jobs")
def jobs(
    request: Request,
    access: Reader,
    before: float | None = None,
    before_id: Number | None = None,
    limit: int = Query(lists.PAGE, ge=1, le=lists.MOST),
) -> dict[str, Any]:
    """`before` (started_at) and `before_id` of the last one give the next ones."""
    with request.app.state.database.read() as connection:
        return {"jobs": lists.jobs(connection, access.project_id, Before.of(before, before_id), limit)}


@router.get("/jobs/{job_id}")
def job(job_id: Number, request: Request, access: Reader) -> dict[str, Any]:
    with request.app.state.database.read() as connection:
        return found(lists.job(connection, access.project_id, job_id), "job")


@router.get("/nodes")
def nodes(
    request: Request,
    access: Reader,
    q: str = Query("", max_length=200),
    before: float | None = None,
    before_id: Number | None = None,
    limit: int = Query(lists.MOST, ge=1, le=lists.MOST),
) -> dict[str, Any]:
    """`before` (last_seen_at) and `before_id` of the last one give the next ones."""
    with request.app.state.database.read() as connection:
        return {"nodes": lists.nodes(connection, access.project_id, q, Before.of(before, before_id), limit)}


@router.get("/nodes/{name}")
def node(name: str, request: Request, access: Reader) -> dict[str, Any]:
    with request.app.state.database.read() as connection:
        return found(lists.node(connection, access.project_id, name), "node")


@router.get("/suspects")
def suspects(request: Request, access: Reader) -> dict[str, Any]:
    """Who was named by verdicts, with odds against chance, counts and, where it is proposed, hints for schedulers."""
    value: dict[str, Any] = request.app.state.history.suspects(access.project_id)
    return value


@router.get("/incidents/{incident_id}/decision")
def decision(incident_id: Number, request: Request, access: Reader) -> dict[str, Any]:
    """Machine or code: the table that decides, and the experiment that would."""
    with request.app.state.database.read() as connection:
        row = found(lists.incident(connection, access.project_id, incident_id), "incident")
    made = request.app.state.history.of_job(access.project_id, row["cluster"] or "", row["job"] or "")
    if made is None:
        raise Refusal(404, "nothing is known of this incident's job, or it did not hang")
    return as_json(made)


@router.post(
    "/history",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {
                            **{name: {"type": "string"} for name in ("cluster", "job", "fingerprint")},
                            "happened_at": {"type": "number"},
                            "accused": {
                                "type": "array",
                                "items": {
                                    "type": "object",
                                    "properties": {"kind": {"type": "string"}, "name": {"type": "string"}},
                                },
                            },
                        },
                    }
                }
            },
        }
    },
)
async def history(request: Request, access: Reader) -> dict[str, Any]:
    """What history says of a hang that was not pushed: `diagnose --server` asks this."""
    value = await json_body(request)
    answer: dict[str, Any] = await run_in_threadpool(request.app.state.history.asked, access.project_id, value)
    return answer


def _blob(request: Request, access: Access, incident_id: int, column: str) -> bytes:
    with request.app.state.database.read() as connection:
        row = found(lists.incident(connection, access.project_id, incident_id), "incident")
    if row[column] is None:
        raise Refusal(404, f"incident {incident_id} has none: its state is {row['state']!r}")
    return b"".join(request.app.state.blobs.read(access.project_id, row[column]))


def _parts(request: Request, access: Access, incident_id: int) -> list[Any]:
    with request.app.state.database.read() as connection:
        asked = select(PARTS).where(PARTS.c.project_id == access.project_id, PARTS.c.incident_id == incident_id)
        return list(connection.execute(asked.order_by(PARTS.c.id)).all())


def audit(request: Request, access: Access, what: str, subject: str) -> None:
    """Write down who did it."""
    row = {"project_id": access.project_id, "at": time.time(), "who": access.name, "what": what, "subject": subject}
    with request.app.state.database.write() as connection:
        connection.execute(AUDIT.insert().values(**row))
