"""Who asks, and for how much: the token of a request, its scope, and limits on rate and size.

Programs send `Authorization: Bearer`; a browser has the token in a cookie that no script reads and that no other site
can have sent. Nothing but /healthz answers without one.
"""

from __future__ import annotations

import threading
import time
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Request
from pydantic import Field

from hangscope.errors import HangscopeError, InputError
from hangscope.safeio import bounded_json
from hangscope.server.store import access_tokens
from hangscope.server.store.access_tokens import Access

COOKIE = "hangscope"
JSON_BYTES = 16 << 20
"""Of a request: the roster of twenty thousand nodes."""
FAILURES_A_MINUTE = 30
REQUESTS_A_MINUTE = 6000


class Refusal(HangscopeError):
    """A request that is not answered, with the HTTP status that says why."""

    def __init__(self, status: int, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class Rate:
    """At most so many a minute for each of whoever asks. Forgets who has not asked for a minute."""

    _MOST = 10_000

    def __init__(self, a_minute: int) -> None:
        self._a_minute = a_minute
        self._left: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def allows(self, who: str, cost: float = 1.0) -> bool:
        now = time.monotonic()
        with self._lock:
            if len(self._left) > self._MOST:
                self._left = {key: (left, at) for key, (left, at) in self._left.items() if now - at < 60}
            left, at = self._left.get(who, (float(self._a_minute), now))
            left = min(self._a_minute, left + (now - at) * self._a_minute / 60)
            allowed = left >= cost
            self._left[who] = (left - cost if allowed else left, now)
            return allowed


class Guard:
    """Finds out who asks. `requests` and `failures` are the limits of one server process."""

    def __init__(self, requests_a_minute: int = REQUESTS_A_MINUTE) -> None:
        self._requests = Rate(requests_a_minute)
        self._failures = Rate(FAILURES_A_MINUTE)

    def access(self, request: Request, scope: str) -> Access:
        token, by_cookie = _token(request)
        with request.app.state.database.read() as connection:
            access = access_tokens.check(connection, token) if token else None
        if access is None:
            if token:
                self.note_failure(request)
            raise Refusal(401, "a valid token is needed", hint="Authorization: Bearer hs_…")
        if by_cookie and request.method not in ("GET", "HEAD") and not from_our_page(request):
            raise Refusal(403, "a form of another site")
        if not access.may(scope):
            raise Refusal(403, f"the token {access.name!r} has no scope {scope!r}")
        if not self._requests.allows(str(access.token_id)):
            raise Refusal(429, "too many requests with this token; wait a moment")
        return access

    def note_failure(self, request: Request) -> None:
        """Somebody sent a token that is none: so many of those a minute from one address, and not more."""
        if not self._failures.allows(request.client.host if request.client else ""):
            raise Refusal(429, "too many requests without a valid token; wait a minute")


def _needs(scope: str) -> Any:
    def find(request: Request) -> Access:
        guard: Guard = request.app.state.guard
        return guard.access(request, scope)

    return Depends(find)


Number = Annotated[int, Field(ge=0, lt=1 << 31)]
"""Of a row: no database has more."""
Pusher = Annotated[Access, _needs(access_tokens.PUSH)]
Reader = Annotated[Access, _needs(access_tokens.READ)]
Admin = Annotated[Access, _needs(access_tokens.ADMIN)]
"""Parameters of a route: the access of whoever asks, who must have that scope."""


def _token(request: Request) -> tuple[str, bool]:
    """The token, and whether a cookie brought it."""
    given = request.headers.get("authorization", "")
    kind, _, token = given.partition(" ")
    if given:
        return (token.strip() if kind.lower() == "bearer" else ""), False
    return request.cookies.get(COOKIE, ""), True


def from_our_page(request: Request) -> bool:
    """Whether the page that sent a form is ours: browsers say so in Sec-Fetch-Site, and older ones in Origin."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc == request.headers.get("host")


async def body(request: Request, most: int) -> bytes:
    """The request's body, as long as it is no longer than `most`, whatever its headers say."""
    said = request.headers.get("content-length", "0")
    if said.isdigit() and int(said) > most:
        raise Refusal(413, f"more than {most:,} bytes")
    found = bytearray()
    async for piece in request.stream():
        found += piece
        if len(found) > most:
            raise Refusal(413, f"more than {most:,} bytes")
    return bytes(found)


async def json_body(request: Request) -> Any:
    raw = await body(request, JSON_BYTES)
    try:
        return bounded_json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from None
