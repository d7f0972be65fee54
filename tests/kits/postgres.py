"""A real Postgres for tests, from Debian's package: started as an ordinary user in a directory of its own."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REASON = "needs Postgres (Debian: apt-get install postgresql)"


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


BINARIES = _binaries()


class Postgres:
    """One server; `database()` makes a fresh database and gives its URL."""

    def __init__(self, port: int, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.folder = folder
        self.process = process
        self._numbers = itertools.count()

    def url(self, name: str) -> str:
        return f"postgresql://hangscope@127.0.0.1:{self.port}/{name}"

    def database(self) -> str:
        import psycopg

        name = f"test{next(self._numbers)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)


def _as_ordinary_user(folder: Path) -> dict[str, object]:
    """Postgres does not start as root: the arguments with which a process starts as nobody instead."""
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server on a free port of loopback, ended and removed with all its data at the end."""
    assert BINARIES is not None
    folder = Path(tempfile.mkdtemp(prefix="hangscope-pg-"))
    who = _as_ordinary_user(folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = folder / "data"
    try:
        subprocess.run(
            [str(BINARIES / "initdb"), "-D", str(data), "-U", "hangscope", "-A", "trust", "--no-sync", "-E", "UTF8"],
            check=True,
            capture_output=True,
            cwd=folder,
            **who,  # type: ignore[call-overload]
        )
        settings = [f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={folder}", "fsync=off"]
        words = [word for setting in settings for word in ("-c", setting)]
        server = subprocess.Popen(
            [str(BINARIES / "postgres"), "-D", str(data), *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            **who,  # type: ignore[call-overload]
        )
        try:
            _await(port, server)
            yield Postgres(port, folder, server)
        finally:
            server.send_signal(signal.SIGQUIT)  # at once: nobody needs its data any more
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _await(port: int, server: subprocess.Popen[bytes]) -> None:
    import psycopg

    until = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(f"postgresql://hangscope@127.0.0.1:{port}/postgres", connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > until or server.poll() is not None:
                raise
            time.sleep(0.1)
