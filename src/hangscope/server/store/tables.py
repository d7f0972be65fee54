"""The tables as this version knows them. `migrations/` makes them; a test holds that both are the same.

Times are seconds since 1970, in UTC. JSON is kept as text: both databases treat it alike, and nobody asks into it.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

METADATA = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


def _id() -> Column[int]:
    return Column("id", Integer, primary_key=True)


def _of(table: str, *, name: str = "", optional: bool = False, primary_key: bool = False) -> Column[int]:
    """A reference to a row of `table`, which takes this row with it when it goes."""
    key = ForeignKey(f"{table}.id", ondelete="CASCADE")
    return Column(
        name or f"{table.removesuffix('s')}_id", Integer, key, nullable=optional, primary_key=primary_key or False
    )


PROJECTS = Table(
    "projects",
    METADATA,
    _id(),
    Column("name", String(100), nullable=False, unique=True),
    Column("retention_days", Integer),
    Column("created_at", Double, nullable=False),
)
TOKENS = Table(
    "tokens",
    METADATA,
    _id(),
    _of("projects"),
    Column("name", String(100), nullable=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("scopes", String(40), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
)
SESSIONS = Table(
    "sessions",
    METADATA,
    _id(),
    _of("tokens"),
    Column("digest", String(64), nullable=False, unique=True),
    Column("host", String(300), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Index(None, "token_id"),
)
USAGE = Table(
    "usage",
    METADATA,
    _of("projects", primary_key=True),
    Column("stored_bytes", BigInteger, nullable=False),
    Column("claimed_bytes", BigInteger, nullable=False),
    Column("kept_rows", BigInteger, nullable=False),
    Column("digest_s", Double, nullable=False),
    Column("digest_at", Double, nullable=False),
)
BLOBS = Table(
    "blobs",
    METADATA,
    _of("projects", primary_key=True),
    Column("sha256", String(64), primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("received_at", Double, nullable=False),
)
JOBS = Table(
    "jobs",
    METADATA,
    _id(),
    _of("projects"),
    Column("cluster", String(200), nullable=False),
    Column("name", String(200), nullable=False),
    Column("attempt", String(40), nullable=False),
    Column("world_size", Integer),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("exit_status", Integer),
    Column("details", Text, nullable=False),
    Column("received_at", Double),
    UniqueConstraint("project_id", "cluster", "name", "attempt"),
    Index(None, "project_id", "started_at"),
)
ENTITIES = Table(
    "entities",
    METADATA,
    _id(),
    _of("projects"),
    Column("kind", String(20), nullable=False),
    Column("name", String(300), nullable=False),
    Column("first_seen_at", Double, nullable=False),
    Column("last_seen_at", Double, nullable=False),
    _of("entities", name="part_of", optional=True),
    Column("cluster", String(200), nullable=False, server_default=""),
    UniqueConstraint("project_id", "kind", "name", "cluster"),
    Index(None, "project_id", "kind", "last_seen_at"),
    Index(None, "part_of"),
)
EXPOSURES = Table(
    "exposures",
    METADATA,
    _of("jobs", primary_key=True),
    _of("entities", name="entity_id", primary_key=True),
    Column("ranks", Text, nullable=False),
    Index(None, "entity_id"),
)
MARKS = Table(
    "marks",
    METADATA,
    _id(),
    _of("projects"),
    _of("entities", name="entity_id"),
    Column("at", Double, nullable=False),
    Column("what", String(20), nullable=False),
    Column("who", String(100), nullable=False),
    Column("detail", Text, nullable=False),
    Index(None, "entity_id"),
    Index(None, "project_id"),
)
ISSUES = Table(
    "issues",
    METADATA,
    _id(),
    _of("projects"),
    Column("title", String(300), nullable=False),
    Column("state", String(20), nullable=False),
    Column("first_seen_at", Double, nullable=False),
    Column("last_seen_at", Double, nullable=False),
    Column("resolved_at", Double),
    Column("resolved_commits", Text, nullable=False),
    Column("muted_until", Double),
    _of("issues", name="merged_into", optional=True),
    Index(None, "project_id", "last_seen_at"),
    Index(None, "merged_into"),
)
FINGERPRINTS = Table(
    "fingerprints",
    METADATA,
    _id(),
    _of("projects"),
    _of("issues"),
    Column("value", String(40), nullable=False),
    Column("explanation", Text, nullable=False),
    UniqueConstraint("project_id", "value"),
    Index(None, "issue_id"),
)
INCIDENTS = Table(
    "incidents",
    METADATA,
    _id(),
    _of("projects"),
    _of("jobs", optional=True),
    _of("fingerprints", optional=True),
    Column("identity", String(600), nullable=False),
    Column("state", String(20), nullable=False),
    Column("received_at", Double, nullable=False),
    Column("happened_at", Double, nullable=False),
    Column("digested_at", Double),
    Column("outcome", String(20)),
    Column("kind", String(20)),
    Column("confidence", String(10)),
    Column("headline", Text),
    Column("summary", Text),
    Column("problem", Text),
    Column("verdict_sha256", String(64)),
    Column("page_sha256", String(64)),
    Column("words", Text, nullable=False),
    Column("token_id", Integer),
    Column("waited_s", Double),
    UniqueConstraint("project_id", "identity"),
    Index(None, "project_id", "received_at"),
    Index(None, "project_id", "happened_at"),
    Index(None, "project_id", "kind", "happened_at"),
    Index(None, "project_id", "outcome", "happened_at"),
    Index(None, "project_id", "state", "happened_at"),
    Index(None, "project_id", "digested_at"),
    Index(None, "fingerprint_id", "happened_at"),
    Index(None, "job_id"),
)
PARTS = Table(
    "parts",
    METADATA,
    _id(),
    _of("projects"),
    _of("incidents"),
    Column("sha256", String(64), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("chunks", Text, nullable=False),
    Column("source", String(200), nullable=False),
    Column("received_at", Double, nullable=False),
    Column("token_id", Integer),
    UniqueConstraint("project_id", "sha256"),
    Index(None, "incident_id"),
)
ACCUSED = Table(
    "accused",
    METADATA,
    _of("incidents", primary_key=True),
    _of("entities", name="entity_id", primary_key=True),
    Column("role", String(20), nullable=False),
    Index(None, "entity_id"),
)
ISSUE_EVENTS = Table(
    "issue_events",
    METADATA,
    _id(),
    _of("issues"),
    Column("at", Double, nullable=False),
    Column("what", String(20), nullable=False),
    Column("who", String(100), nullable=False),
    Column("detail", Text, nullable=False),
    Index(None, "issue_id"),
)
SUMMARIES = Table(
    "summaries",
    METADATA,
    _of("projects", primary_key=True),
    Column("made_at", Double, nullable=False),
    Column("covers", String(200), nullable=False),
    Column("leased_until", Double, nullable=False),
    Column("value", Text, nullable=False),
)
WORK = Table(
    "work",
    METADATA,
    _id(),
    Column("kind", String(20), nullable=False),
    Column("subject", Integer, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("not_before", Double, nullable=False),
    Column("leased_until", Double),
    Column("leased_by", String(40)),
    Column("project_id", Integer),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("put_back_at", Double),
    UniqueConstraint("kind", "subject"),
    Index(None, "not_before"),
    Index(None, "kind", "project_id", "not_before"),
)
AUDIT = Table(
    "audit",
    METADATA,
    _id(),
    _of("projects"),
    Column("at", Double, nullable=False),
    Column("who", String(100), nullable=False),
    Column("what", String(40), nullable=False),
    Column("subject", String(200), nullable=False),
    Index(None, "project_id", "at"),
)
WEBHOOKS = Table(
    "webhooks",
    METADATA,
    _id(),
    _of("projects"),
    Column("url", Text, nullable=False),
    Column("shape", String(20), nullable=False),
    Column("secret", String(100), nullable=False),
    Column("created_at", Double, nullable=False),
)
DELIVERIES = Table(
    "deliveries",
    METADATA,
    _id(),
    _of("webhooks"),
    _of("incidents", optional=True),
    Column("event", String(20), nullable=False),
    Column("subject", String(600), nullable=False),
    Column("about", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("delivered_at", Double),
    Column("problem", Text),
    Column("attempts", Integer, nullable=False, server_default="0"),
    UniqueConstraint("webhook_id", "event", "subject"),
    Index(None, "incident_id"),
    Index(None, "webhook_id", "created_at"),
)
