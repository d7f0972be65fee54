"""Brings a database to the schema of this version: an empty one from nothing, an older one forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from hangscope.errors import SettingsError
from hangscope.server.store.database import Database

_MIGRATIONS = str(Path(__file__).with_name("migrations"))
_LOCK = 0x48414E47
"""Of Postgres, so that of several servers that start together one migrates."""


def upgrade(database: Database, to: str = "head") -> None:
    """Apply what is missing, in one transaction. A database of a newer hangscope is refused, not changed."""
    scripts = _scripts()
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        context = EnvironmentContext(Config(), scripts, fn=lambda revision, _: _steps(scripts, revision, to))
        context.configure(connection=connection, transactional_ddl=False)
        context.run_migrations()


def newest() -> str:
    return _scripts().get_current_head() or ""


def _scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", _MIGRATIONS)
    config.set_main_option("version_locations", _MIGRATIONS)
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def _steps(scripts: ScriptDirectory, revision: Any, to: str) -> Any:
    known = {script.revision for script in scripts.walk_revisions()}
    there = {revision} if isinstance(revision, str) else set(revision or ())
    if there - known:
        raise SettingsError(
            f"the database has the schema {', '.join(sorted(there - known))} of a newer hangscope",
            hint="start the newer hangscope, or restore the backup from before its upgrade",
        )
    return scripts._upgrade_revs(to, revision)
