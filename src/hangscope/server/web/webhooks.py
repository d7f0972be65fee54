"""Webhooks: each new, returning or repeated hang as one signed request, tried again until it is taken.

The signature covers the time and the body, so a request that somebody recorded cannot be sent again later:
``X-Hangscope-Signature: t=SECONDS,v1=HMAC-SHA256(secret, "SECONDS." + body)``. A receiver refuses old times.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Connection, select, update

from hangscope.__about__ import __version__
from hangscope.errors import InputError
from hangscope.server.intake import plain_values as plain
from hangscope.server.store import work_queue
from hangscope.server.store.database import Database
from hangscope.server.store.tables import DELIVERIES, PROJECTS, WEBHOOKS
from hangscope.server.store.work_queue import Lease
from hangscope.server.web import lists
from hangscope.server.web.messages import message

SHAPES = ("json", "slack", "alertmanager")
ATTEMPTS = 8
TIMEOUT_S = 10.0
OLDEST_S = 300.0
"""A receiver that checks signatures refuses what is older."""


@dataclass(frozen=True, slots=True)
class WebhookSender:
    """Delivers what the queue holds. `base_url` is how people reach this server; `private` allows its own network."""

    database: Database
    base_url: str
    private: bool = False

    def work(self, lease: Lease) -> None:
        now = time.time()
        try:
            with self.database.read() as connection:
                row, body = _composed(connection, lease.subject, self.base_url, now)
            problem = "" if row is None else send(row.url, row.secret, body, private=self.private)
        except (ValueError, TypeError, KeyError) as error:  # a message that cannot be made is tried no oftener
            problem = f"{type(error).__name__}: {error}"
        self._note(lease, problem)

    def _note(self, lease: Lease, problem: str) -> None:
        same = DELIVERIES.c.id == lease.subject
        tried = {"attempts": DELIVERIES.c.attempts + 1}
        with self.database.write() as connection:
            if not problem:
                values = {"delivered_at": time.time(), "problem": None, **tried}
                connection.execute(update(DELIVERIES).where(same).values(**values))
            else:
                connection.execute(update(DELIVERIES).where(same).values(problem=plain.clean(problem, 500), **tried))
            if problem and lease.failures + 1 < ATTEMPTS:
                work_queue.put_back(connection, lease)
            else:
                work_queue.finish(connection, lease)


def _composed(connection: Connection, delivery_id: int, base_url: str, now: float) -> tuple[Any, bytes]:
    """The webhook with what it is sent; None where what it is about is gone."""
    row = connection.execute(
        select(DELIVERIES.c.event, DELIVERIES.c.incident_id, DELIVERIES.c.about, WEBHOOKS, PROJECTS.c.name)
        .join(WEBHOOKS, WEBHOOKS.c.id == DELIVERIES.c.webhook_id)
        .join(PROJECTS, PROJECTS.c.id == WEBHOOKS.c.project_id)
        .where(DELIVERIES.c.id == delivery_id)
    ).first()
    if row is None:
        return None, b""
    about = json.loads(row.about)
    incident = issue = None
    incidents: list[dict[str, Any]] = []
    if row.incident_id is not None:
        incident = _incident(connection, row, row.incident_id)
        if incident is None:
            return None, b""
    if "issue" in about:
        issue = lists.issue(connection, row.project_id, about["issue"])
        if issue is None:
            return None, b""
        few = lists.incidents(connection, row.project_id, lists.Filters(issue=issue["id"]), lists.MOST)
        found = [_incident(connection, row, each["id"]) for each in few] if row.shape == "alertmanager" else []
        incidents = [each for each in found if each is not None]
    suspect = {**about["suspect"], "project": row.name} if "suspect" in about else None
    body = message(row.shape, row.event, incident, base_url, suspect=suspect, issue=issue, incidents=incidents, now=now)
    return row, body


def _incident(connection: Connection, row: Any, incident_id: int) -> dict[str, Any] | None:
    found = lists.incident(connection, row.project_id, incident_id)
    return None if found is None else {**found, "project": row.name}


def signature(secret: str, at: int, body: bytes) -> str:
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def is_signed(secret: str, header: str, body: bytes, now: float) -> bool:
    """Whether a request is of whoever has the secret, and of now: what a receiver checks."""
    at = header.partition(",")[0].removeprefix("t=")
    if not at.isdigit() or abs(now - int(at)) > OLDEST_S:
        return False
    return hmac.compare_digest(signature(secret, int(at), body), header)


# ---- sending ---------------------------------------------------------------------------------------------------------


def check_address(url: str) -> str:
    """The host of a webhook's address. Raises where it is none that can be sent to."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except (ValueError, UnicodeError):
        raise InputError(f"`url`: {url[:100]!r} is no address") from None
    if parts.scheme not in ("http", "https") or not host or port == 0 or any(each <= " " for each in url):
        raise InputError("`url` is an http or https address, with a host")
    if parts.username is not None or parts.password is not None:
        raise InputError("`url` holds a user or password: a receiver checks the signature instead")
    return host


