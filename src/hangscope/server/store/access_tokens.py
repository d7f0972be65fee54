"""Who may do what: tokens with scopes, each of one project. Only a token's SHA-256 is kept.

A token is 256 random bits, so a plain hash cannot be searched for it.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, or_, select, update

from hangscope.errors import SettingsError
from hangscope.server.store.database import Database, insert_new
from hangscope.server.store.tables import PROJECTS, TOKENS

PUSH = "push"
READ = "read"
ADMIN = "admin"
SCOPES = (PUSH, READ, ADMIN)
PREFIX = "hs_"
LONGEST = 200
FIRST_PROJECT = "default"


@dataclass(frozen=True, slots=True)
class Access:
    """What a token allows, and where."""

    token_id: int
    name: str
    project_id: int
    project: str
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        return scope in self.scopes or ADMIN in self.scopes


def check(connection: Connection, token: str) -> Access | None:
    """What `token` allows; None where it is unknown, expired or revoked."""
    if not token.startswith(PREFIX) or len(token) > LONGEST:
        return None
    row = connection.execute(
        select(TOKENS, PROJECTS.c.name.label("project"))
        .join(PROJECTS, PROJECTS.c.id == TOKENS.c.project_id)
        .where(
            TOKENS.c.digest == _digest(token),
            TOKENS.c.revoked_at.is_(None),
            or_(TOKENS.c.expires_at.is_(None), TOKENS.c.expires_at > time.time()),
        )
    ).first()
    if row is None:
        return None
    return Access(row.id, row.name, row.project_id, row.project, frozenset(row.scopes.split()))


def make(
    connection: Connection, project_id: int, name: str, scopes: Sequence[str], *, expires_at: float | None = None
) -> str:
    """A new token, which nobody can show again."""
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise SettingsError(f"a token's scopes are of {', '.join(SCOPES)}, not {' '.join(unknown) or 'none'}")
    token = PREFIX + secrets.token_urlsafe(32)
    connection.execute(
        TOKENS.insert().values(
            project_id=project_id,
            name=name[:100],
            digest=_digest(token),
            scopes=" ".join(dict.fromkeys(scopes)),
            created_at=time.time(),
            expires_at=expires_at,
        )
    )
    return token


def revoke(connection: Connection, project_id: int, token_id: int) -> bool:
    """From now on the token opens nothing. Whether there was such a token in the project."""
    done = connection.execute(
        update(TOKENS)
        .where(TOKENS.c.id == token_id, TOKENS.c.project_id == project_id, TOKENS.c.revoked_at.is_(None))
        .values(revoked_at=time.time())
    )
    return done.rowcount == 1


def project(connection: Connection, name: str) -> int:
    """The id of a project, made where it is new."""
    insert_new(connection, PROJECTS, {"name": name[:100], "created_at": time.time()})
    return int(connection.execute(select(PROJECTS.c.id).where(PROJECTS.c.name == name[:100])).scalar_one())


def first_token(database: Database) -> str | None:
    """On a server that nobody has a token for: one that may do everything in the first project."""
    with database.write() as connection:
        usable = connection.execute(select(func.count()).select_from(TOKENS).where(TOKENS.c.revoked_at.is_(None)))
        if usable.scalar_one():
            return None
        return make(connection, project(connection, FIRST_PROJECT), "first token", SCOPES)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
