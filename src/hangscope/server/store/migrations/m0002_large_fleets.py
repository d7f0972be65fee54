"""For large fleets: the summary of a project's history, made beforehand, and indexes for lists and searches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_INDEXES = (
    ("entities", ("project_id", "kind", "last_seen_at")),
    ("entities", ("part_of",)),
    ("issues", ("merged_into",)),
    ("incidents", ("project_id", "kind", "happened_at")),
    ("incidents", ("project_id", "outcome", "happened_at")),
    ("incidents", ("project_id", "state", "happened_at")),
    ("incidents", ("project_id", "digested_at")),
    ("incidents", ("job_id",)),
    ("issue_events", ("issue_id",)),
    ("deliveries", ("incident_id",)),
)


def upgrade() -> None:
    op.create_table(
        "summaries",
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("covers", sa.String(200), nullable=False),
        sa.Column("leased_until", sa.Double(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_summaries_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_summaries")),
    )
    for table, columns in _INDEXES:
        op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, list(columns))
    if op.get_bind().dialect.name == "postgresql":
        _index_words()


def _index_words() -> None:
    """Trigrams, so that a search for a part of a word need not read every incident. The extension is one of those that
    the owner of a database may create; where the server does not have it, searches are slower, and right."""
    connection = op.get_bind()
    try:
        with connection.begin_nested():
            connection.execute(sa.text("CREATE EXTENSION IF NOT EXISTS pg_trgm"))
            connection.execute(sa.text("CREATE INDEX ix_incidents_words ON incidents USING gin (words gin_trgm_ops)"))
    except sa.exc.DBAPIError:
        return
