"""One server process: the application, and beside it the threads that digest, deliver and clear away.

Several such processes on one Postgres share the work; they know each other only by the leases in the queue.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from sqlalchemy import update
from sqlalchemy.exc import DBAPIError

from hangscope.errors import SettingsError
from hangscope.recorder.process.isolated_python import clean_environment, helper_command
from hangscope.server.digest.digest_work import Digester
from hangscope.server.history import summary_child
from hangscope.server.history.summary import LEASE_S as LEASE_SUMMARY_S
from hangscope.server.history.summary import stale
from hangscope.server.retention import clear_expired
from hangscope.server.store import work_queue
from hangscope.server.store.blob_store import BlobStore, open_store
from hangscope.server.store.database import Database
from hangscope.server.store.tables import WORK
from hangscope.server.store.upgrade import upgrade
from hangscope.server.store.work_queue import Lease
from hangscope.server.web.app import Settings, make_app
from hangscope.server.web.webhooks import WebhookSender

LEASE_S = 30.0
"""How long work stays with a process that was killed; one that lives renews its leases."""
RENEW_S = 8.0
LOOK_S = 1.0
CLEAR_S = 3600.0
SUMMARY_S = 10.0


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the operator may set. `database` and `blobs` lie below `data` where they are not given."""

    data: Path
    database: str | None = None
    blobs: str | None = None
    host: str = "127.0.0.1"
    port: int = 8642
    base_url: str | None = None
    digesters: int = 1
    tls_cert: Path | None = None
    tls_key: Path | None = None
    private_webhooks: bool = True


@dataclass(slots=True)
class Opened:
    """The store of a server, with its schema up to date."""

    database: Database
    blobs: BlobStore


def open_stores(options: ServeOptions) -> Opened:
    if options.database is None or options.blobs is None:
        try:
            options.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"{options.data}: {error.strerror}", hint="--data names another folder") from None
    database = Database(options.database or f"sqlite:///{options.data.resolve() / 'hangscope.db'}")
    try:
        upgrade(database)
    except DBAPIError as error:
        raise SettingsError(
            f"the database cannot be used: {error.orig}", hint="--database postgresql://user:password@host/name"
        ) from None
    return Opened(database, open_store(options.blobs or str(options.data / "blobs")))


@dataclass(slots=True)
class Workers:
    """The threads beside the application. What they cannot do now is tried later; they never end by an error."""

    opened: Opened
    base_url: str
    private_webhooks: bool
    say: Callable[[str], None]
    name: str = field(default_factory=lambda: f"{os.getpid()}-{secrets.token_hex(4)}")
    _wake: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)
    _leases: dict[int, Lease] = field(default_factory=dict)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self, digesters: int) -> None:
        works = [self._work] * digesters + [self._renew, self._clear]
        if digesters:
            works.append(self._summarise)
        for number, work in enumerate(works):
            thread = threading.Thread(target=self._forever, args=(work,), name=f"worker-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def _forever(self, work: Callable[[], None]) -> None:
        while not self._stop.is_set():
            try:
                work()
            except Exception as error:  # the database is gone, the disk is full: said, and tried again
                self.say(f"{type(error).__name__}: {str(error)[:300]}; trying again")
                self._stop.wait(5.0)

    def _work(self) -> None:
        lease = work_queue.take(self.opened.database, self.name, LEASE_S)
        if lease is None:
            self._wake.wait(LOOK_S)
            self._wake.clear()
            return
        self._leases[lease.id] = lease
        try:
            if lease.kind == work_queue.DIGEST:
                Digester(self.opened.database, self.opened.blobs).work(lease)
            else:
                WebhookSender(self.opened.database, self.base_url, self.private_webhooks).work(lease)
        finally:
            self._leases.pop(lease.id, None)

    def _renew(self) -> None:
        self._stop.wait(RENEW_S)
        held = list(self._leases)
        if held:
            mine = (WORK.c.id.in_(held), WORK.c.leased_by == self.name)
            with self.opened.database.write() as connection:
                connection.execute(update(WORK).where(*mine).values(leased_until=time.time() + LEASE_S))

    def _summarise(self) -> None:
        """Have the summary of one project made whose past has changed, by a process of its own."""
        database = self.opened.database
        due = stale(database)
        if due is None:
            self._stop.wait(SUMMARY_S)
            return
        project, covers = due
        url = database.engine.url.render_as_string(hide_password=False)
        order = json.dumps({"database": url, "project": project, "covers": covers})
        child = subprocess.run(
            helper_command(summary_child.__name__),
            input=order.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=clean_environment(os.environ),
            timeout=LEASE_SUMMARY_S,
        )
        if child.returncode != 0:
            lines = child.stderr.decode(errors="replace").strip().splitlines()
            raise RuntimeError(f"the summary of project {project} was not made: {lines[-1] if lines else 'no reason'}")

    def _clear(self) -> None:
        clear_expired(self.opened.database, self.opened.blobs)
        self._stop.wait(CLEAR_S)


@contextmanager
def working(options: ServeOptions, opened: Opened, base_url: str, say: Callable[[str], None]) -> Iterator[Workers]:
    workers = Workers(opened, base_url, options.private_webhooks, say)
    workers.start(options.digesters)
    try:
        yield workers
    finally:
        workers.stop()


def serve(options: ServeOptions, opened: Opened, say: Callable[[str], None]) -> None:
    """Answer until a signal ends us. `say` gets the address once it is open."""
    listening = _listen(options.host, options.port)
    scheme = "https" if options.tls_cert is not None else "http"
    host = f"[{options.host}]" if ":" in options.host else options.host
    base_url = (options.base_url or f"{scheme}://{host}:{listening.getsockname()[1]}").rstrip("/")
    with working(options, opened, base_url, say) as workers:
        app = make_app(Settings(opened.database, opened.blobs, base_url, workers.wake))
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=5,
            timeout_keep_alive=30,
            limit_concurrency=500,
            ssl_certfile=options.tls_cert,
            ssl_keyfile=options.tls_key,
        )
        say(f"listening on {base_url}")
        uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=512)
        # What is accepted inherits it. asyncio sets it only where a socket's protocol is named, and here it is not;
        # without it the kernel holds the end of every small answer back for 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise SettingsError(
            f"{host}:{port} cannot be listened on: {error.strerror}", hint="--listen 127.0.0.1:0"
        ) from None
