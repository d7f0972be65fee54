"""Who may do what: tokens with scopes, each of one project. Only a token's SHA-256 is kept.

A token is 256 random bits, so a plain hash cannot be searched for it.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, func, or_, select, text, update

from hangscope.errors import SettingsError
from hangscope.server.store.database import Database, insert_new
from hangscope.server.store.tables import PROJECTS, SESSIONS, TOKENS

PUSH = "push"
READ = "read"
TRIAGE = "triage"
ADMIN = "admin"
SCOPES = (PUSH, READ, TRIAGE, ADMIN)
PREFIX = "hs_"
LONGEST = 200
SHORTEST = 35
SESSION_S = 14 * 86400.0
_LOCK = 0x48414E48
"""Of Postgres: two servers that start at once do not both make a first token."""
FIRST_PROJECT = "default"


@dataclass(frozen=True, slots=True)
class Access:
    """What a token allows, and where."""

    token_id: int
    name: str
    project_id: int
    project: str
    scopes: frozenset[str]
    expires_at: float | None = None

    def may(self, scope: str) -> bool:
        """Who may triage may read, who may administer may do everything."""
        return scope in self.scopes or ADMIN in self.scopes or (scope == READ and TRIAGE in self.scopes)


def check(connection: Connection, token: str) -> Access | None:
    """What `token` allows; None where it is unknown, expired or revoked."""
    if not token.startswith(PREFIX) or len(token) > LONGEST:
        return None
    return _access(connection.execute(_live(time.time()).where(TOKENS.c.digest == digest_of(token))).first())


def _live(now: float) -> Select[Any]:
    return (
        select(TOKENS, PROJECTS.c.name.label("project"))
        .join(PROJECTS, PROJECTS.c.id == TOKENS.c.project_id)
        .where(TOKENS.c.revoked_at.is_(None), or_(TOKENS.c.expires_at.is_(None), TOKENS.c.expires_at > now))
    )


def _access(row: Row[Any] | None) -> Access | None:
    if row is None:
        return None
    return Access(row.id, row.name, row.project_id, row.project, frozenset(row.scopes.split()), row.expires_at)


def known_digests(connection: Connection) -> set[str]:
    """Of all tokens and sessions that open something: what is not among them need not be asked about."""
    now = time.time()
    tokens = connection.execute(_live(now).with_only_columns(TOKENS.c.digest)).scalars()
    sessions = connection.execute(select(SESSIONS.c.digest).where(SESSIONS.c.expires_at > now)).scalars()
    return {*tokens, *sessions}


# ---- sessions of browsers --------------------------------------------------------------------------------------------


def open_session(connection: Connection, access: Access, host: str) -> str:
    """What a browser keeps in the place of the token: random, for one host, until it is closed or SESSION_S are over.
    It ends with its token."""
    value = secrets.token_urlsafe(32)
    now = time.time()
    row = {"token_id": access.token_id, "digest": digest_of(value), "host": host[:300]}
    connection.execute(SESSIONS.insert().values(created_at=now, expires_at=now + SESSION_S, **row))
    return value


def check_session(connection: Connection, value: str, host: str) -> Access | None:
    """What a session allows on the host that it was opened on."""
    if not value or len(value) > LONGEST:
        return None
    now = time.time()
    same = (SESSIONS.c.digest == digest_of(value), SESSIONS.c.host == host[:300], SESSIONS.c.expires_at > now)
    asked = _live(now).join(SESSIONS, SESSIONS.c.token_id == TOKENS.c.id).where(*same)
    return _access(connection.execute(asked).first())


def close_session(connection: Connection, value: str) -> None:
    connection.execute(delete(SESSIONS).where(SESSIONS.c.digest == digest_of(value)))


def make(
    connection: Connection,
    project_id: int,
    name: str,
    scopes: Sequence[str],
    *,
    expires_at: float | None = None,
    token: str | None = None,
) -> str:
    """A new token, which nobody can show again."""
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise SettingsError(f"a token's scopes are of {', '.join(SCOPES)}, not {' '.join(unknown) or 'none'}")
    token = token or PREFIX + secrets.token_urlsafe(32)
    connection.execute(
        TOKENS.insert().values(
            project_id=project_id,
            name=name[:100],
            digest=digest_of(token),
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


def first_token(database: Database, given: str | None = None) -> str | None:
    """On a server that nobody has a token for: one that may do everything in the first project, `given` or a new one.
    Of servers that start together one makes it."""
    if given is not None and (not given.startswith(PREFIX) or not SHORTEST <= len(given) <= LONGEST):
        raise SettingsError(
            f"the first token is {PREFIX} and at least {SHORTEST - len(PREFIX)} random characters",
            hint="python3 -c \"import secrets; print('hs_' + secrets.token_urlsafe(32))\"",
        )
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        usable = connection.execute(select(func.count()).select_from(TOKENS).where(TOKENS.c.revoked_at.is_(None)))
        if usable.scalar_one():
            return None
        return make(connection, project(connection, FIRST_PROJECT), "first token", SCOPES, token=given)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
