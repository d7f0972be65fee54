"""What agents send: blobs, incidents, rosters, ends. Answered once it is durable; nothing is diagnosed meanwhile."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from hangscope.errors import InputError
from hangscope.server.intake import accept_push, job_rosters
from hangscope.server.intake.accept_push import CHUNK_BYTES, Accepted, Lacking
from hangscope.server.store.blob_store import is_sha256
from hangscope.server.web import answers
from hangscope.server.web.bodies import JobEnd, LackingAsked, PushedIncident, Roster, described, taken
from hangscope.server.web.guard import Pusher, body

router = APIRouter(prefix="/api/v1", tags=["push"], responses=answers.ERRORS)


@router.post("/lacking", openapi_extra=described(LackingAsked), response_model=answers.LackingSaid)
async def lacking(
    request: Request, access: Pusher, asked: Annotated[LackingAsked, taken(LackingAsked, 1 << 20)]
) -> dict[str, list[str]]:
    """Which of these blobs does the server not have?"""

    def look() -> list[str]:
        with request.app.state.database.read() as connection:
            return accept_push.lacking(connection, access.project_id, asked.sha256)

    return {"lacking": await run_in_threadpool(look)}


@router.put(
    "/blobs/{sha256}",
    status_code=201,
    response_model=answers.BlobKept,
    openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": {}}}},
)
async def put_blob(sha256: str, request: Request, access: Pusher) -> dict[str, Any]:
    """Send one chunk under its checksum, of at most 8 MiB. Sent twice it is the same."""
    if not is_sha256(sha256):
        raise InputError("the name of a blob is its SHA-256 in hexadecimal")
    state = request.app.state
    said = request.headers.get("content-length", "0")
    size = min(int(said), CHUNK_BYTES) if said.isdigit() else 0
    await run_in_threadpool(accept_push.check_room, state.database, access.project_id, size, state.budgets)
    data = await body(request, CHUNK_BYTES)

    def keep() -> None:
        accept_push.keep_blob(
            state.database, state.blobs, access.project_id, sha256, [data], CHUNK_BYTES, state.budgets
        )

    await run_in_threadpool(keep)
    return {"sha256": sha256, "size": len(data)}


@router.post(
    "/incidents",
    status_code=202,
    openapi_extra=described(PushedIncident),
    response_model=answers.IncidentAccepted,
    responses={409: {"model": answers.LackingError, "description": "some chunks are not there"}},
)
async def push_incident(
    request: Request, access: Pusher, value: Annotated[PushedIncident, taken(PushedIncident, 1 << 20)]
) -> JSONResponse:
    """Have a bundle accepted whose chunks are all there. 409 lists the chunks that are not."""
    state = request.app.state
    now = state.clock()
    part = accept_push.parse(value.model_dump(), now)
    done = await run_in_threadpool(accept_push.accept, state.database, access, part, now, state.budgets)
    if isinstance(done, Lacking):
        said = {"error": "some chunks are not there", "hint": "send them first", "request": request.state.number}
        return JSONResponse({**said, "lacking": list(done.sha256s)}, status_code=409)
    assert isinstance(done, Accepted)
    state.wake()
    return JSONResponse({"incident": done.incident, "new": done.is_new}, status_code=202)


@router.post("/jobs", status_code=202, openapi_extra=described(Roster), response_model=answers.JobKept)
async def push_roster(request: Request, access: Pusher, value: Annotated[Roster, taken(Roster)]) -> dict[str, int]:
    """Which ranks of a job run on which nodes, GPUs and ports, with which image, versions and commit."""
    state = request.app.state

    def keep() -> int:
        return job_rosters.add_roster(state.database, access.project_id, value.model_dump(), None, state.budgets)

    async with state.rosters[access.project_id]:  # large ones take seconds of the processor: of a project one at a time
        return {"job": await run_in_threadpool(keep)}


@router.post("/jobs/end", status_code=202, openapi_extra=described(JobEnd), response_model=answers.JobKept)
async def push_end(
    request: Request, access: Pusher, value: Annotated[JobEnd, taken(JobEnd, 1 << 16)]
) -> dict[str, int]:
    """The job's command has ended on a node, with this status."""
    database = request.app.state.database
    return {"job": await run_in_threadpool(job_rosters.end_job, database, access.project_id, value.model_dump())}
