"""Which cluster a machine is of, what people noted about it, and messages about more than incidents.

SQLite cannot change a key in place, and dropping a table there takes the rows that refer to it along: what refers to
machines is put aside, and comes back.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_PLACES = ("node", "gpu", "nic", "leaf", "link")
"""Kinds whose names are of one cluster."""
_AT_A_TIME = 500


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        _remake_entities()
    else:
        op.add_column("entities", sa.Column("cluster", sa.String(200), nullable=False, server_default=""))
        op.drop_constraint("uq_entities_project_id", "entities")
        op.create_unique_constraint("uq_entities_project_id", "entities", ["project_id", "kind", "name", "cluster"])
    _Splitting(op.get_bind()).split()
    _marks()
    _deliveries()


def _remake_entities() -> None:
    for table in ("exposures", "accused", "entities"):
        op.execute(f"CREATE TABLE aside_{table} AS SELECT * FROM {table}")
    for table in ("exposures", "accused", "entities"):
        op.drop_table(table)
    _entities()
    op.execute(
        "INSERT INTO entities (id, project_id, kind, name, first_seen_at, last_seen_at, cluster)"
        " SELECT id, project_id, kind, name, first_seen_at, last_seen_at, '' FROM aside_entities"
    )
    op.execute(
        "UPDATE entities SET part_of = (SELECT part_of FROM aside_entities WHERE aside_entities.id = entities.id)"
    )
    op.create_table(
        "exposures",
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("entity_id", sa.Integer(), nullable=False),
        sa.Column("ranks", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["entity_id"], ["entities.id"], name=op.f("fk_exposures_entity_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_exposures_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "entity_id", name=op.f("pk_exposures")),
    )
    op.create_table(
        "accused",
        sa.Column("incident_id", sa.Integer(), nullable=False),
        sa.Column("entity_id", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.ForeignKeyConstraint(["entity_id"], ["entities.id"], name=op.f("fk_accused_entity_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["incident_id"], ["incidents.id"], name=op.f("fk_accused_incident_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("incident_id", "entity_id", name=op.f("pk_accused")),
    )
    for table in ("exposures", "accused"):
        op.execute(f"INSERT INTO {table} SELECT * FROM aside_{table}")
        op.create_index(op.f(f"ix_{table}_entity_id"), table, ["entity_id"])
    for table in ("exposures", "accused", "entities"):
        op.drop_table(f"aside_{table}")


def _entities() -> None:
    op.create_table(
        "entities",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("name", sa.String(300), nullable=False),
        sa.Column("first_seen_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=False),
        sa.Column("part_of", sa.Integer()),
        sa.Column("cluster", sa.String(200), nullable=False, server_default=""),
        sa.ForeignKeyConstraint(["part_of"], ["entities.id"], name=op.f("fk_entities_part_of"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_entities_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_entities")),
        sa.UniqueConstraint("project_id", "kind", "name", "cluster", name=op.f("uq_entities_project_id")),
    )
    op.create_index(op.f("ix_entities_part_of"), "entities", ["part_of"])
    columns = ["project_id", "kind", "last_seen_at"]
    op.create_index(op.f("ix_entities_project_id_kind_last_seen_at"), "entities", columns)


class _Splitting:
    """Gives every machine its cluster. One name that ran jobs of two clusters becomes a machine of each."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        names = ("id", "project_id", "kind", "name", "first_seen_at", "last_seen_at", "part_of", "cluster")
        self._entities = sa.table("entities", *(sa.column(name) for name in names))
        self._jobs = sa.table("jobs", sa.column("id"), sa.column("cluster"))
        self._incidents = sa.table("incidents", sa.column("id"), sa.column("job_id"))
        self._exposures = sa.table("exposures", sa.column("job_id"), sa.column("entity_id"))
        self._accused = sa.table("accused", sa.column("incident_id"), sa.column("entity_id"))
        self._made: dict[tuple[int, str], int] = {}

    def split(self) -> None:
        entities, jobs = self._entities.c, self._jobs.c
        exposed = sa.select(self._exposures.c.entity_id, jobs.cluster).join(
            self._jobs, jobs.id == self._exposures.c.job_id
        )
        named = (
            sa.select(self._accused.c.entity_id, jobs.cluster)
            .join(self._incidents, self._incidents.c.id == self._accused.c.incident_id)
            .join(self._jobs, jobs.id == self._incidents.c.job_id)
        )
        clusters: dict[int, set[str]] = defaultdict(set)
        for each in (exposed, named):
            places = each.join(self._entities, entities.id == each.selected_columns[0])
            for entity, cluster in self._connection.execute(places.where(entities.kind.in_(_PLACES)).distinct()):
                clusters[entity].add(cluster)
        of_one = defaultdict(list)
        for entity, found in clusters.items():
            of_one[min(found)].append(entity)
        for cluster, ids in of_one.items():
            if cluster:
                for start in range(0, len(ids), _AT_A_TIME):
                    few = entities.id.in_(ids[start : start + _AT_A_TIME])
                    self._connection.execute(sa.update(self._entities).where(few).values(cluster=cluster))
        several = {entity: sorted(found)[1:] for entity, found in clusters.items() if len(found) > 1}
        for entity, others in several.items():
            for cluster in others:
                self._made[entity, cluster] = self._twin(entity, cluster)
        for (entity, cluster), twin in self._made.items():
            self._move(entity, cluster, twin)

    def _twin(self, entity: int, cluster: str) -> int:
        names = ("project_id", "kind", "name", "first_seen_at", "last_seen_at", "part_of")
        asked = sa.select(*(self._entities.c[name] for name in names)).where(self._entities.c.id == entity)
        row = dict(self._connection.execute(asked).one()._mapping)
        made = sa.insert(self._entities).values(**row, cluster=cluster).returning(self._entities.c.id)
        return int(self._connection.execute(made).scalar_one())

    def _move(self, entity: int, cluster: str, twin: int) -> None:
        of_cluster = sa.select(self._jobs.c.id).where(self._jobs.c.cluster == cluster)
        ran = (self._exposures.c.entity_id == entity, self._exposures.c.job_id.in_(of_cluster))
        self._connection.execute(sa.update(self._exposures).where(*ran).values(entity_id=twin))
        incidents = sa.select(self._incidents.c.id).where(self._incidents.c.job_id.in_(of_cluster))
        named = (self._accused.c.entity_id == entity, self._accused.c.incident_id.in_(incidents))
        self._connection.execute(sa.update(self._accused).where(*named).values(entity_id=twin))
        above = self._entities.c.part_of
        place = self._connection.execute(sa.select(above).where(self._entities.c.id == twin)).scalar()
        if (place, cluster) in self._made:
            same = self._entities.c.id == twin
            self._connection.execute(sa.update(self._entities).where(same).values(part_of=self._made[place, cluster]))


