"""Pushes for tests of the server: bundles of recorded incidents, and what an agent says with them."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import uvicorn
from sqlalchemy import insert

from hangscope.bundle.pack import write_bundle
from hangscope.server.intake.accept_push import Accepted, accept, keep_blob, parse
from hangscope.server.intake.entities import Entity
from hangscope.server.intake.job_rosters import JobName, add_roster, entity_rows, job_row
from hangscope.server.serve_process import Opened, ServeOptions, Workers, open_stores, working
from hangscope.server.store import access_tokens
from hangscope.server.store.access_tokens import Access, project
from hangscope.server.store.blob_store import BlobStore
from hangscope.server.store.database import Database
from hangscope.server.store.tables import ACCUSED
from hangscope.server.store.tables import INCIDENTS as INCIDENT_ROWS
from hangscope.server.web.app import Settings, make_app
from hangscope.server.web.connections import Connections, protocol_for
from hangscope.server.web.guard import Guard

INCIDENTS = Path(__file__).parents[1] / "incidents"
CASES = Path(__file__).parents[1] / "cases"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@cache
def bundle(name: str) -> bytes:
    """The bundle of a recorded incident, or of a recorded case where there is no such incident."""
    source = INCIDENTS / name if (INCIDENTS / name).is_dir() else CASES / name
    target = Path(mkdtemp(prefix="hangscope-test-")) / f"{name}.tar.gz"
    write_bundle(source, target)
    data = target.read_bytes()
    target.unlink()
    target.parent.rmdir()
    return data


def push_value(data: bytes, *, job: str = "48537", **more: Any) -> dict[str, Any]:
    """What an agent says of a bundle that is one chunk."""
    said = {"sha256": sha(data), "size": len(data), "chunks": [sha(data)]}
    return {"cluster": "west", "job": job, "attempt": "0", "bundle": said, "captured_at": time.time(), **more}


def access(database: Database, name: str = "llm") -> Access:
    with database.write() as connection:
        return Access(1, "test", project(connection, name), name, frozenset(("push", "read", "admin")))


def push(database: Database, blobs: BlobStore, who: Access, data: bytes, **more: Any) -> Accepted:
    """As an agent does it: the blob, then the incident."""
    keep_blob(database, blobs, who.project_id, sha(data), [data], 1 << 30)
    accepted = accept(database, who, parse(push_value(data, **more), time.time()))
    assert isinstance(accepted, Accepted)
    return accepted


def add_hang(database: Database, project_id: int, job: str, node: str, identity: str = "", **more: Any) -> None:
    """A job on two nodes that hung, whose verdict names one of them."""
    add_roster(database, project_id, {"job": job, "nodes": [{"node": node}, {"node": f"beside-{job}"}]})
    now = time.time()
    values = {"outcome": "hang", "kind": "gpu", "confidence": "high", "headline": "x", **more}
    with database.write() as connection:
        row = job_row(connection, project_id, JobName("", job, "0"), now)
        made = connection.execute(
            insert(INCIDENT_ROWS)
            .values(
                project_id=project_id,
                job_id=row,
                identity=identity or job,
                state="digested",
                received_at=now,
                happened_at=now - 3600,
                digested_at=now,
                words="",
                **values,
            )
            .returning(INCIDENT_ROWS.c.id)
        ).scalar_one()
        entity = Entity("node", node)
        rows = entity_rows(connection, project_id, [entity], now)
        connection.execute(insert(ACCUSED).values(incident_id=made, entity_id=rows[entity], role="culprit"))


# ---- a server that answers on a real socket --------------------------------------------------------------------------


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass
class RunningServer:
    """A server on loopback, with tokens of its projects by (project, scope)."""

    opened: Opened
    port: int
    workers: Workers

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def token(self, *scopes: str, project: str = "llm") -> str:
        with self.opened.database.write() as connection:
            project_id = access_tokens.project(connection, project)
            return access_tokens.make(connection, project_id, f"test {' '.join(scopes)}", scopes)

    def ask(self, method: str, path: str, token: str | None = None, value: Any = None, **headers: str) -> Answer:
        """One request over a new connection; `value` is JSON, or bytes as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        body = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
        sent = {name.replace("_", "-"): said for name, said in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        found = Answer(answer.status, {name.lower(): said for name, said in answer.getheaders()}, answer.read())
        connection.close()
        return found

    def session(self, token: str) -> str:
        """The cookie of a browser that logged in with a token."""
        form = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
        done = self.ask("POST", "/login", None, f"token={token}&next=/".encode(), **form)
        assert done.status == 303, done.text
        return done.headers["set-cookie"].partition(";")[0]

    def push(self, token: str, data: bytes, **more: Any) -> int:
        """As an agent does it; the incident's number."""
        assert self.ask("PUT", f"/api/v1/blobs/{sha(data)}", token, data).status == 201
        accepted = self.ask("POST", "/api/v1/incidents", token, push_value(data, **more))
        assert accepted.status == 202, accepted.text
        return int(accepted.json["incident"])

    def digested(self, token: str, incident: int, within_s: float = 60.0) -> Any:
        """The incident once it is diagnosed."""
        until = time.monotonic() + within_s
        while True:
            found = self.ask("GET", f"/api/v1/incidents/{incident}", token).json
            if found["state"] != "accepted":
                return found
            assert time.monotonic() < until, "not digested in time"
            time.sleep(0.1)


@contextmanager
def running_server(
    folder: Path,
    database: str | None = None,
    *,
    digesters: int = 1,
    guard: Guard | None = None,
    blobs: BlobStore | None = None,
    connections: Connections | None = None,
    **more: Any,
) -> Iterator[RunningServer]:
    """A server in this process, on a real socket, with threads that digest."""
    options = ServeOptions(data=folder, database=database, port=0, digesters=digesters, private_webhooks=True, **more)
    opened = open_stores(options)
    opened.blobs = blobs or opened.blobs
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    with working(options, opened, f"http://127.0.0.1:{port}", lambda said: None) as workers:
        url = options.base_url or f"http://127.0.0.1:{port}"
        settings = Settings(opened.database, opened.blobs, url, workers.wake, guard or Guard(), proxies=options.proxies)
        protocol = protocol_for(connections or Connections(options.proxies))
        config = uvicorn.Config(
            make_app(replace(settings, budgets=options.budgets)),
            http=protocol,
            log_level="critical",
            server_header=False,
            access_log=False,
            proxy_headers=False,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        until = time.monotonic() + 20
        while not server.started and time.monotonic() < until:
            time.sleep(0.02)
        try:
            yield RunningServer(opened, port, workers)
        finally:
            server.should_exit = True
            thread.join(10)
    opened.database.close()
