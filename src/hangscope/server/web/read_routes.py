"""The API for programs: incidents, issues, nodes, jobs as JSON; verdict, page and bundles as they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from starlette.concurrency import run_in_threadpool

from hangscope.server.digest.digest_work import joined
from hangscope.server.history.fleet_history import as_json
from hangscope.server.history.node_check import check_node
from hangscope.server.intake import plain_values as plain
from hangscope.server.intake.accept_push import counting_parts
from hangscope.server.store.access_tokens import Access
from hangscope.server.store.audit_log import write_down
from hangscope.server.store.tables import PARTS, TOKENS
from hangscope.server.web import answers, lists
from hangscope.server.web.bodies import HistoryAsked, described, taken
from hangscope.server.web.guard import Number, Reader, Refusal
from hangscope.server.web.lists import Before

router = APIRouter(prefix="/api/v1", tags=["read"], responses=answers.ERRORS)
Moment = Annotated[float, Query(allow_inf_nan=False, ge=0, lt=1 << 40)]
"""Seconds since 1970."""
Cluster = Annotated[str, Query(max_length=200)]
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


@router.get("/incidents", response_model=answers.Incidents)
def incidents(
    request: Request,
    access: Reader,
    q: str = Query("", max_length=400, description="words, all of which must be there"),
    kind: str = Query("", max_length=20),
    outcome: str = Query("", max_length=20),
    state: str = Query("", max_length=20),
    node: str = Query("", max_length=200),
    issue: Number | None = None,
    before: Moment | None = None,
    before_id: Number | None = None,
    cluster: str = Query("", max_length=200),
    since: Annotated[Moment | None, Query(description="received then or later")] = None,
    happened_after: Moment | None = None,
    happened_before: Moment | None = None,
    limit: int = Query(lists.PAGE, ge=1, le=lists.MOST),
) -> dict[str, Any]:
    """The newest incidents that fit; `next` is the address of the ones after them."""
    times = (since, happened_after, happened_before)
    filters = lists.Filters(q, kind, outcome, state, node, issue, Before.of(before, before_id), cluster, *times)
    with request.app.state.database.read() as connection:
        found = lists.incidents(connection, access.project_id, filters, limit)
    return {"incidents": found, "next": _next(request, found, "happened_at", limit)}


def _next(request: Request, found: Sequence[Mapping[str, Any]], at: str, limit: int) -> str | None:
    """The same question for what follows a full page."""
    if len(found) < limit:
        return None
    last = {"before": repr(found[-1][at]), "before_id": found[-1]["id"]}
    return answers.following(request.url.path, {**request.query_params, **last})


@router.get("/incidents/{incident_id}", response_model=answers.OneIncident)
def incident(incident_id: Number, request: Request, access: Reader) -> dict[str, Any]:
    """One incident with what its fingerprint is made of and what its verdict names."""
    with request.app.state.database.read() as connection:
        return found(lists.incident(connection, access.project_id, incident_id), "incident")


@router.get(
    "/incidents/{incident_id}/verdict",
    response_class=Response,
    responses={200: {"content": {"application/json": {"schema": {"type": "object"}}}, "description": "the verdict"}},
)
def verdict(incident_id: Number, request: Request, access: Reader) -> Response:
    """The verdict, as `hangscope diagnose --json` gives it."""
    data = _blob(request, access, incident_id, "verdict_sha256")
    audit(request, access, "verdict", str(incident_id))
    return Response(data, media_type="application/json")


@router.get(
    "/incidents/{incident_id}/page",
    response_class=Response,
    responses={200: {"content": {"text/html": {}}, "description": "the page"}},
)
def page(incident_id: Number, request: Request, access: Reader) -> Response:
    """The incident's page, as `hangscope report -o FILE.html` writes it."""
    data = _blob(request, access, incident_id, "page_sha256")
    audit(request, access, "page", str(incident_id))
    return Response(data, media_type="text/html", headers={"Content-Security-Policy": PAGE_POLICY})


