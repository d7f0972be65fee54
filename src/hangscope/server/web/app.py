"""The application: routes, and errors in words, in one shape."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException

from hangscope.__about__ import __version__
from hangscope.errors import HangscopeError
from hangscope.server.digest.issue_groups import NoSuchThing
from hangscope.server.history.fleet_history import History
from hangscope.server.intake.budgets import DEFAULT, Budgets, OverBudget
from hangscope.server.intake.job_rosters import TooLarge
from hangscope.server.store.blob_store import BlobError, BlobStore
from hangscope.server.store.database import Database
from hangscope.server.web import admin_routes, feeds, node_routes, pages, push_routes, read_routes
from hangscope.server.web.connections import Networks
from hangscope.server.web.front import Front
from hangscope.server.web.guard import Guard, Refusal
from hangscope.server.web.health import Health, is_full

_OF_DATABASE = (DBAPIError, PoolTimeout)
ROUTED = (push_routes, admin_routes, node_routes, read_routes, feeds, pages)
RETRY_S = {429: "10", 503: "5", 507: "60"}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the application works with. `proxies` are believed what they say of who asks."""

    database: Database
    blobs: BlobStore
    base_url: str = ""
    wake: Callable[[], None] = lambda: None
    """Called when there is something to digest."""
    guard: Guard = field(default_factory=Guard)
    clock: Callable[[], float] = time.time
    health: Health | None = None
    proxies: Networks = ()
    budgets: Budgets | None = DEFAULT


def make_app(settings: Settings) -> Front:
    app = FastAPI(
        title="hangscope",
        version=__version__,
        description="Incidents, rosters and suspects of a fleet.",
        docs_url=None,  # both load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,  # served with a token, by pages.py
    )
    for name in ("database", "blobs", "base_url", "wake", "guard", "clock", "budgets"):
        setattr(app.state, name, getattr(settings, name))
    app.state.rosters = defaultdict(asyncio.Lock)
    app.state.history = History(settings.database)
    app.state.health = settings.health or Health(settings.database)
    app.state.root = urlsplit(settings.base_url).path.rstrip("/")
    for module in ROUTED:
        app.include_router(module.router)
    app.add_exception_handler(HangscopeError, _said)
    app.add_exception_handler(DBAPIError, _database)
    app.add_exception_handler(PoolTimeout, _database)
    app.add_exception_handler(OSError, _disk)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _routed)
    app.add_exception_handler(Exception, _unforeseen)

    def refuse(scope: Any, error: Exception) -> Response:
        scope.setdefault("app", app)
        handle = _said if isinstance(error, HangscopeError) else _database if isinstance(error, _OF_DATABASE) else _disk
        return handle(Request(scope), error)

    return Front(
        app,
        database=settings.database,
        guard=settings.guard,
        health=app.state.health,
        root=app.state.root,
        proxies=settings.proxies,
        refuse=refuse,
    )


def _said(request: Request, error: Exception) -> Response:
    """An error of ours in words: as a page for a browser, else as JSON."""
    assert isinstance(error, HangscopeError)
    return _answer(request, _status(request, error), str(error), error.hint)


def _status(request: Request, error: HangscopeError) -> int:
    if isinstance(error, Refusal | OverBudget):
        return error.status
    if isinstance(error, NoSuchThing) or (isinstance(error, BlobError) and request.method == "GET"):
        return 404
    if isinstance(error, TooLarge):
        return 413
    return 400


def _database(request: Request, error: Exception) -> Response:
    """Away, or full: later again. What it does not take is refused now and later, and sending it again never helps."""
    original = getattr(error, "orig", error)
    what = type(original).__name__
    if is_full(original):
        return _full(request)
    if isinstance(error, PoolTimeout):
        return _answer(request, 503, "the database is busy", "nothing was accepted: send it again")
    if isinstance(error, OperationalError | InterfaceError):
        request.app.state.health.note_gone()
        return _answer(request, 503, f"the database does not answer ({what})", "nothing was accepted: send it again")
    _log(request, error)
    return _answer(request, 422, f"the database does not take it ({what})", "sending it again does not help")


def _disk(request: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    if is_full(error):
        return _full(request)
    _log(request, error)
    what = f"the server's store has a problem: {error.strerror or type(error).__name__}"
    return _answer(request, 503, what, "nothing was accepted: send it again")


def _full(request: Request) -> Response:
    request.app.state.health.note_full()
    return _answer(request, 507, "the server's disk is full", "nothing was accepted: send it again")


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    said = []
    for each in error.errors()[:5]:
        place = ".".join(str(part) for part in each["loc"][1:]) or "the request"
        said.append(f"{place}: {each['msg'][:200]}")
    return _answer(request, 422, "; ".join(said)[:2000], None)


def _routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {404: "there is nothing at this address", 405: "this address does not take that method"}
    answer = _answer(request, error.status_code, words.get(error.status_code, str(error.detail)), None)
    answer.headers.update(error.headers or {})
    if error.status_code == 405:  # the router names those of one route, and an address may have several
        answer.headers["Allow"] = ", ".join(sorted(_methods(request)))
    return answer


def _methods(request: Request) -> set[str]:
    found: set[str] = set()
    for route in (route for module in ROUTED for route in module.router.routes):
        matches = getattr(route, "path_regex", None)
        if matches is not None and matches.match(request.url.path):
            found |= set(getattr(route, "methods", None) or ())
    return found


def _unforeseen(request: Request, error: Exception) -> Response:
    _log(request, error)
    return _answer(request, 500, "the server made a mistake", "its log says more, under this request's number")


def _log(request: Request, error: Exception) -> None:
    """One entry in the server's log, with the number that the answer has. Nothing of the request's content."""
    where = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-4:])
    number = getattr(request.state, "number", "")
    sys.stderr.write(f"request {number}: {request.method} {request.url.path[:200]!r}: {where[:4000]}\n")


def _answer(request: Request, status: int, message: str, hint: str | None) -> Response:
    headers = {"Retry-After": RETRY_S[status]} if status in RETRY_S else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if pages.is_browser(request):
        answer = pages.problem(request, status, message)
        answer.headers.update(headers)
        return answer
    said = {"error": message, "hint": hint, "request": getattr(request.state, "number", None)}
    return JSONResponse(said, status_code=status, headers=headers)
