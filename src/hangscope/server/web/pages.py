"""The pages: rendered here, with one style and no script: nothing in them can run, or be fetched from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

from fastapi import APIRouter, Query, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from pydantic.json_schema import models_json_schema
from starlette.concurrency import run_in_threadpool

from hangscope.__about__ import __version__
from hangscope.diagnosis.verdict import CauseKind
from hangscope.server.history import marks
from hangscope.server.history.places import NOTE
from hangscope.server.intake import plain_values as plain
from hangscope.server.store import access_tokens
from hangscope.server.store.access_tokens import Access
from hangscope.server.store.audit_log import write_down
from hangscope.server.web import lists, read_routes
from hangscope.server.web.admin_routes import Action, act_on_issue
from hangscope.server.web.bodies import MODELS, IssueChange, NodeChange, checked
from hangscope.server.web.front import COOKIE, HOST_COOKIE, session_of
from hangscope.server.web.guard import Number, Reader, Refusal, Triager, body, from_our_page
from hangscope.server.web.lists import Before
from hangscope.server.web.node_routes import NodeAction, act_on_node
from hangscope.server.web.overview import overview
from hangscope.server.web.page_drawing import ago, moment, time_axis
from hangscope.verdict_words import Outcome, is_trouble

router = APIRouter(include_in_schema=False)
FORM_BYTES = 64 << 10
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "kind": tuple(str(kind) for kind in CauseKind),
    "outcome": tuple(str(outcome) for outcome in Outcome),
    "state": ("accepted", "digested", "failed"),
}


def is_browser(request: Request) -> bool:
    return not request.url.path.startswith("/api/") and "text/html" in request.headers.get("accept", "")


def problem(request: Request, status: int, message: str) -> Response:
    """An error as a page; without a token, the form that takes one."""
    if status == 401:
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return _page(request, "login.html", {"next": target}, status=401)
    return _page(request, "problem.html", {"status": status, "message": message}, status=status)


def _to(request: Request, path: str) -> RedirectResponse:
    """On to another page of ours, also below a path that a proxy gave us."""
    return RedirectResponse(f"{_root(request)}{path}", status_code=303)


def _root(request: Request) -> str:
    root: str = request.app.state.root
    return root


@router.get("/")
def home(request: Request, access: Reader) -> Response:
    """How the fleet is doing; where nothing was sent yet, how to send the first."""
    with request.app.state.database.read() as connection:
        found = overview(connection, access.project_id, time.time())
    suspects = [each for each in request.app.state.history.suspects(access.project_id)["suspects"] if each["proposed"]]
    shown = {**found, "suspects": suspects, "url": request.app.state.base_url or "http://this-server"}
    return _page(request, "overview.html", shown, access)


@router.post("/login")
async def login(request: Request) -> Response:
    """Take a token from the form, and give the browser a session in its place: random, of this host, revocable. Links
    from elsewhere (a message in Slack) find it; nothing that changes anything is done for a form of another site."""
    if not from_our_page(request):
        raise Refusal(403, "a form of another site")
    state = request.app.state
    form = await _form(request)
    host = request.headers.get("host", "")
    address = request.client.host if request.client else ""
    target = form.get("next", "/")
    try:
        access = await state.guard.access(state.database, form.get("token", "").strip() or "-", "", "", address)
    except Refusal as refusal:
        if refusal.status != 401:
            raise
        return _page(request, "login.html", {"next": target, "wrong": True}, status=401)

    def open_session() -> str:
        with state.database.write() as connection:
            write_down(connection, access, "log in", host[:200])
            return access_tokens.open_session(connection, access, host)

    value = await run_in_threadpool(open_session)
    is_local = target.startswith("/") and not target.startswith(("//", "/\\"))
    answer = _to(request, target if is_local else "/")
    secure = request.url.scheme == "https" or state.base_url.startswith("https:")
    name = HOST_COOKIE if secure and not state.root else COOKIE
    answer.set_cookie(
        name,
        value,
        max_age=int(access_tokens.SESSION_S),
        httponly=True,
        samesite="lax",
        secure=secure,
        path=state.root or "/",
    )
    return answer


@router.post("/logout")
async def logout(request: Request) -> Response:
    """The session opens nothing any more, also for whoever copied it."""
    if not from_our_page(request):
        raise Refusal(403, "a form of another site")
    state = request.app.state
    value = session_of(request.headers)

    def close() -> None:
        with state.database.write() as connection:
            access_tokens.close_session(connection, value)

    if value:
        await run_in_threadpool(close)
        state.guard.forget()
    answer = _to(request, "/incidents")
    for name in (COOKIE, HOST_COOKIE):
        answer.delete_cookie(name, path=state.root or "/", secure=name == HOST_COOKIE)
    return answer


@router.get("/incidents")
def incidents(
    request: Request,
    access: Reader,
    q: str = Query("", max_length=400),
    kind: str = Query("", max_length=20),
    outcome: str = Query("", max_length=20),
    state: str = Query("", max_length=20),
    cluster: str = Query("", max_length=200),
    node: str = Query("", max_length=200),
    issue: Number | None = None,
    before: read_routes.Moment | None = None,
    before_id: Number | None = None,
) -> Response:
    filters = lists.Filters(q, kind, outcome, state, node, issue, Before.of(before, before_id), cluster)
    with request.app.state.database.read() as connection:
        found = lists.incidents(connection, access.project_id, filters)
    given = {"q": q, "kind": kind, "outcome": outcome, "state": state}
    # What another version calls a kind may be asked for by its name.
    choices = {name: tuple(dict.fromkeys((*values, given[name] or values[0]))) for name, values in _CHOICES.items()}
    beside = {"cluster": cluster, "node": node, "issue": "" if issue is None else str(issue)}
    more = _more(found, "happened_at", {**given, **beside})
    given = {**given, **beside}
    return _page(
        request, "incidents.html", {"incidents": found, "given": given, "choices": choices, "more": more}, access
    )


def _more(found: Sequence[Mapping[str, Any]], at: str, given: Mapping[str, str]) -> str:
    """The question for what follows a full page; empty where this was all."""
    if len(found) < lists.PAGE:
        return ""
    last = {"before": repr(found[-1][at]), "before_id": found[-1]["id"]}
    return urlencode({**{name: value for name, value in given.items() if value}, **last})


@router.get("/incidents/{incident_id}")
def incident(incident_id: Number, request: Request, access: Reader) -> Response:
    with request.app.state.database.read() as connection:
        row = read_routes.found(lists.incident(connection, access.project_id, incident_id), "incident")
    history = None
    if row["job"] and is_trouble(row["outcome"]):
        history = request.app.state.history.of_incident(access.project_id, incident_id)
    return _page(request, "incident.html", {"incident": row, "history": history}, access)


@router.get("/incidents/{incident_id}/page")
def incident_page(incident_id: Number, request: Request, access: Reader) -> Response:
    return read_routes.page(incident_id, request, access)


@router.get("/issues")
def issues(
    request: Request,
    access: Reader,
    state: str = Query("open", max_length=20),
    before: read_routes.Moment | None = None,
    before_id: Number | None = None,
) -> Response:
    asked = "" if state == "all" else state
    with request.app.state.database.read() as connection:
        found = lists.issues(connection, access.project_id, asked, Before.of(before, before_id))
    more = _more(found, "last_seen_at", {"state": state})
    return _page(request, "issues.html", {"issues": found, "state": state, "more": more}, access)


@router.get("/issues/{issue_id}")
def issue(issue_id: Number, request: Request, access: Reader) -> Response:
    with request.app.state.database.read() as connection:
        row = read_routes.found(lists.issue(connection, access.project_id, issue_id), "issue")
        seen = lists.incidents(connection, access.project_id, lists.Filters(issue=row["id"]), lists.MOST)
    axis = time_axis(
        [], [(each["happened_at"], f"{_root(request)}/incidents/{each['id']}", each["headline"] or "") for each in seen]
    )
    return _page(request, "issue.html", {"issue": row, "incidents": seen, "axis": axis}, access)


@router.post("/issues/{issue_id}/{action}")
async def change_issue(issue_id: Number, action: Action, request: Request, access: Triager) -> Response:
    form: dict[str, Any] = dict(await _form(request))
    for name in ("into", "days"):
        said = str(form.get(name, "")).strip()
        form[name] = int(said) if said.isascii() and said.isdigit() and len(said) < 12 else said or None
    change = checked(IssueChange, form)

    def work() -> dict[str, Any]:
        with request.app.state.database.write() as connection:
            return act_on_issue(connection, access, issue_id, action, change)

    done = await run_in_threadpool(work)
    return _to(request, f"/issues/{done['issue']}")


@router.get("/nodes")
def nodes(
    request: Request,
    access: Reader,
    q: str = Query("", max_length=200),
    before: read_routes.Moment | None = None,
    before_id: Number | None = None,
) -> Response:
    with request.app.state.database.read() as connection:
        found = lists.nodes(connection, access.project_id, q, Before.of(before, before_id))
    return _page(
        request, "nodes.html", {"nodes": found, "q": q, "more": _more(found, "last_seen_at", {"q": q})}, access
    )


@router.get("/nodes/{name:path}")
def node(name: str, request: Request, access: Reader, cluster: read_routes.Cluster | None = None) -> Response:
    name = plain.clean(name, 200)
    with request.app.state.database.read() as connection:
        same = marks.named(connection, access.project_id, "node", name)
        if cluster is None and len(same) > 1:
            clusters = [each.cluster for each in same]
            return _page(request, "which_node.html", {"name": name, "clusters": clusters}, access)
        row = lists.node(connection, access.project_id, name, cluster)
    suspect = read_routes.suspect_of(request, access, row)
    ran = [
        (job["started_at"], job["ended_at"], f"{_root(request)}/jobs/{job['id']}", job["name"]) for job in row["jobs"]
    ]
    hung = [
        (each["happened_at"], f"{_root(request)}/incidents/{each['id']}", each["headline"] or "")
        for each in row["incidents"]
    ]
    noted = [(each["at"], each["what"]) for each in row["marks"] if each["what"] != NOTE]
    axis = time_axis(ran, hung, noted)
    return _page(request, "node.html", {"node": row, "axis": axis, "suspect": suspect}, access)


@router.post("/nodes/{name}/{action}")
async def change_node(
    name: str,
    action: NodeAction,
    request: Request,
    access: Triager,
    cluster: read_routes.Cluster | None = None,
) -> Response:
    change = checked(NodeChange, {"note": (await _form(request)).get("note", "")})

    def work() -> dict[str, Any]:
        with request.app.state.database.write() as connection:
            return act_on_node(connection, access, name, cluster, action, change)

    done = await run_in_threadpool(work)
    of = f"?{urlencode({'cluster': done['cluster']})}" if done["cluster"] else ""
    return _to(request, f"/nodes/{quote(done['node'], safe='')}{of}")


@router.get("/suspects")
def suspects(request: Request, access: Reader) -> Response:
    found = request.app.state.history.suspects(access.project_id)
    listed = found["suspects"]
    values = {
        "proposed": [each for each in listed if each["proposed"]],
        "watched": [each for each in listed if each.get("watched")],
        "named": len(listed),
    }
    return _page(request, "suspects.html", {**found, **values}, access)


@router.get("/jobs")
def jobs(
    request: Request, access: Reader, before: read_routes.Moment | None = None, before_id: Number | None = None
) -> Response:
    with request.app.state.database.read() as connection:
        found = lists.jobs(connection, access.project_id, Before.of(before, before_id))
    return _page(request, "jobs.html", {"jobs": found, "more": _more(found, "started_at", {})}, access)


@router.get("/jobs/{job_id}")
def job(job_id: Number, request: Request, access: Reader) -> Response:
    with request.app.state.database.read() as connection:
        row = read_routes.found(lists.job(connection, access.project_id, job_id), "job")
    return _page(request, "job.html", {"job": row}, access)


@router.get("/openapi.json")
def openapi(request: Request, _: Reader) -> Response:
    """The API's description."""
    return JSONResponse(described_api(request.app))


