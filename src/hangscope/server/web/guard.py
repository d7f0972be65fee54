"""Who asks, and for how much: the token or session of a request, its scope, and limits on rate and size.

Programs send `Authorization: Bearer`; a browser has a session in a cookie that no script reads. Nothing but /healthz
answers without one. A flood of wrong tokens costs no look into the database: past so many of one address, only what is
known to open something is looked up.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from hangscope.errors import HangscopeError, InputError
from hangscope.safeio import bounded_json
from hangscope.server.store import access_tokens
from hangscope.server.store.access_tokens import Access
from hangscope.server.store.database import Database

JSON_BYTES = 4 << 20
"""Of a request: the roster of some ten thousand nodes. While JSON is parsed, nothing else in this process runs."""
FAILURES_A_MINUTE = 30
LOOKS_A_MINUTE = 3000
"""Tokens that are looked up in the database although nobody knows them, from all addresses together."""
LATE_LOOKS_A_MINUTE = 300
"""The same of addresses that sent too many wrong ones: a token that was made a moment ago is found nevertheless."""
REQUESTS_A_MINUTE = 6000
PROJECT_REQUESTS_A_MINUTE = 30_000
AT_ONCE = 12
"""Requests of one project that are worked on at a time: the others wait for each other, and not for these."""
QUEUED = 200
SLOWEST = 16 << 10
"""Bytes in a second that a body has to bring on average, after its first seconds."""
FIRST_S = 20.0
FRESH_S = 2.0


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
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def allows(self, who: str, cost: float = 1.0) -> bool:
        now = time.monotonic()
        with self._lock:
            left, at = self._left.pop(who, (float(self._a_minute), now))
            left = min(self._a_minute, left + (now - at) * self._a_minute / 60)
            allowed = left >= cost
            self._left[who] = (left - cost if allowed else left, now)
            while len(self._left) > self._MOST or now - next(iter(self._left.values()))[1] > 60:
                self._left.popitem(last=False)
            return allowed

    def is_over(self, who: str) -> bool:
        """Whether nothing is left, without asking for any."""
        with self._lock:
            left, at = self._left.get(who, (float(self._a_minute), 0.0))
        return left + (time.monotonic() - at) * self._a_minute / 60 < 1.0


class Guard:
    """Finds out who asks. Its limits are those of one server process."""

    def __init__(
        self, requests_a_minute: int = REQUESTS_A_MINUTE, project_requests: int = PROJECT_REQUESTS_A_MINUTE
    ) -> None:
        self._requests = Rate(requests_a_minute)
        self._projects = Rate(project_requests)
        self._failures = Rate(FAILURES_A_MINUTE)
        self._looks = Rate(LOOKS_A_MINUTE)
        self._late_looks = Rate(LATE_LOOKS_A_MINUTE)
        self._found: OrderedDict[tuple[str, str], tuple[float, Access]] = OrderedDict()
        self._known: set[str] = set()
        self._known_at = -1e9
        self._running: dict[int, int] = {}
        self._turns: dict[int, list[asyncio.Future[None]]] = {}

    def forget(self) -> None:
        """A token or session was ended: what was found a moment ago does not count."""
        self._found.clear()
        self._known_at = -1e9

    async def access(self, database: Database, token: str, session: str, host: str, address: str) -> Access:
        """Whose request it is. Raises where it is nobody's."""
        digest = access_tokens.digest_of(token or session)
        place = "" if token else host
        now = time.monotonic()
        at, found = self._found.get((digest, place), (-1e9, None))
        if found is None or now - at > FRESH_S:
            found = await self._look_up(database, token, session, host, digest, address)
            self._found[digest, place] = (now, found)
            while len(self._found) > 5000:
                self._found.popitem(last=False)
        if found.expires_at is not None and found.expires_at < time.time():
            raise Refusal(401, "the token has run out", hint=_HINT)
        if not self._requests.allows(str(found.token_id)) or not self._projects.allows(str(found.project_id)):
            raise Refusal(429, "too many requests with this token, or of its project; wait a moment")
        return found

    async def _look_up(
        self, database: Database, token: str, session: str, host: str, digest: str, address: str
    ) -> Access:
        if self._failures.is_over(address) or not self._looks.allows(""):
            if time.monotonic() - self._known_at > FRESH_S:
                self._known_at = time.monotonic()  # first, so that of many at once one looks
                self._known = await run_in_threadpool(_known, database)
            if digest not in self._known and not self._late_looks.allows(""):
                raise Refusal(429, _TOO_MANY)
        found = await run_in_threadpool(_check, database, token, session, host)
        if found is None:
            self.note_failure(address)
            raise Refusal(401, "a valid token is needed", hint=_HINT)
        return found

    def note_failure(self, address: str) -> None:
        """Somebody sent a token that is none: so many of those a minute from one address, and not more."""
        if not self._failures.allows(address):
            raise Refusal(429, _TOO_MANY)

    @asynccontextmanager
    async def turn(self, project_id: int) -> AsyncIterator[None]:
        """Of one project a few requests at a time, in the order in which they came."""
        queue = self._turns.setdefault(project_id, [])
        if self._running.get(project_id, 0) >= AT_ONCE:
            if len(queue) >= QUEUED:
                raise Refusal(429, "too many requests of this project at once; wait a moment")
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            queue.append(mine)
            try:
                await mine  # whoever is through hands its place on
            except asyncio.CancelledError:
                if mine in queue:
                    queue.remove(mine)
                elif mine.done() and not mine.cancelled():
                    self._hand_on(project_id)
                raise
        else:
            self._running[project_id] = self._running.get(project_id, 0) + 1
        try:
            yield
        finally:
            self._hand_on(project_id)

    def _hand_on(self, project_id: int) -> None:
        queue = self._turns.get(project_id, [])
        while queue:
            following = queue.pop(0)
            if not following.done():
                following.set_result(None)
                return
        self._running[project_id] -= 1
        if not self._running[project_id]:
            del self._running[project_id]
            self._turns.pop(project_id, None)


