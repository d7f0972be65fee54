"""The application: routes, errors in words, and headers that keep pages from doing anything but showing."""

from __future__ import annotations

import errno
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from hangscope.__about__ import __version__
from hangscope.errors import HangscopeError
from hangscope.server.history.fleet_history import History
from hangscope.server.store.blob_store import BlobError, BlobStore
from hangscope.server.store.database import Database
from hangscope.server.web import admin_routes, feeds, pages, push_routes, read_routes
from hangscope.server.web.guard import Guard, Refusal

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the application works with."""

    database: Database
    blobs: BlobStore
    base_url: str = ""
    wake: Callable[[], None] = lambda: None
    """Called when there is something to digest."""
    guard: Guard = field(default_factory=Guard)
    clock: Callable[[], float] = time.time


def make_app(settings: Settings) -> FastAPI:
    app = FastAPI(
        title="hangscope",
        version=__version__,
        description="Incidents, rosters and suspects of a fleet.",
        docs_url=None,  # both load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,  # served with a token, by pages.py
    )
    for name in ("database", "blobs", "base_url", "wake", "guard", "clock"):
        setattr(app.state, name, getattr(settings, name))
    app.state.history = History(settings.database)
    for module in (push_routes, admin_routes, read_routes, feeds, pages):
        app.include_router(module.router)
    app.middleware("http")(_with_headers)
    app.add_exception_handler(HangscopeError, _said)
    app.add_exception_handler(DBAPIError, _database_gone)
    app.add_exception_handler(PoolTimeout, _database_gone)
    app.add_exception_handler(OSError, _disk)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_api_route("/healthz", healthz, include_in_schema=False)
    return app


def healthz(request: Request) -> Response:
    """Whether the database answers; says nothing else, because it needs no token."""
    with request.app.state.database.read() as connection:
        connection.execute(text("SELECT 1"))
    return JSONResponse({"status": "ok"})


async def _with_headers(request: Request, following: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await following(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Content-Security-Policy", POLICY)
    return response


def _said(request: Request, error: Exception) -> Response:
    """An error of ours in words: as a page for a browser, else as JSON."""
    assert isinstance(error, HangscopeError)
    status = error.status if isinstance(error, Refusal) else 404 if _is_missing(request, error) else 400
    if pages.is_browser(request):
        return pages.problem(request, status, str(error))
    return _answer(status, str(error), error.hint)


def _is_missing(request: Request, error: HangscopeError) -> bool:
    return isinstance(error, BlobError) and request.method == "GET"


def _database_gone(_: Request, error: Exception) -> Response:
    what = type(getattr(error, "orig", error)).__name__
    return _answer(503, f"the database does not answer ({what})", "nothing was accepted: send it again", retry=True)


def _disk(_: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "the server's disk is full" if full else f"the server's store has a problem: {error.strerror or error}"
    return _answer(507 if full else 503, what, "nothing was accepted: send it again", retry=True)


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    places = ", ".join(".".join(map(str, each["loc"][1:])) or "the request" for each in error.errors()[:5])
    if pages.is_browser(request):
        return pages.problem(request, 422, f"{places}: not a value that can be used")
    return _answer(422, f"{places}: not a value that can be used", None)


def _answer(status: int, message: str, hint: str | None, *, retry: bool = False) -> Response:
    headers = {"Retry-After": "5"} if retry or status == 429 else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": message, "hint": hint}, status_code=status, headers=headers)