def described_api(app: Any) -> dict[str, Any]:
    """OpenAPI, with what a route reads by itself, and how a token is given."""
    found = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        servers=[{"url": app.state.base_url}] if app.state.base_url else None,
    )
    components = found.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    _, bodies = models_json_schema([(model, "validation") for model in MODELS], ref_template=_REF)
    schemas.update(bodies.get("$defs", {}))
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "description": "hs_…"}}
    found["security"] = [{"token": []}]
    return found


_REF = "#/components/schemas/{model}"


async def _form(request: Request) -> dict[str, str]:
    raw = await body(request, FORM_BYTES)
    found = parse_qs(raw.decode("utf-8", "replace"), max_num_fields=50)
    return {name: values[0] for name, values in found.items()}


def _page(
    request: Request, template: str, values: Mapping[str, Any], access: Access | None = None, *, status: int = 200
) -> HTMLResponse:
    style = _style()
    shown = {"style": style, "version": __version__, "access": access, "root": request.app.state.root}
    text = _templates().get_template(template).render(**shown, **values)
    checksum = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; style-src 'sha256-{checksum}'; img-src data:; frame-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    )
    return HTMLResponse(text, status_code=status, headers={"Content-Security-Policy": policy})


@cache
def _style() -> str:
    """The look of the incident's page, and what is only here."""
    shared = resources.files("hangscope.report.page").joinpath("page.css").read_text(encoding="utf-8")
    own = resources.files("hangscope.server.web").joinpath("templates/server.css").read_text(encoding="utf-8")
    return shared + own


@cache
def _templates() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("hangscope.server.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["moment"] = moment
    environment.filters["ago"] = ago
    return environment
