"""The pages: rendered here, with one style and no script: nothing in them can run, or be fetched from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Query, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from hangscope.__about__ import __version__
from hangscope.diagnosis.verdict import CauseKind
from hangscope.server.intake import plain_values as plain
from hangscope.server.store import access_tokens
from hangscope.server.store.access_tokens import Access
from hangscope.server.web import lists, read_routes
from hangscope.server.web.admin_routes import act_on_issue
from hangscope.server.web.guard import COOKIE, Admin, Number, Reader, Refusal, body, from_our_page
from hangscope.server.web.lists import Before
from hangscope.server.web.page_drawing import ago, moment, time_axis
from hangscope.verdict_words import Outcome, is_trouble

router = APIRouter(include_in_schema=False)
FORM_BYTES = 64 << 10
MONTH_S = 30 * 86400
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
        return _page("login.html", {"next": target}, status=401)
    return _page("problem.html", {"status": status, "message": message}, status=status)


@router.get("/")
def home() -> Response:
    return RedirectResponse("/incidents", status_code=303)


@router.post("/login")
async def login(request: Request) -> Response:
    """Take a token from the form into a cookie that no script reads and no other site can have sent."""
    if not from_our_page(request):
        raise Refusal(403, "a form of another site")
    form = await _form(request)
    token = form.get("token", "").strip()

    def check() -> Access | None:
        with request.app.state.database.read() as connection:
            return access_tokens.check(connection, token)

    target = form.get("next", "/")
    if await run_in_threadpool(check) is None:
        request.app.state.guard.note_failure(request)
        return _page("login.html", {"next": target, "wrong": True}, status=401)
    is_local = target.startswith("/") and not target.startswith(("//", "/\\"))
    answer = RedirectResponse(target if is_local else "/", status_code=303)
    secure = request.url.scheme == "https" or request.app.state.base_url.startswith("https:")
    answer.set_cookie(COOKIE, token, max_age=MONTH_S, httponly=True, samesite="strict", secure=secure, path="/")
    return answer


@router.post("/logout")
def logout(request: Request) -> Response:
    if not from_our_page(request):
        raise Refusal(403, "a form of another site")
    answer = RedirectResponse("/incidents", status_code=303)
    answer.delete_cookie(COOKIE, path="/")
    return answer


@router.get("/incidents")
def incidents(
    request: Request,
    access: Reader,
    q: str = Query("", max_length=400),
    kind: str = Query("", max_length=20),
    outcome: str = Query("", max_length=20),
    state: str = Query("", max_length=20),
    before: float | None = None,
    before_id: Number | None = None,
) -> Response:
    filters = lists.Filters(q, kind, outcome, state, before=Before.of(before, before_id))
    with request.app.state.database.read() as connection:
        found = lists.incidents(connection, access.project_id, filters)
    given = {"q": q, "kind": kind, "outcome": outcome, "state": state}
    # What another version calls a kind may be asked for by its name.
    choices = {name: tuple(dict.fromkeys((*values, given[name] or values[0]))) for name, values in _CHOICES.items()}
    more = _more(found, "happened_at", given)
    return _page("incidents.html", {"incidents": found, "given": given, "choices": choices, "more": more}, access)


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
        history = request.app.state.history.of_job(access.project_id, row["cluster"], row["job"])
    return _page("incident.html", {"incident": row, "history": history}, access)


@router.get("/incidents/{incident_id}/page")
def incident_page(incident_id: Number, request: Request, access: Reader) -> Response:
    return read_routes.page(incident_id, request, access)


@router.get("/issues")
def issues(
    request: Request,
    access: Reader,
    state: str = Query("open", max_length=20),
    before: float | None = None,
    before_id: Number | None = None,
) -> Response:
    asked = "" if state == "all" else state
    with request.app.state.database.read() as connection:
        found = lists.issues(connection, access.project_id, asked, Before.of(before, before_id))
    more = _more(found, "last_seen_at", {"state": state})
    return _page("issues.html", {"issues": found, "state": state, "more": more}, access)


@router.get("/issues/{issue_id}")
def issue(issue_id: Number, request: Request, access: Reader) -> Response:
    with request.app.state.database.read() as connection:
        row = read_routes.found(lists.issue(connection, access.project_id, issue_id), "issue")
        seen = lists.incidents(connection, access.project_id, lists.Filters(issue=row["id"]), lists.MOST)
    axis = time_axis([], [(each["happened_at"], f"/incidents/{each['id']}", each["headline"] or "") for each in seen])
    return _page("issue.html", {"issue": row, "incidents": seen, "axis": axis}, access)


@router.post("/issues/{issue_id}/{action}")
async def change_issue(issue_id: Number, action: str, request: Request, access: Admin) -> Response:
    form: dict[str, Any] = dict(await _form(request))
    for name in ("into", "days"):
        form[name] = int(form[name]) if str(form.get(name, "")).isdigit() else None

    def change() -> dict[str, Any]:
        with request.app.state.database.write() as connection:
            return act_on_issue(connection, access, issue_id, action, form)

    done = await run_in_threadpool(change)
    return RedirectResponse(f"/issues/{done['issue']}", status_code=303)


@router.get("/nodes")
def nodes(
    request: Request,
    access: Reader,
    q: str = Query("", max_length=200),
    before: float | None = None,
    before_id: Number | None = None,
) -> Response:
    with request.app.state.database.read() as connection:
        found = lists.nodes(connection, access.project_id, q, Before.of(before, before_id))
    return _page("nodes.html", {"nodes": found, "q": q, "more": _more(found, "last_seen_at", {"q": q})}, access)


@router.get("/nodes/{name}")
def node(name: str, request: Request, access: Reader) -> Response:
    with request.app.state.database.read() as connection:
        row = read_routes.found(lists.node(connection, access.project_id, plain.clean(name, 200)), "node")
    ran = [(job["started_at"], job["ended_at"], f"/jobs/{job['id']}", job["name"]) for job in row["jobs"]]
    marks = [(each["happened_at"], f"/incidents/{each['id']}", each["headline"] or "") for each in row["incidents"]]
    return _page("node.html", {"node": row, "axis": time_axis(ran, marks)}, access)


@router.get("/suspects")
def suspects(request: Request, access: Reader) -> Response:
    return _page("suspects.html", request.app.state.history.suspects(access.project_id), access)


@router.get("/jobs")
def jobs(request: Request, access: Reader, before: float | None = None, before_id: Number | None = None) -> Response:
    with request.app.state.database.read() as connection:
        found = lists.jobs(connection, access.project_id, Before.of(before, before_id))
    return _page("jobs.html", {"jobs": found, "more": _more(found, "started_at", {})}, access)


@router.get("/jobs/{job_id}")
def job(job_id: Number, request: Request, access: Reader) -> Response:
    with request.app.state.database.read() as connection:
        row = read_routes.found(lists.job(connection, access.project_id, job_id), "job")
    return _page("job.html", {"job": row}, access)


@router.get("/openapi.json")
def openapi(request: Request, _: Reader) -> Response:
    """The API's description."""
    app = request.app
    return JSONResponse(get_openapi(title=app.title, version=app.version, routes=app.routes))


async def _form(request: Request) -> dict[str, str]:
    raw = await body(request, FORM_BYTES)
    found = parse_qs(raw.decode("utf-8", "replace"), max_num_fields=50)
    return {name: values[0] for name, values in found.items()}


def _page(template: str, values: Mapping[str, Any], access: Access | None = None, *, status: int = 200) -> HTMLResponse:
    style = _style()
    text = _templates().get_template(template).render(style=style, version=__version__, access=access, **values)
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