_HINT = "Authorization: Bearer hs_…"
_TOO_MANY = "too many requests without a valid token from this address; wait a minute"


def _known(database: Database) -> set[str]:
    with database.read() as connection:
        return access_tokens.known_digests(connection)


def _check(database: Database, token: str, session: str, host: str) -> Access | None:
    with database.read() as connection:
        if token:
            return access_tokens.check(connection, token)
        return access_tokens.check_session(connection, session, host)


# ---- parameters of a route: the access of whoever asks, who must have that scope -------------------------------------


def _needs(scope: str) -> Any:
    async def find(request: Request) -> Access:
        access: Access | None = getattr(request.state, "access", None)
        if access is None:
            raise Refusal(401, "a valid token is needed", hint=_HINT)
        if request.state.by_cookie and request.method not in ("GET", "HEAD") and not from_our_page(request):
            raise Refusal(403, "a form of another site")
        if not access.may(scope):
            raise Refusal(403, f"the token {access.name!r} has no scope {scope!r}")
        _check_parameters(request)
        return access

    return Depends(find)


Number = Annotated[int, Field(ge=0, lt=1 << 31)]
"""Of a row: no database has more."""
Pusher = Annotated[Access, _needs(access_tokens.PUSH)]
Reader = Annotated[Access, _needs(access_tokens.READ)]
Triager = Annotated[Access, _needs(access_tokens.TRIAGE)]
Admin = Annotated[Access, _needs(access_tokens.ADMIN)]


def _check_parameters(request: Request) -> None:
    """What a route does not know is refused: a filter that was misspelt would find everything."""
    if not request.url.query:
        return
    route = request.scope.get("route")
    dependant = getattr(route, "dependant", None)
    if dependant is None:
        return
    known = {each.alias for each in dependant.query_params}
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        said = ", ".join(repr(name[:60]) for name in unknown[:5])
        raise Refusal(
            422, f"there is no parameter {said} here", hint=f"there are: {', '.join(sorted(known)) or 'none'}"
        )


def from_our_page(request: Request) -> bool:
    """Whether the page that sent a form is ours: browsers say so in Sec-Fetch-Site, and older ones in Origin."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc == request.headers.get("host")


# ---- bodies ----------------------------------------------------------------------------------------------------------


async def body(request: Request, most: int) -> bytes:
    """The request's body, as long as it is no longer than `most`, whatever its headers say, and comes in time."""
    said = request.headers.get("content-length", "0")
    if said.isdigit() and int(said) > most:
        raise Refusal(413, f"more than {most:,} bytes")
    found = bytearray()
    pieces = request.stream().__aiter__()
    began = time.monotonic()
    while True:
        left = FIRST_S + len(found) / SLOWEST - (time.monotonic() - began)
        try:
            piece = await asyncio.wait_for(pieces.__anext__(), max(0.0, left))
        except StopAsyncIteration:
            return bytes(found)
        except (asyncio.TimeoutError, TimeoutError):
            raise Refusal(408, "the body came too slowly") from None
        found += piece
        if len(found) > most:
            raise Refusal(413, f"more than {most:,} bytes")


async def json_body(request: Request, most: int = JSON_BYTES) -> Any:
    """The body as JSON, parsed beside the event loop."""
    raw = await body(request, most)
    try:
        return await run_in_threadpool(bounded_json.loads, raw) if len(raw) > 1 << 14 else bounded_json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from None
