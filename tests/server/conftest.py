"""Each test of the store runs on SQLite and on a real Postgres; one Postgres serves a test process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hangscope.server.store.database import Database
from hangscope.server.store.upgrade import upgrade
from kits import postgres

EACH_DATABASE = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Postgres]:
    if postgres.BINARIES is None:
        pytest.skip(postgres.REASON)
    with postgres.running_postgres() as server:
        yield server


@pytest.fixture(params=EACH_DATABASE)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'hangscope.db'}"
    server: postgres.Postgres = request.getfixturevalue("postgres_server")
    return server.database()


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Iterator[Database]:
    """For what does not depend on the database."""
    opened = Database(f"sqlite:///{tmp_path / 'hangscope.db'}")
    upgrade(opened)
    yield opened
    opened.close()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url)
    upgrade(opened)
    yield opened
    opened.close()