def _marks() -> None:
    op.create_table(
        "marks",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("entity_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("what", sa.String(20), nullable=False),
        sa.Column("who", sa.String(100), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["entity_id"], ["entities.id"], name=op.f("fk_marks_entity_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_marks_project_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_marks")),
    )
    op.create_index(op.f("ix_marks_entity_id"), "marks", ["entity_id"])
    op.create_index(op.f("ix_marks_project_id"), "marks", ["project_id"])


def _deliveries() -> None:
    op.execute("CREATE TABLE aside_deliveries AS SELECT * FROM deliveries")
    op.drop_table("deliveries")
    op.create_table(
        "deliveries",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("webhook_id", sa.Integer(), nullable=False),
        sa.Column("incident_id", sa.Integer()),
        sa.Column("event", sa.String(20), nullable=False),
        sa.Column("subject", sa.String(600), nullable=False),
        sa.Column("about", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("delivered_at", sa.Double()),
        sa.Column("problem", sa.Text()),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default="0"),
        sa.ForeignKeyConstraint(
            ["incident_id"], ["incidents.id"], name=op.f("fk_deliveries_incident_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name=op.f("fk_deliveries_webhook_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
        sa.UniqueConstraint("webhook_id", "event", "subject", name=op.f("uq_deliveries_webhook_id")),
    )
    op.execute(
        "INSERT INTO deliveries"
        " (id, webhook_id, incident_id, event, subject, about, created_at, delivered_at, problem, attempts)"
        " SELECT id, webhook_id, incident_id, event, 'incident ' || incident_id, '{}', created_at, delivered_at,"
        " problem, 0 FROM aside_deliveries"
    )
    op.drop_table("aside_deliveries")
    op.create_index(op.f("ix_deliveries_incident_id"), "deliveries", ["incident_id"])
    op.create_index(op.f("ix_deliveries_webhook_id_created_at"), "deliveries", ["webhook_id", "created_at"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "SELECT setval(pg_get_serial_sequence('deliveries', 'id'),"
            " (SELECT coalesce(max(id), 0) + 1 FROM deliveries), false)"
        )
