"""The database behind the server: SQLite in a file, or Postgres by URL, used in the same way.

A transaction says at its start whether it writes: on SQLite one that begins by reading and then writes fails while
somebody else writes, however long it would have waited.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event, select
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

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with self._writing.connect() as connection, connection.begin():
            yield connection

    def close(self) -> None:
        self.engine.dispose()


def insert_new(connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless one with the same key is there. Whether it was inserted."""
    made = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)
    key = next(iter(table.primary_key))
    return connection.execute(made.values(**values).on_conflict_do_nothing().returning(key)).first() is not None


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
    engine = create_engine(parsed, pool_size=10, max_overflow=20, connect_args={"timeout": BUSY_MS / 1000})
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
