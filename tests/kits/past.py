"""The past of a small fleet: healthy jobs, and hangs whose verdict names one node."""

from __future__ import annotations

import time

from sqlalchemy import insert

from hangscope.server.intake.entities import Entity
from hangscope.server.intake.job_rosters import JobName, add_roster, entity_rows, job_row
from hangscope.server.store.database import Database
from hangscope.server.store.tables import ACCUSED, INCIDENTS

HOUR_S = 3600.0


def fleet(database: Database, project: int, *clusters: str) -> None:
    """Sixty healthy jobs in each cluster, on thirty nodes of the same names."""
    now = time.time()
    for cluster in clusters:
        for number in range(60):
            nodes = [{"node": f"node{(number + each) % 30}"} for each in range(4)]
            at = now - 48 * HOUR_S + number * 600
            roster = {"cluster": cluster, "job": f"train-{number}", "started_at": at, "nodes": nodes}
            add_roster(database, project, roster)


def hang(database: Database, project: int, cluster: str, number: int, node: str, hours_ago: float) -> None:
    """A job that hung, whose verdict names the GPU's node at high confidence."""
    at = time.time() - hours_ago * HOUR_S
    name = f"train-{100 + number}"
    nodes = [{"node": node}, {"node": f"node{10 + number}"}]
    add_roster(database, project, {"cluster": cluster, "job": name, "started_at": at - 60, "nodes": nodes})
    with database.write() as connection:
        row = job_row(connection, project, JobName(cluster, name, "0"), at)
        values = {"outcome": "hang", "kind": "gpu", "confidence": "high", "headline": "x", "words": ""}
        times = {"received_at": at, "happened_at": at, "digested_at": time.time()}
        made = insert(INCIDENTS).values(
            project_id=project, job_id=row, identity=f"{cluster} {name}", state="digested", **times, **values
        )
        incident = connection.execute(made.returning(INCIDENTS.c.id)).scalar_one()
        entity = Entity("node", node)
        rows = entity_rows(connection, project, [entity], at, cluster=cluster)
        connection.execute(insert(ACCUSED).values(incident_id=incident, entity_id=rows[entity], role="culprit"))
