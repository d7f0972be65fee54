"""One server process: the application, and beside it the threads that digest, deliver and clear away.

Several such processes on one Postgres share the work; they know each other only by the leases in the queue.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from anyio import to_thread
from sqlalchemy.exc import DBAPIError, OperationalError

from hangscope.errors import SettingsError
from hangscope.processes.isolated_python import clean_environment, helper_command
from hangscope.safeio.confine import ALL, hide_from_own_user
from hangscope.server.digest.digest_work import Digester, clear_left_behind
from hangscope.server.history import summary_child
from hangscope.server.history.summary import LEASE_S as LEASE_SUMMARY_S
from hangscope.server.history.summary import stale
from hangscope.server.intake.budgets import Budgets
from hangscope.server.retention import clear_expired
from hangscope.server.store import work_queue
from hangscope.server.store.blob_store import BlobStore, open_store
from hangscope.server.store.database import Database
from hangscope.server.store.upgrade import upgrade
from hangscope.server.store.work_queue import Lease
from hangscope.server.web.app import Settings, make_app
from hangscope.server.web.connections import Connections, Networks, protocol_for
from hangscope.server.web.health import Health
from hangscope.server.web.webhooks import WebhookSender

LEASE_S = 30.0
"""How long work stays with a process that was killed; one that lives renews its leases."""
RENEW_S = 8.0
LOOK_S = 1.0
CLEAR_S = 3600.0
SUMMARY_S = 10.0
DELIVERERS = 4
"""Messages that are sent at a time, beside diagnoses: one that waits for a receiver holds no other work up."""
WAIT_FOR_DATABASE_S = 60.0
THREADS = 80
ACCEPT_AT_ONCE = 64
BACKLOG = 4096


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
    private_webhooks: bool = False
    proxies: Networks = ()
    """Proxies that are believed who asks them."""
    project_bytes: int | None = None
    """What one project may store; None: as `Budgets` says."""

    @property
    def budgets(self) -> Budgets:
        if self.project_bytes is None:
            return Budgets()
        return Budgets(stored_bytes=self.project_bytes, claimed_bytes=4 * self.project_bytes)


@dataclass(slots=True)
class Opened:
    """The store of a server, with its schema up to date."""

    database: Database
    blobs: BlobStore


def open_stores(options: ServeOptions, *, wait_s: float = 0.0) -> Opened:
    """Open the database and the blobs. A database that does not answer yet has `wait_s` to begin."""
    if options.database is None or options.blobs is None:
        try:
            options.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"{options.data}: {error.strerror}", hint="--data names another folder") from None
        check_private(options.data)
    file = options.data.resolve() / "hangscope.db"
    database = Database(options.database or f"sqlite:///{file}")
    before = os.umask(0o077)  # SQLite makes its files as the process says, and the files beside it as the first
    try:
        _upgrade(database, time.monotonic() + wait_s)
        if options.database is None:
            for each in options.data.glob("hangscope.db*"):
                each.chmod(0o600)
    finally:
        os.umask(before)
    return Opened(database, open_store(options.blobs or str(options.data / "blobs")))


def _upgrade(database: Database, until: float) -> None:
    while True:
        try:
            return upgrade(database)
        except DBAPIError as error:
            if isinstance(error, OperationalError) and time.monotonic() < until:
                time.sleep(1.0)
                continue
            raise SettingsError(
                f"the database cannot be used: {error.orig}", hint="--database postgresql://user:password@host/name"
            ) from None


def check_private(folder: Path) -> None:
    """A folder with verdicts, secrets of webhooks and evidence in it is for the server alone."""
    found = folder.stat()
    if found.st_uid not in (os.getuid(), 0) and os.getuid() != 0:
        raise SettingsError(
            f"{folder} belongs to another user (user {found.st_uid})", hint="--data names another folder"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise SettingsError(
            f"{folder} is open to other users of this machine (mode {stat.S_IMODE(found.st_mode):04o})",
            hint=f"chmod 700 {folder}; in a systemd unit StateDirectoryMode=0700; of a volume, name a folder in it",
        )


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
        works = [self._digest] * digesters + [self._renew, self._clear, self._first_deliverer]
        works += [self._deliver] * (DELIVERERS - 1)
        if digesters:  # the lane beside: for a project of which nothing runs, so that no other one keeps it waiting
            works += [self._digest_beside, self._summarise]
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

    def _digest(self) -> None:
        self._work(work_queue.DIGEST, spare=False)

    def _digest_beside(self) -> None:
        self._work(work_queue.DIGEST, spare=True)

    def _deliver(self) -> None:
        self._work(work_queue.DELIVER, spare=True)

    def _first_deliverer(self) -> None:
        self._work(work_queue.DELIVER, spare=False)

    def _work(self, kind: str, *, spare: bool) -> None:
        lease = work_queue.take(self.opened.database, self.name, LEASE_S, kind, spare=spare)
        if lease is None:
            self._wake.wait(LOOK_S)
            self._wake.clear()
            return
        self._leases[lease.id] = lease
        try:
            if kind == work_queue.DIGEST:
                Digester(self.opened.database, self.opened.blobs).work(lease)
            else:
                WebhookSender(self.opened.database, self.base_url, self.private_webhooks).work(lease)
        finally:
            self._leases.pop(lease.id, None)

    def _renew(self) -> None:
        self._stop.wait(RENEW_S)
        held = list(self._leases)
        if held:
            work_queue.renew(self.opened.database, self.name, held, LEASE_S)

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
        clear_left_behind()
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
    hide_from_own_user()  # a diagnosis runs as the same user, and the database's password is in our environment
    listening = _listen(options.host, options.port)
    scheme = "https" if options.tls_cert is not None else "http"
    shown = socket.gethostname() if options.host in ("", "0.0.0.0", "::") else options.host
    host = f"[{shown}]" if ":" in shown else shown
    base_url = (options.base_url or f"{scheme}://{host}:{listening.getsockname()[1]}").rstrip("/")
    lacking = [each for each in ALL if each not in confinement()]
    if lacking and options.digesters:
        say(f"diagnoses are confined without {' and '.join(lacking)}: this kernel, or container, does not have it")
    kept = Connections(options.proxies)
    local = options.data if options.database is None or options.blobs is None else None
    with working(options, opened, base_url, say) as workers:
        app = make_app(
            Settings(
                opened.database,
                opened.blobs,
                base_url,
                workers.wake,
                health=Health(opened.database, local),
                proxies=options.proxies,
                budgets=options.budgets,
            )
        )
        config = uvicorn.Config(
            app,
            http=protocol_for(kept),
            ws="none",
            log_level="critical",  # what goes wrong is said by `web/app.py`; what strangers send is not worth a line
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=ACCEPT_AT_ONCE,
            timeout_graceful_shutdown=5,
            timeout_keep_alive=30,
            h11_max_incomplete_event_size=32 << 10,
            ssl_certfile=options.tls_cert,
            ssl_keyfile=options.tls_key,
        )
        say(f"listening on {base_url}")
        _Server(config).run(sockets=[listening])


class _Server(uvicorn.Server):
    """With more threads for the database, and a queue in the kernel for those who come at once."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        to_thread.current_default_thread_limiter().total_tokens = THREADS
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(BACKLOG)  # asyncio accepts as many at one go as its own `backlog`, which stays small


def confinement() -> tuple[str, ...]:
    """What a diagnosis can be confined by on this machine: tried in a process that does nothing else."""
    work = "from hangscope.safeio.confine import confine; print(','.join(confine([], [])))"
    code = f"import sys; sys.path += {sys.path!r}; {work}"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=20, env={}
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(each for each in done.stdout.strip().split(",") if each)


def _listen(host: str, port: int) -> socket.socket:
    """`host` empty: all addresses of this machine."""
    try:
        if not host and socket.has_dualstack_ipv6():
            listener = socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        # What is accepted inherits it. asyncio sets it only where a socket's protocol is named, and here it is not;
        # without it the kernel holds the end of every small answer back for 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise SettingsError(
            f"{host or 'all addresses'}:{port} cannot be listened on: {error.strerror}", hint="--listen 127.0.0.1:0"
        ) from None
