"""What agents send: blobs, incidents, rosters, ends. Answered once it is durable; nothing is diagnosed meanwhile."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from hangscope.errors import InputError
from hangscope.server.intake import accept_push, job_rosters
from hangscope.server.intake import plain_values as plain
from hangscope.server.intake.accept_push import CHUNK_BYTES, MOST_ASKED, Accepted, Lacking
from hangscope.server.store.blob_store import is_sha256
from hangscope.server.web.guard import Pusher, body, json_body

router = APIRouter(prefix="/api/v1", tags=["push"])
_SHA = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_NODE = {
    "type": "object",
    "properties": {
        "node": {"type": "string"},
        "ranks": {"type": "array", "items": {"type": "integer"}},
        "gpus": {"type": "array", "items": {"type": "object"}},
        "nics": {"type": "array", "items": {"type": "object"}},
        "leaf": {"type": "string"},
        "mounts": {"type": "array", "items": {"type": "string"}},
    },
}
_JOB = {name: {"type": "string"} for name in ("cluster", "job", "attempt")}
_BUNDLE = {
    "type": "object",
    "required": ["sha256", "size", "chunks"],
    "properties": {"sha256": _SHA, "size": {"type": "integer"}, "chunks": {"type": "array", "items": _SHA}},
}


def _takes(required: list[str], **properties: Any) -> dict[str, Any]:
    """The JSON that a route takes, for OpenAPI: it is parsed by hand, within limits."""
    schema = {"type": "object", "required": required, "properties": properties}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.post("/lacking", openapi_extra=_takes(["sha256"], sha256={"type": "array", "items": _SHA}))
async def lacking(request: Request, access: Pusher) -> dict[str, list[str]]:
    """Which of these blobs does the server not have?"""
    value = await json_body(request)
    asked = list(plain.items(value if isinstance(value, dict) else {}, "sha256", MOST_ASKED))
    if not asked or not all(map(is_sha256, asked)):
        raise InputError("`sha256` is a list of checksums in hexadecimal")

    def look() -> list[str]:
        with request.app.state.database.read() as connection:
            return accept_push.lacking(connection, access.project_id, asked)

    return {"lacking": await run_in_threadpool(look)}


@router.put(
    "/blobs/{sha256}",
    status_code=201,
    openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": {}}}},
)
async def put_blob(sha256: str, request: Request, access: Pusher) -> dict[str, Any]:
    """Send one chunk under its checksum. Sent twice it is the same."""
    if not is_sha256(sha256):
        raise InputError("the name of a blob is its SHA-256 in hexadecimal")
    data = await body(request, CHUNK_BYTES)
    state = request.app.state

    def keep() -> None:
        state.blobs.put(access.project_id, sha256, [data], CHUNK_BYTES)
        accept_push.note_blob(state.database, access.project_id, sha256, len(data))

    await run_in_threadpool(keep)
    return {"sha256": sha256, "size": len(data)}


@router.post(
    "/incidents",
    status_code=202,
    openapi_extra=_takes(
        ["bundle"],
        **_JOB,
        hang={"type": "string"},
        source={"type": "string"},
        captured_at={"type": "number"},
        bundle=_BUNDLE,
    ),
)
async def push_incident(request: Request, access: Pusher) -> JSONResponse:
    """Have a bundle accepted whose chunks are all there. 409 lists the chunks that are not."""
    part = accept_push.parse(await json_body(request), request.app.state.clock())
    database = request.app.state.database
    done = await run_in_threadpool(accept_push.accept, database, access, part)
    if isinstance(done, Lacking):
        return JSONResponse({"lacking": list(done.sha256s)}, status_code=409)
    assert isinstance(done, Accepted)
    request.app.state.wake()
    return JSONResponse({"incident": done.incident, "new": done.is_new}, status_code=202)


@router.post("/jobs", status_code=202, openapi_extra=_takes(["job"], **_JOB, nodes={"type": "array", "items": _NODE}))
async def push_roster(request: Request, access: Pusher) -> dict[str, int]:
    """Which ranks of a job run on which nodes, GPUs and ports, with which image, versions and commit."""
    value = await json_body(request)
    job = await run_in_threadpool(job_rosters.add_roster, request.app.state.database, access.project_id, value)
    return {"job": job}


@router.post("/jobs/end", status_code=202, openapi_extra=_takes(["job"], **_JOB, exit_status={"type": "integer"}))
async def push_end(request: Request, access: Pusher) -> dict[str, int]:
    """The job's command has ended on a node, with this status."""
    value = await json_body(request)
    job = await run_in_threadpool(job_rosters.end_job, request.app.state.database, access.project_id, value)
    return {"job": job}
