"""What people and schedulers say of machines: repaired, dismissed, a note; taken out, and back."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from hangscope.server.history import marks
from hangscope.server.history.places import DISMISSED
from hangscope.server.intake import plain_values as plain
from hangscope.server.intake.entities import PLACES
from hangscope.server.store.access_tokens import Access
from hangscope.server.store.audit_log import write_down
from hangscope.server.web import answers
from hangscope.server.web.bodies import NodeChange, NodeStates, SuspectDismissed, described, taken
from hangscope.server.web.guard import Triager
from hangscope.server.web.read_routes import Cluster

router = APIRouter(prefix="/api/v1", tags=["triage"], responses=answers.ERRORS)
NodeAction = Literal["repaired", "dismiss", "note"]


def act_on_node(
    connection: Connection, access: Access, name: str, cluster: str | None, action: str, value: NodeChange
) -> dict[str, Any]:
    now = time.time()
    node = marks.find_node(connection, access.project_id, plain.clean(name, 200), cluster)
    at = now if value.at is None else value.at
    marks.add(connection, access.project_id, node.id, marks.ACTIONS[action], access.name, value.note, at, now)
    write_down(connection, access, f"node {action}", f"{node.name} {node.cluster}".strip())
    return {"node": node.name, "cluster": node.cluster, "what": action}


@router.post("/nodes/states", openapi_extra=described(NodeStates), response_model=answers.StatesNoted)
async def node_states(
    request: Request, access: Triager, value: Annotated[NodeStates, taken(NodeStates)]
) -> dict[str, list[str]]:
    """What a scheduler says of its nodes: one that was taken out and is back counts as repaired."""
    said = [(each.node, each.taken_out) for each in value.nodes]

    def work() -> list[str]:
        with request.app.state.database.write() as connection:
            back = marks.note_states(connection, access.project_id, value.cluster, said, value.source, time.time())
            for node in back:
                write_down(connection, access, "node repaired", f"{node} {value.cluster}".strip())
            return back

    return {"repaired": await run_in_threadpool(work)}


@router.post(
    "/nodes/{name}/{action}", openapi_extra=described(NodeChange, optional=True), response_model=answers.NodeMarked
)
async def change_node(
    name: str,
    action: NodeAction,
    request: Request,
    access: Triager,
    value: Annotated[NodeChange, taken(NodeChange, 1 << 16, optional=True)],
    cluster: Cluster | None = None,
) -> dict[str, Any]:
    """repaired: from then on it counts as another machine. dismiss: the verdicts until now were wrong about it. note:
    for those who look later."""

    def work() -> dict[str, Any]:
        with request.app.state.database.write() as connection:
            return act_on_node(connection, access, name, cluster, action, value)

    return await run_in_threadpool(work)


@router.post("/suspects/dismiss", openapi_extra=described(SuspectDismissed), response_model=answers.NodeMarked)
async def dismiss(
    request: Request, access: Triager, value: Annotated[SuspectDismissed, taken(SuspectDismissed, 1 << 16)]
) -> dict[str, Any]:
    """The verdicts until now were wrong about this: a node, a GPU, a port, a link, a switch, a commit or an image."""
    now = time.time()

    def work() -> dict[str, Any]:
        with request.app.state.database.write() as connection:
            cluster = value.cluster if value.kind in PLACES else None
            found = marks.find(connection, access.project_id, value.kind, value.name, cluster)
            marks.add(connection, access.project_id, found.id, DISMISSED, access.name, value.note, now, now)
            write_down(connection, access, f"dismiss {value.kind}", found.name)
            return {"node": found.name, "cluster": found.cluster, "what": "dismiss"}

    return await run_in_threadpool(work)
