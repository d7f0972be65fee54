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
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import select, update

from hangscope.__about__ import __version__
from hangscope.server.store import work_queue
from hangscope.server.store.database import Database
from hangscope.server.store.tables import DELIVERIES, INCIDENTS, WEBHOOKS
from hangscope.server.store.work_queue import Lease
from hangscope.server.web import lists

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
    private: bool = True

    def work(self, lease: Lease) -> None:
        with self.database.read() as connection:
            row = connection.execute(
                select(DELIVERIES.c.event, DELIVERIES.c.incident_id, WEBHOOKS)
                .join(WEBHOOKS, WEBHOOKS.c.id == DELIVERIES.c.webhook_id)
                .where(DELIVERIES.c.id == lease.subject)
            ).first()
            incident = None
            if row is not None:
                project = connection.execute(
                    select(INCIDENTS.c.project_id).where(INCIDENTS.c.id == row.incident_id)
                ).scalar()
                incident = lists.incident(connection, project or 0, row.incident_id)
        if row is None or incident is None:
            problem = ""
        else:
            body = message(row.shape, row.event, incident, self.base_url)
            problem = send(row.url, row.secret, body, private=self.private)
        self._note(lease, problem)

    def _note(self, lease: Lease, problem: str) -> None:
        same = DELIVERIES.c.id == lease.subject
        with self.database.write() as connection:
            if not problem:
                connection.execute(update(DELIVERIES).where(same).values(delivered_at=time.time(), problem=None))
            else:
                connection.execute(update(DELIVERIES).where(same).values(problem=problem[:500]))
            if problem and lease.attempts < ATTEMPTS:
                work_queue.put_back(connection, lease)
            else:
                work_queue.finish(connection, lease)


def message(shape: str, event: str, incident: Mapping[str, Any], base_url: str) -> bytes:
    """The request's body. Labels are what stays the same from hang to hang; job, rank and node are annotations."""
    link = f"{base_url}/incidents/{incident['id']}"
    headline = incident["headline"] or "an incident"
    said = {"new": "new hang", "reopened": "hang is back", "again": "hang again"}.get(event, event)
    if shape == "slack":
        text = f"*{said}*: {_slack(headline)} (job {_slack(incident['job'] or 'unknown')}) <{link}|open>"
        return json.dumps({"text": text}).encode()
    accused = {
        kind: [each["name"] for each in incident["accused"] if each["kind"] == kind] for kind in ("node", "rank")
    }
    if shape == "alertmanager":
        labels = {
            "alertname": "HangscopeIncident",
            "cluster": incident["cluster"] or "",
            "kind": incident["kind"] or "unknown",
            "fingerprint": incident["fingerprint"] or "",
        }
        annotations = {
            "summary": headline,
            "job": incident["job"] or "",
            "nodes": " ".join(accused["node"]),
            "ranks": " ".join(accused["rank"]),
        }
        at = datetime.fromtimestamp(incident["happened_at"], timezone.utc).isoformat()
        return json.dumps(
            [{"labels": labels, "annotations": annotations, "startsAt": at, "generatorURL": link}]
        ).encode()
    value = {"event": event, "url": link, "incident": dict(incident)}
    return json.dumps({"schema": "hangscope.webhook/1", **value}).encode()


def _slack(text: str) -> str:
    """Slack reads these three characters as markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def signature(secret: str, at: int, body: bytes) -> str:
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def is_signed(secret: str, header: str, body: bytes, now: float) -> bool:
    """Whether a request is of whoever has the secret, and of now: what a receiver checks."""
    at = header.partition(",")[0].removeprefix("t=")
    if not at.isdigit() or abs(now - int(at)) > OLDEST_S:
        return False
    return hmac.compare_digest(signature(secret, int(at), body), header)


def send(url: str, secret: str, body: bytes, *, private: bool) -> str:
    """Post it; returns the problem, empty where it was taken. No redirect is followed."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(host, port, timeout=TIMEOUT_S)
        if not private:
            # http.client has no other way in: what is checked is the address that is connected to, not its name before.
            connection._create_connection = _connect_outside  # type: ignore[attr-defined]
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
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def _connect_outside(place: tuple[str, int], timeout: float, *_: object) -> socket.socket:
    """A connection to an address that is neither loopback nor of a private network. The name is looked up once: one
    that answers differently the next time gains nothing."""
    host, port = place
    found = {str(each[4][0]) for each in socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP)}
    if not found or any(is_inside(address) for address in found):
        raise OSError(f"{host} is an address of this network")
    return socket.create_connection((min(found), port), timeout)


def is_inside(address: str) -> bool:
    """Whether an address is loopback, private, or one of those in the guise of another."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else found)
    return not found.is_global or found.is_multicast
