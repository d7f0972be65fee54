"""What every request passes before its route: health, who asks, whose turn it is; and what every answer gets.

Health is answered before all else, from what is known already: no flood, no slow database and no full queue keeps a
probe waiting. A client's address and scheme are those of its connection, unless that is of a proxy that the operator
named: anybody can write `X-Forwarded-For`.
"""

from __future__ import annotations

import json
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hangscope.server.web.connections import Networks, is_among
from hangscope.server.web.guard import Guard, Refusal
from hangscope.server.web.health import Health

HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
}
OPEN = ("/login", "/logout")
"""Routes that find out themselves who asks."""


class Front:
    """The application behind its guard. `root` is the path below which a proxy shows it; with or without it, the same
    is answered."""

    def __init__(
        self, app: ASGIApp, *, database: Any, guard: Guard, health: Health, root: str, proxies: Networks, refuse: Any
    ) -> None:
        self._app = app
        self._database = database
        self._guard = guard
        self._health = health
        self._root = root
        self._proxies = proxies
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if self._root and (path == self._root or path.startswith(f"{self._root}/")):
            path = path[len(self._root) :] or "/"
            scope = {**scope, "path": path, "raw_path": path.encode("utf-8", "surrogateescape")}
        if path in ("/healthz", "/livez") and scope["method"] in ("GET", "HEAD"):
            status, said = await self._health.state() if path == "/healthz" else (200, {"status": "ok"})
            await Response(json.dumps(said), status, media_type="application/json")(scope, receive, send)
            return
        number = secrets.token_hex(8)
        state = scope.setdefault("state", {})
        state.update(access=None, by_cookie=False, number=number)
        headers = Headers(scope=scope)
        self._note_client(scope, headers)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = message.setdefault("headers", [])
                there = {name.lower() for name, _ in given}
                more = {**HEADERS, "x-request-id": number}
                given += [(n.encode(), v.encode()) for n, v in more.items() if n.encode() not in there]
            await send(message)

        try:
            await self._find_access(scope, headers)
        except (Refusal, SQLAlchemyError, OSError) as error:
            await self._refuse(scope, error)(scope, receive, send_with_headers)
            return
        access = state["access"]
        if access is None:
            await self._app(scope, receive, send_with_headers)
            return
        try:
            async with self._guard.turn(access.project_id):
                await self._app(scope, receive, send_with_headers)
        except Refusal as refusal:  # only the turn refuses here: the application answers its own
            await self._refuse(scope, refusal)(scope, receive, send_with_headers)

    def _note_client(self, scope: Scope, headers: Headers) -> None:
        client = scope.get("client")
        if client is None or not is_among(client[0], self._proxies):
            return
        hops = [hop.strip() for hop in ",".join(headers.getlist("x-forwarded-for")).split(",") if hop.strip()]
        for hop in reversed(hops):  # the last that is no proxy of ours is who asked
            scope["client"] = (hop[:100], 0)
            if not is_among(hop, self._proxies):
                break
        if headers.get("x-forwarded-proto", "").strip().lower() == "https":
            scope["scheme"] = "https"

    async def _find_access(self, scope: Scope, headers: Headers) -> None:
        """Whose token or session it is. A browser whose session is over is as one without: it is shown the login."""
        given = headers.get("authorization", "")
        kind, _, token = given.partition(" ")
        token = token.strip() if kind.lower() == "bearer" else ""
        session = "" if given else session_of(headers)
        if not token and not session:
            return
        if scope["path"] in OPEN:
            return
        address = scope["client"][0] if scope.get("client") else ""
        state = scope["state"]
        state["by_cookie"] = not token
        try:
            state["access"] = await self._guard.access(self._database, token, session, headers.get("host", ""), address)
        except Refusal as refusal:
            if refusal.status != 401 or token:
                raise


COOKIE = "hangscope_session"
HOST_COOKIE = f"__Host-{COOKIE}"
"""Over HTTPS, where no proxy shows us below a path: browsers let no other host or port's plain page set it."""


def session_of(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return ""
    for name in (HOST_COOKIE, COOKIE):
        if name in found:
            return found[name].value
    return ""
