"""What each project uses, whose a part is, sessions of browsers, and a queue that knows its projects."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("token_id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("host", sa.String(300), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["token_id"], ["tokens.id"], name=op.f("fk_sessions_token_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("digest", name=op.f("uq_sessions_digest")),
    )
    op.create_index(op.f("ix_sessions_token_id"), "sessions", ["token_id"])
    op.create_table(
        "usage",
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False),
        sa.Column("claimed_bytes", sa.BigInteger(), nullable=False),
        sa.Column("kept_rows", sa.BigInteger(), nullable=False),
        sa.Column("digest_s", sa.Double(), nullable=False),
        sa.Column("digest_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_usage_project_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_usage")),
    )
    op.add_column("incidents", sa.Column("token_id", sa.Integer()))
    op.create_index(op.f("ix_incidents_project_id_received_at"), "incidents", ["project_id", "received_at"])
    op.add_column("jobs", sa.Column("received_at", sa.Double()))
    op.add_column("parts", sa.Column("token_id", sa.Integer()))
    op.add_column("work", sa.Column("project_id", sa.Integer()))
    op.add_column("work", sa.Column("failures", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("work", sa.Column("put_back_at", sa.Double()))
    op.create_index(op.f("ix_work_kind_project_id_not_before"), "work", ["kind", "project_id", "not_before"])
    for kind, subject in (
        ("digest", "SELECT project_id FROM incidents WHERE incidents.id = work.subject"),
        (
            "deliver",
            "SELECT webhooks.project_id FROM deliveries JOIN webhooks ON webhooks.id = deliveries.webhook_id"
            " WHERE deliveries.id = work.subject",
        ),
    ):
        op.execute(sa.text(f"UPDATE work SET project_id = ({subject}) WHERE kind = '{kind}'"))
