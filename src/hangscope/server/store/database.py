"""The database behind the server: SQLite in a file, or Postgres by URL, used in the same way.

A transaction says at its start whether it writes: on SQLite one that begins by reading and then writes fails while
somebody else writes, however long it would have waited.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from hangscope.errors import SettingsError

BUSY_MS = 15_000
"""So long one writer of SQLite waits for another."""
_WRITES = "hangscope_writes"


class Database:
    """`read()` and `write()` give a connection in a transaction, which ends with the `with`."""

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)
        self._writing = self.engine.execution_options(**{_WRITES: True})
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        self._turn = FairLock()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """On SQLite the writers of this process take turns in the order in which they came: SQLite itself lets them
        race, and one that writes much would keep the others out for seconds."""
        if not self.is_sqlite:
            with self._writing.connect() as connection, connection.begin():
                yield connection
            return
        with self._turn, self._writing.connect() as connection, connection.begin():
            yield connection

    def close(self) -> None:
        self.engine.dispose()


class FairLock:
    """A lock that goes to whoever has waited longest."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._held = False

    def __enter__(self) -> None:
        with self._guard:
            if not self._held:
                self._held = True
                return
            turn = threading.Event()
            self._waiting.append(turn)
        turn.wait()

    def __exit__(self, *_: object) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._held = False


def clock(connection: Connection) -> float:
    """The time by which the servers of one database agree: Postgres's own, else this machine's."""
    if connection.dialect.name == "sqlite":
        return time.time()
    return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())


def upsert(connection: Connection, table: Table) -> Any:
    """An insert of the dialect at hand, which knows what to do about a row that is there."""
    return (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)


def insert_new(connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless one with the same key is there. Whether it was inserted."""
    key = next(iter(table.primary_key))
    made = upsert(connection, table).values(**values).on_conflict_do_nothing().returning(key)
    return connection.execute(made).first() is not None


def row_id(connection: Connection, table: Table, key: Mapping[str, Any], rest: Mapping[str, Any]) -> tuple[int, bool]:
    """The id of the row with this key, made with `rest` where there is none; and whether it was made."""
    made = insert_new(connection, table, {**key, **rest})
    where = [table.c[name] == value for name, value in key.items()]
    return int(connection.execute(select(table.c.id).where(*where)).scalar_one()), made


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise SettingsError(
            f"{url!r} is no address of a database", hint="postgresql://user@host/name, or sqlite:////path/to/file"
        ) from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() == "postgresql":
        return create_engine(parsed, pool_pre_ping=True, pool_size=10, max_overflow=20, pool_timeout=10)
    if parsed.get_backend_name() != "sqlite":
        raise SettingsError(f"{parsed.drivername}: only SQLite and Postgres are supported")
    engine = create_engine(
        parsed, pool_size=10, max_overflow=20, pool_timeout=10, connect_args={"timeout": BUSY_MS / 1000}
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # we begin transactions ourselves
    for setting in (
        "journal_mode=WAL",
        "synchronous=FULL",  # what was accepted survives a power cut
        "foreign_keys=ON",
        f"busy_timeout={BUSY_MS}",
    ):
        connection.execute(f"PRAGMA {setting}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
