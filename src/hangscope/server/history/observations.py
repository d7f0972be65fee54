"""The past of a project out of its database: every job with what it ran on, whether it hung, and what was named."""

from __future__ import annotations

import json
import re
from collections import defaultdict

from sqlalchemy import Connection, select

from hangscope.server.history.suspicion import JobRecord
from hangscope.server.store.tables import ACCUSED, ENTITIES, EXPOSURES, FINGERPRINTS, INCIDENTS, JOBS

REACH_S = 84 * 86400.0
"""Six half-lives: what is older counts for nothing."""
KINDS = ("node", "gpu", "nic", "leaf", "commit", "image", "mount")
HANGS = ("hang", "crash", "slow")
_NUMBERS = re.compile(r"[\d._-]+")


def observations(connection: Connection, project_id: int, now: float) -> list[JobRecord]:
    """Every job that started within reach."""
    rows = connection.execute(
        select(JOBS).where(JOBS.c.project_id == project_id, JOBS.c.started_at > now - REACH_S)
    ).all()
    took_part = _took_part(connection, project_id, now)
    hangs = _hangs(connection, project_id, now)
    links = {name for _, accused, _ in hangs.values() for kind, name in accused if kind == "link"}
    found = []
    for row in rows:
        parts = {kind: frozenset(names) for kind, names in took_part.get(row.id, {}).items()}
        nodes = parts.get("node", frozenset())
        parts["link"] = frozenset(link for link in links if set(link.split(" -> ")) <= nodes)
        hung_at, accused, fingerprint = hangs.get(row.id, (None, set(), ""))
        name = f"{row.cluster}/{row.name}"
        found.append(
            JobRecord(name, row.started_at, _program(row, parts), parts, hung_at, frozenset(accused), fingerprint)
        )
    return found


def _program(row: object, parts: dict[str, frozenset[str]]) -> str:
    """What jobs of the same program have in common, whatever its commit: their name without numbers, else the image."""
    details = json.loads(getattr(row, "details", "{}"))
    stem = _NUMBERS.sub("", str(getattr(row, "name", "")))
    return str(details.get("program") or stem or next(iter(sorted(parts.get("image", ()))), ""))


def _took_part(connection: Connection, project_id: int, now: float) -> dict[int, dict[str, set[str]]]:
    found: dict[int, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    rows = connection.execute(
        select(EXPOSURES.c.job_id, ENTITIES.c.kind, ENTITIES.c.name)
        .join(ENTITIES, ENTITIES.c.id == EXPOSURES.c.entity_id)
        .join(JOBS, JOBS.c.id == EXPOSURES.c.job_id)
        .where(JOBS.c.project_id == project_id, JOBS.c.started_at > now - REACH_S, ENTITIES.c.kind.in_(KINDS))
    )
    for job, kind, name in rows:
        found[job][kind].add(name)
    return found


Hang = tuple[float, set[tuple[str, str]], str]


def _hangs(connection: Connection, project_id: int, now: float) -> dict[int, Hang]:
    """By job: when its first incident was, what its verdicts name with more than low confidence, its fingerprint."""
    above = ENTITIES.alias("above")
    found: dict[int, Hang] = {}
    mine = (
        INCIDENTS.c.project_id == project_id,
        INCIDENTS.c.job_id.is_not(None),
        INCIDENTS.c.outcome.in_(HANGS),
        INCIDENTS.c.happened_at > now - REACH_S,
    )
    for row in connection.execute(
        select(INCIDENTS.c.job_id, INCIDENTS.c.happened_at, FINGERPRINTS.c.value)
        .outerjoin(FINGERPRINTS, FINGERPRINTS.c.id == INCIDENTS.c.fingerprint_id)
        .where(*mine)
        .order_by(INCIDENTS.c.happened_at)
    ):
        found.setdefault(row.job_id, (row.happened_at, set(), row.value or ""))
    for job, kind, name, above_kind, above_name in connection.execute(
        select(INCIDENTS.c.job_id, ENTITIES.c.kind, ENTITIES.c.name, above.c.kind, above.c.name)
        .join(ACCUSED, ACCUSED.c.incident_id == INCIDENTS.c.id)
        .join(ENTITIES, ENTITIES.c.id == ACCUSED.c.entity_id)
        .outerjoin(above, above.c.id == ENTITIES.c.part_of)
        .where(*mine, ENTITIES.c.kind != "rank", INCIDENTS.c.confidence != "low")
    ):
        named = found[job][1]
        named.add((kind, name))
        if above_kind == "leaf":
            named.add((above_kind, above_name))
    return found
