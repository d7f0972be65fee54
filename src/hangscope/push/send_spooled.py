"""Sends what waits in a spool, oldest first, and takes away what the server has accepted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from hangscope.push.server_client import CHUNK_BYTES, Refused, ServerClient, Unreachable, Unwelcome
from hangscope.push.spool import END, INCIDENT, ROSTER, Entry, Spool
from hangscope.safeio.safe_files import open_file

_RESENDS = 3
"""So often a server may say that chunks are gone which it had a moment ago."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of it. `incidents` are their numbers on the server; `left` entries still wait, for the reason
    `problem`; `refused` will never be taken, and lie aside; `others_left` are the servers for which others wait."""

    incidents: tuple[int, ...]
    others: int
    left: int
    problem: str = ""
    refused: int = 0
    others_left: tuple[str, ...] = ()


def send_all(client: ServerClient, spool: Spool, say: Callable[[str], None], moved_from: Sequence[str] = ()) -> Sent:
    """Send everything that waits for this server, or for the addresses that it had before.

    Stops at the first that the server cannot take now; nothing is lost by that."""
    incidents: list[int] = []
    others = 0
    refused = 0
    places = {client.url, *(url.rstrip("/") for url in moved_from)}
    problem = ""
    with spool.locked() as alone:
        if not alone:
            return Sent((), 0, len(spool.entries()), "another process sends from here right now")
        gone = spool.shrink()
        if gone:
            say(f"{spool.folder} is over its bound: the {gone} oldest entries were dropped")
        for entry in _of_server(spool, places):
            try:
                number = _send(client, entry)
            except Refused as error:
                refused += 1
                say(f"not sent: {error}; it is kept in {spool.put_aside(entry, str(error))}")
                continue
            except (Unreachable, Unwelcome, OSError) as error:
                problem = str(error)
                break
            else:
                if number is None:
                    others += 1
                else:
                    incidents.append(number)
            spool.remove(entry)
        left = len(_of_server(spool, places))
        others_left = tuple(sorted({entry.server for entry in spool.entries() if entry.server} - places))
    return Sent(tuple(incidents), others, left, problem, refused, others_left)


def _of_server(spool: Spool, places: set[str]) -> list[Entry]:
    """What waits for this server. What an older hangscope kept names none, and goes to the server that is asked."""
    return [entry for entry in spool.entries() if entry.server is None or entry.server in places]


def _send(client: ServerClient, entry: Entry) -> int | None:
    if entry.kind == ROSTER:
        client.roster(entry.value)
        return None
    if entry.kind == END:
        client.end(entry.value)
        return None
    assert entry.kind == INCIDENT
    assert entry.bundle is not None
    with open_file(entry.bundle, follow=False) as source:
        value = {**entry.value, "bundle": describe(source)}
        for _ in range(_RESENDS):
            _upload(client, source, value["bundle"]["chunks"])
            try:
                return client.incident(value)
            except Unreachable as error:
                if "status 409" not in str(error):
                    raise
        raise Unreachable("the server loses what is sent to it")


def describe(source: IO[bytes]) -> dict[str, Any]:
    """Checksum, size and chunks of a bundle, as a server wants to know them."""
    whole = hashlib.sha256()
    size = 0
    chunks = []
    for piece in _pieces(source):
        whole.update(piece)
        size += len(piece)
        chunks.append(hashlib.sha256(piece).hexdigest())
    return {"sha256": whole.hexdigest(), "size": size, "chunks": chunks}


def _upload(client: ServerClient, source: IO[bytes], chunks: list[str]) -> None:
    """The chunks that the server lacks: after a broken upload those that did not arrive."""
    lacking = set(client.lacking(chunks))
    if not lacking:
        return
    for sha256, piece in zip(chunks, _pieces(source), strict=True):
        if sha256 in lacking:
            client.put(sha256, piece)
            lacking.discard(sha256)


def _pieces(source: IO[bytes]) -> Iterator[bytes]:
    source.seek(0)
    while piece := source.read(CHUNK_BYTES):
        yield piece
