"""One look at a server over HTTP, with what the look before remembered in a file that only this user can change."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hangscope.errors import SettingsError
from hangscope.recorder.probe import server_state
from hangscope.recorder.probe.server_metrics import DEFAULTS, Counters, replicas
from hangscope.recorder.probe.server_state import Look, Says
from hangscope.safeio import bounded_json
from hangscope.safeio.safe_files import make_private, read_below, write_below

MOST_BYTES = 16 << 20
_MOST_STATE = 4 << 20


@dataclass(frozen=True, slots=True)
class Question:
    url: str
    threshold_s: float
    answer_s: float
    counters: Counters = DEFAULTS


def probe(question: Question, environ: Mapping[str, str]) -> Look:
    """Fetch, compare, remember. What cannot be remembered is said: without it nothing ever counts as stuck."""
    try:
        text = _fetch(question.url, question.answer_s)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Look(Says.CANNOT_TELL, f"{question.url} does not answer: {str(error) or type(error).__name__}", {})
    found = replicas(text, question.counters)
    if not found:
        return Look(Says.CANNOT_TELL, f"{question.url} has none of the metrics that would tell", {})
    place = _place(environ)
    name = f"{hashlib.sha256(repr(question).encode()).hexdigest()[:32]}.json"
    answer = server_state.look(found, _before(place, name), time.time(), question.threshold_s)
    try:
        make_private(place)
        write_below(place, name, json.dumps(answer.state).encode(), mode=0o600)
    except OSError as error:
        return Look(Says.CANNOT_TELL, f"{place}: {error.strerror or error}; this look cannot be remembered", {})
    return answer


def _place(environ: Mapping[str, str]) -> Path:
    """A directory of this user's alone."""
    base = environ.get("XDG_RUNTIME_DIR") or environ.get("TMPDIR") or "/tmp"
    return Path(base) / f"hangscope-probe-{os.geteuid()}"


def _before(place: Path, name: str) -> Mapping[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        value = bounded_json.loads(read_below(place, name, _MOST_STATE, owner=os.geteuid()))
        return value if isinstance(value, dict) else {}
    return {}


def _fetch(url: str, seconds: float) -> str:
    """The page, within its time and size. No proxy is asked, no redirection followed."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"{url} is not a server's address", hint="write it like http://localhost:8000/metrics")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    until = time.monotonic() + seconds
    connection = kind(parts.hostname, parts.port, timeout=seconds)
    place = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
    late = threading.Timer(seconds, _hang_up, (connection,))  # headers that trickle in have no end of their own
    late.daemon = True
    late.start()
    try:
        connection.request("GET", place, headers={"Accept": "text/plain"})
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            to = answer.headers.get("Location", "")
            raise OSError(f"status {answer.status}" + (f", it redirects to {to[:200]}" if to else ""))
        return _body(answer, connection, until).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        if time.monotonic() >= until:
            raise TimeoutError(f"no whole answer within {seconds:g} s") from error
        raise
    finally:
        late.cancel()
        connection.close()


def _hang_up(connection: http.client.HTTPConnection) -> None:
    with contextlib.suppress(OSError, AttributeError):
        connection.sock.shutdown(socket.SHUT_RDWR)


def _body(answer: http.client.HTTPResponse, connection: http.client.HTTPConnection, until: float) -> bytes:
    found = bytearray()
    while len(found) <= MOST_BYTES:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        if isinstance(connection.sock, socket.socket):
            connection.sock.settimeout(left)
        part = answer.read1(1 << 16)
        if not part:
            return bytes(found)
        found += part
    raise OSError(f"more than {MOST_BYTES >> 20} MiB")
