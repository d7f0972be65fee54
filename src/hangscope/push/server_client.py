"""The questions that an agent asks a server, over HTTP, each with a deadline."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, urlsplit

from hangscope.__about__ import __version__
from hangscope.errors import HangscopeError, SettingsError
from hangscope.safeio import bounded_json

TIMEOUT_S = 15.0
"""So long a server may be silent."""
SLOWEST = 8 << 10
"""Bytes in a second that go through at least: what is slower than that has stopped."""
CHUNK_BYTES = 8 << 20
"""Of a bundle, each chunk but the last: what a server takes at once."""
_ANSWER_BYTES = 4 << 20


class Unreachable(HangscopeError):
    """The server does not answer, or cannot take anything now: later again."""


class Unknown(Unreachable):
    """The server does not know what was asked."""


class Unwelcome(HangscopeError):
    """The server does not take this token: nothing will go through until it is changed."""


class Refused(HangscopeError):
    """The server refuses what was sent, now and later."""


class ServerClient:
    """Talks to one server. The connection is kept between questions."""

    def __init__(self, url: str, token: str, *, timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError(f"{url!r} is not a server's address", hint="--server https://hangscope.example.org")
        if any(character <= " " for character in token) or not token.isascii():
            raise SettingsError("the token holds blanks or line breaks", hint="it is one word that begins with hs_")
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._path = parts.path.rstrip("/")
        self._token = token
        try:
            port = parts.port
        except ValueError:
            raise SettingsError(f"{url!r}: no such port") from None
        if parts.scheme == "https":
            context = ssl.create_default_context()
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, port, timeout=timeout_s, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname, port, timeout=timeout_s)

    def close(self) -> None:
        self._connection.close()

    def lacking(self, sha256s: Sequence[str]) -> list[str]:
        """Those of these blobs that the server does not have."""
        answer = self._json("POST", "/api/v1/lacking", {"sha256": list(sha256s)})
        found = answer.get("lacking")
        return [each for each in found if each in sha256s] if isinstance(found, list) else list(sha256s)

    def put(self, sha256: str, data: bytes) -> None:
        self._ask("PUT", f"/api/v1/blobs/{sha256}", data, "application/octet-stream")

    def incident(self, value: Mapping[str, Any]) -> int:
        """Have an incident accepted; its number on the server."""
        number = self._json("POST", "/api/v1/incidents", value).get("incident")
        if not isinstance(number, int):
            raise Unreachable(f"{self.url} gave no number to the incident: is it a hangscope server?")
        return number

    def roster(self, value: Mapping[str, Any]) -> None:
        self._json("POST", "/api/v1/jobs", value)

    def end(self, value: Mapping[str, Any]) -> None:
        self._json("POST", "/api/v1/jobs/end", value)

    def suspects(self) -> list[dict[str, Any]]:
        """The suspects, as /api/v1/suspects lists them."""
        found = self._json("GET", "/api/v1/suspects", None).get("suspects")
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    def node(self, name: str, cluster: str = "") -> dict[str, Any]:
        """Whether a node is proposed, as /api/v1/nodes/NAME/check answers. Raises Unknown where a server cannot say."""
        return self._json("GET", f"/api/v1/nodes/{quote(name, safe='')}/check{_of(cluster)}", None)

    def node_file(self, name: str, cluster: str = "") -> dict[str, Any]:
        """What is known of a node."""
        return self._json("GET", f"/api/v1/nodes/{quote(name, safe='')}{_of(cluster)}", None)

    def mark_node(self, name: str, cluster: str, action: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Say that a node was repaired, is not to be suspected, or something about it."""
        return self._json("POST", f"/api/v1/nodes/{quote(name, safe='')}/{action}{_of(cluster)}", value)

    def node_states(self, value: Mapping[str, Any]) -> list[str]:
        """Pass a scheduler's states on; those that count as repaired by that."""
        found = self._json("POST", "/api/v1/nodes/states", value).get("repaired")
        return [str(each) for each in found] if isinstance(found, list) else []

    def history(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """What other jobs say about a hang, as /api/v1/history answers."""
        return self._json("POST", "/api/v1/history", question)

    def _json(self, method: str, path: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
        body = b"" if value is None else json.dumps(value).encode()
        raw = self._ask(method, path, body, "application/json")
        try:
            answer = bounded_json.loads(raw)
        except (ValueError, RecursionError):
            raise Unreachable(f"{self.url} answers, but not as a hangscope server") from None
        return answer if isinstance(answer, dict) else {}

    def _ask(self, method: str, path: str, body: bytes, kind: str) -> bytes:
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": kind,
            "User-Agent": f"hangscope/{__version__}",
        }
        for attempt in (1, 2):  # a connection that was kept may have been closed by the other side meanwhile
            is_new = self._connection.sock is None
            try:
                with self._deadline(self._timeout_s + len(body) / SLOWEST):
                    self._connection.request(method, self._path + path, body, headers)
                    response = self._connection.getresponse()
                    raw = response.read(_ANSWER_BYTES)
                break
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if attempt == 2 or is_new:
                    raise Unreachable(f"{self.url} does not answer: {error}") from None
        if response.will_close or response.length:
            self._connection.close()
        return self._checked(response.status, raw)

    @contextmanager
    def _deadline(self, seconds: float) -> Iterator[None]:
        """Cut the connection after so long: a server that lets its answer trickle is not waited for for ever."""
        late = threading.Event()

        def cut() -> None:
            late.set()
            connection = self._connection.sock
            if connection is not None:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(seconds, cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (OSError, http.client.HTTPException):
            if late.is_set():
                raise TimeoutError(f"no whole answer within {seconds:g} s") from None
            raise
        finally:
            timer.cancel()

    def _checked(self, status: int, raw: bytes) -> bytes:
        if 200 <= status < 300:
            return raw
        said = _said(raw)
        if status in (401, 403):
            raise Unwelcome(f"{self.url} does not take the token: {said}", hint="HANGSCOPE_TOKEN or --token-file")
        if status in (404, 405, 501):
            raise Unknown(
                f"{self.url}: {_said(raw)}"
                if b'"error"' in raw
                else f"{self.url} does not know what was asked: an older server, or none of hangscope"
            )
        if status in (400, 413, 422):
            raise Refused(f"{self.url} refuses it: {said}")
        raise Unreachable(f"{self.url} cannot take it now (status {status}): {said}")


def _of(cluster: str) -> str:
    return f"?cluster={quote(cluster, safe='')}" if cluster else ""


def _said(raw: bytes) -> str:
    try:
        value = json.loads(raw)
        return str(value["error"])[:300] if isinstance(value, dict) and "error" in value else "no reason given"
    except (ValueError, RecursionError):
        return "no reason given"