@router.get("/incidents/{incident_id}/bundles", response_model=answers.Bundles)
def bundles(incident_id: Number, request: Request, access: Reader) -> dict[str, Any]:
    """The bundles that the incident's parts are: with the token that sent each, and whether it counts or another took
    its place."""
    with request.app.state.database.read() as connection:
        found(lists.incident(connection, access.project_id, incident_id), "incident")
        parts = _parts(connection, access.project_id, incident_id)
        counting = {row.id for row in counting_parts(connection, incident_id)}
        ids = {row.token_id for row in parts if row.token_id is not None}
        names = {
            row.id: row.name
            for row in connection.execute(select(TOKENS.c.id, TOKENS.c.name).where(TOKENS.c.id.in_(ids)))
        }
    return {
        "bundles": [
            {
                "id": row.id,
                "size": row.size,
                "source": row.source,
                "received_at": row.received_at,
                "token": names.get(row.token_id),
                "counts": row.id in counting,
            }
            for row in parts
        ]
    }


@router.get(
    "/incidents/{incident_id}/bundles/{part_id}",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/gzip": {}}, "description": "the bundle"}},
)
def bundle(incident_id: Number, part_id: Number, request: Request, access: Reader) -> StreamingResponse:
    """One bundle. Who opened it is written down."""
    with request.app.state.database.read() as connection:
        parts = _parts(connection, access.project_id, incident_id)
    part = next((row for row in parts if row.id == part_id), None)
    if part is None:
        raise Refusal(404, "there is no such bundle in this project")
    audit(request, access, "bundle", f"{incident_id}/{part_id}")
    pieces: Iterator[bytes] = joined(request.app.state.blobs, access.project_id, part)
    name = f"hangscope-{incident_id}-{part_id}.tar.gz"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Length": str(part.size)}
    return StreamingResponse(pieces, media_type="application/gzip", headers=headers)


@router.get("/issues", response_model=answers.Issues)
def issues(
    request: Request,
    access: Reader,
    state: str = Query("", max_length=20),
    before: Moment | None = None,
    before_id: Number | None = None,
    limit: int = Query(lists.PAGE, ge=1, le=lists.MOST),
) -> dict[str, Any]:
    """Issues, the one seen last first."""
    with request.app.state.database.read() as connection:
        found = lists.issues(connection, access.project_id, state, Before.of(before, before_id), limit)
    return {"issues": found, "next": _next(request, found, "last_seen_at", limit)}


@router.get("/issues/{issue_id}", response_model=answers.Issue)
def issue(issue_id: Number, request: Request, access: Reader) -> dict[str, Any]:
    """One issue, with its fingerprints and what happened to it."""
    with request.app.state.database.read() as connection:
        return found(lists.issue(connection, access.project_id, issue_id), "issue")


@router.get("/jobs", response_model=answers.Jobs)
def jobs(
    request: Request,
    access: Reader,
    before: Moment | None = None,
    before_id: Number | None = None,
    limit: int = Query(lists.PAGE, ge=1, le=lists.MOST),
) -> dict[str, Any]:
    """Attempts of jobs, the one that started last first."""
    with request.app.state.database.read() as connection:
        found = lists.jobs(connection, access.project_id, Before.of(before, before_id), limit)
    return {"jobs": found, "next": _next(request, found, "started_at", limit)}


@router.get("/jobs/{job_id}", response_model=answers.Job)
def job(job_id: Number, request: Request, access: Reader) -> dict[str, Any]:
    """One attempt of a job, with what it ran on and its incidents."""
    with request.app.state.database.read() as connection:
        return found(lists.job(connection, access.project_id, job_id), "job")


@router.get("/nodes", response_model=answers.Nodes)
def nodes(
    request: Request,
    access: Reader,
    q: str = Query("", max_length=200),
    before: Moment | None = None,
    before_id: Number | None = None,
    limit: int = Query(lists.MOST, ge=1, le=lists.MOST),
    cluster: str = Query("", max_length=200),
) -> dict[str, Any]:
    """Nodes, the one seen last first."""
    with request.app.state.database.read() as connection:
        found = lists.nodes(connection, access.project_id, q, Before.of(before, before_id), limit, cluster)
    return {"nodes": found, "next": _next(request, found, "last_seen_at", limit)}


