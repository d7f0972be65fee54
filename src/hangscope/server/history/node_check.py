"""Whether a node is to be taken out, as health checks ask it: an unknown name is not a healthy node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, or_, select

from hangscope.server.store.database import Database
from hangscope.server.store.tables import ENTITIES

MOST_SIMILAR = 5


def check_node(
    database: Database,
    project_id: int,
    name: str,
    suspects: Sequence[Mapping[str, Any]],
    cluster: str | None = None,
) -> dict[str, Any]:
    """`name` as it is spelt here; else in lower case, or with or without its domain, where only one node is meant.
    Without its cluster a node that several have is not known."""
    with database.read() as connection:
        nodes = select(ENTITIES.c.name).where(ENTITIES.c.project_id == project_id, ENTITIES.c.kind == "node")
        if cluster is not None:
            nodes = nodes.where(ENTITIES.c.cluster == cluster)
        exact = connection.execute(nodes.where(ENTITIES.c.name == name)).scalar()
        similar: list[str] = []
        if exact is None and name:
            short = name.lower().partition(".")[0]
            lower = func.lower(ENTITIES.c.name)
            alike = or_(lower == short, lower.startswith(f"{short}.", autoescape=True))
            similar = list(
                connection.execute(nodes.where(alike).order_by(ENTITIES.c.name).limit(MOST_SIMILAR)).scalars()
            )
    # A short name stands for one with a domain; two names with different domains are two machines.
    same = [each for each in similar if "." not in name or "." not in each or each.lower() == name.lower()]
    meant = exact if exact is not None else same[0] if len(same) == 1 else None
    clusters = _clusters(database, project_id, meant) if meant is not None else []
    if meant is not None and cluster is None and len(clusters) > 1:
        said = [f"{meant} in cluster {each}" if each else f"{meant} without a cluster" for each in clusters]
        return {"node": meant, "known": False, "proposed": False, "says": "", "similar": said}
    of = {cluster} if cluster is not None else set(clusters)
    against = next(
        (
            each
            for each in suspects
            if each.get("proposed") is True and each.get("node") == meant and each.get("cluster") in of
        ),
        None,
    )
    return {
        "node": meant or name,
        "known": meant is not None,
        "proposed": against is not None and meant is not None,
        "says": "" if against is None or meant is None else str(against.get("says") or "suspect"),
        "similar": [] if meant is not None else similar,
    }


def _clusters(database: Database, project_id: int, name: str) -> list[str]:
    same = (ENTITIES.c.project_id == project_id, ENTITIES.c.kind == "node", ENTITIES.c.name == name)
    with database.read() as connection:
        return sorted(connection.execute(select(ENTITIES.c.cluster).where(*same)).scalars())