def send(url: str, secret: str, body: bytes, *, private: bool, deadline_s: float = TIMEOUT_S) -> str:
    """Post it; returns the problem, empty where it was taken. No redirect is followed. From looking up the name to the
    end of the answer's head it takes `deadline_s` at most, however a receiver lets its answer drip."""
    answer: list[str] = []
    sockets: list[socket.socket] = []

    def work() -> None:
        try:
            answer.append(_send(url, secret, body, private, deadline_s, sockets))
        except (OSError, http.client.HTTPException, ValueError) as error:
            answer.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=work, name="webhook", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if thread.is_alive():
        for connection in sockets:  # wakes whoever reads from it
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        return f"no answer within {deadline_s:g} s"
    return answer[0] if answer else "not sent"


def _send(url: str, secret: str, body: bytes, private: bool, timeout_s: float, sockets: list[socket.socket]) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(host, port, timeout=timeout_s)

    def connect(place: tuple[str, int], timeout: float, *_: object) -> socket.socket:
        made = _connect(place, timeout, private=private)
        sockets.append(made)
        return made

    # http.client has no other way in: what is checked is the address that is connected to, not its name before.
    connection._create_connection = connect  # type: ignore[attr-defined]
    try:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"hangscope/{__version__}",
            "X-Hangscope-Signature": signature(secret, int(time.time()), body),
        }
        path = parts.path or "/"
        connection.request("POST", f"{path}?{parts.query}" if parts.query else path, body, headers)
        status = connection.getresponse().status
        return "" if 200 <= status < 300 else f"answered with status {status}"
    finally:
        connection.close()


def _connect(place: tuple[str, int], timeout: float, *, private: bool) -> socket.socket:
    """A connection to an address of that name, which is looked up once: one that answers differently the next time
    gains nothing. Where one of its addresses is of our own network, none of them is asked."""
    host, port = place
    found = list(dict.fromkeys(str(each[4][0]) for each in socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP)))
    if not private and (not found or any(is_inside(address) for address in found)):
        raise OSError(f"{host} is an address of this network, and the server was not started with --private-webhooks")
    problem: OSError = OSError(f"{host} has no address")
    for address in found:
        try:
            return socket.create_connection((address, port), timeout)
        except OSError as error:
            problem = error
    raise problem


_INSIDE = tuple(
    ipaddress.ip_network(each)
    for each in (
        "168.63.129.16/32",  # Azure's own services, beside every virtual machine
        "192.0.0.0/24",  # of protocols, and Oracle's metadata
        "192.88.99.0/24",  # relays of 6to4
        "fec0::/10",  # sites, before there were unique local addresses
        "64:ff9b:1::/48",  # a network's own NAT64
        "100::/64",  # nowhere
        "2001::/23",  # of protocols
        "5f00::/16",  # segments
    )
)
_EMBEDDING = tuple(
    (ipaddress.IPv6Network(prefix), shift)
    for prefix, shift in (
        ("::/96", 0),  # IPv4-compatible
        ("::ffff:0:0/96", 0),  # IPv4-mapped
        ("::ffff:0:0:0/96", 0),  # SIIT
        ("64:ff9b::/96", 0),  # NAT64
        ("2002::/16", 80),  # 6to4
    )
)
"""Where an IPv6 address holds one of IPv4, and how many bits are behind it."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)


def is_inside(address: str) -> bool:
    """Whether an address is loopback, private, of a cloud's own services, or one of those in the guise of another."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if found.version == 6 and found in _NAT64:  # how a network of IPv6 alone reaches all others
        return any(is_inside(str(each)) for each in _embedded(found))
    if not found.is_global or found.is_multicast or found.is_reserved:
        return True
    if any(found.version == network.version and found in network for network in _INSIDE):
        return True
    return any(is_inside(str(each)) for each in _embedded(found))


def _embedded(found: ipaddress.IPv4Address | ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    if isinstance(found, ipaddress.IPv4Address):
        return
    number = int(found)
    for network, shift in _EMBEDDING:
        if found in network:
            yield ipaddress.IPv4Address(number >> shift & 0xFFFFFFFF)
    if found.teredo is not None:
        yield from found.teredo
    if number >> 32 & 0xFFFFFFFF in _ISATAP:
        yield ipaddress.IPv4Address(number & 0xFFFFFFFF)