@router.get("/nodes/{name}/check", response_model=answers.NodeChecked)
def node_check(name: str, request: Request, access: Reader, cluster: Cluster | None = None) -> dict[str, Any]:
    """Whether this node is proposed to be taken out; or that no such node is known, with those that are spelt alike."""
    database = request.app.state.database
    suspects = request.app.state.history.suspects(access.project_id)["suspects"]
    return check_node(database, access.project_id, plain.clean(name, 200), suspects, cluster)


@router.get("/nodes/{name}", response_model=answers.OneNode)
def node(name: str, request: Request, access: Reader, cluster: Cluster | None = None) -> dict[str, Any]:
    """One node: the jobs that ran on it, the incidents whose verdict names it, what was noted of it, and how suspect it
    is. `cluster` says which is meant where several have one of that name."""
    with request.app.state.database.read() as connection:
        row = lists.node(connection, access.project_id, plain.clean(name, 200), cluster)
    return {**row, "suspect": suspect_of(request, access, row)}


def suspect_of(request: Request, access: Access, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """What history says of a node, where any verdict names it."""
    found = request.app.state.history.suspects(access.project_id)["suspects"]
    mine = {"kind": "node", "name": row["name"], "cluster": row["cluster"]}
    return next((each for each in found if mine.items() <= each.items()), None)


@router.get("/suspects", response_model=answers.Suspects)
def suspects(request: Request, access: Reader) -> dict[str, Any]:
    """Who was named by verdicts, with odds against chance, counts and, where it is proposed, hints for schedulers."""
    value: dict[str, Any] = request.app.state.history.suspects(access.project_id)
    return value


@router.get("/incidents/{incident_id}/decision", response_model=answers.Decision)
def decision(incident_id: Number, request: Request, access: Reader) -> dict[str, Any]:
    """Machine or code: the table that decides, and the experiment that would."""
    with request.app.state.database.read() as connection:
        found(lists.incident(connection, access.project_id, incident_id), "incident")
    made = request.app.state.history.of_incident(access.project_id, incident_id)
    if made is None:
        raise Refusal(404, "nothing is known of this incident's job, or it did not hang")
    return as_json(made)


@router.post("/history", openapi_extra=described(HistoryAsked), response_model=answers.Answer)
async def history(
    request: Request, access: Reader, value: Annotated[HistoryAsked, taken(HistoryAsked, 1 << 20)]
) -> dict[str, Any]:
    """What history says of a hang that was not pushed: `diagnose --server` asks this."""
    asked = value.model_dump()
    answer: dict[str, Any] = await run_in_threadpool(request.app.state.history.asked, access.project_id, asked)
    return answer


def _blob(request: Request, access: Access, incident_id: int, column: str) -> bytes:
    with request.app.state.database.read() as connection:
        row = found(lists.incident(connection, access.project_id, incident_id), "incident")
    if row[column] is None:
        raise Refusal(404, f"incident {incident_id} has none: its state is {row['state']!r}")
    return b"".join(request.app.state.blobs.read(access.project_id, row[column]))


def _parts(connection: Any, project_id: int, incident_id: int) -> list[Any]:
    asked = select(PARTS).where(PARTS.c.project_id == project_id, PARTS.c.incident_id == incident_id)
    return list(connection.execute(asked.order_by(PARTS.c.id)).all())


def audit(request: Request, access: Access, what: str, subject: str) -> None:
    """Write down who opened it. Where that cannot be written (the disk is full), it is shown all the same, and the line
    goes to the server's log."""
    try:
        with request.app.state.database.write() as connection:
            write_down(connection, access, what, subject)
    except DBAPIError as error:
        said = f"audit, not written ({type(error.orig).__name__}): {access.name!r} opened {what} {subject}"
        sys.stderr.write(f"{said}\n")
