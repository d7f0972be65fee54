"""The summary of a project's history: suspects, their rates and outages, made beforehand and kept as one row.

The past of a large fleet takes seconds to read and weigh. Pages never wait for that: they show the row that is there,
and say of when it is. A small project's is made at once by whoever asks; a large one's by a process of its own, on one
of the servers, when something has changed.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select, update
from sqlalchemy.exc import OperationalError

from hangscope.server.history import suspect_messages
from hangscope.server.history.decide import Rate, rates, track_record
from hangscope.server.history.observations import REACH_S, observations
from hangscope.server.history.place_names import apart, is_past
from hangscope.server.history.places import Places
from hangscope.server.history.scheduler_hints import hints, node_of
from hangscope.server.history.suspicion import LEAST_JOBS, JobRecord, Key, Suspect, Suspicion, suspects
from hangscope.server.intake.entities import PLACES
from hangscope.server.store.database import Database, insert_new
from hangscope.server.store.tables import EXPOSURES, INCIDENTS, JOBS, MARKS, PROJECTS, SUMMARIES

MOST = 200
WATCHED_ODDS = 0.01
"""Ten times likelier than before anything was known of a node: who is named by chance stays below."""
SMALL = 5_000
"""Exposures of a project whose summary is made while somebody waits for it."""
FRESH_S = 30.0
OLDEST_S = 3600.0
"""Even where nothing happens: older jobs count less by then."""
LEASE_S = 900.0
_NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Summary:
    """`value` is what the API gives; `made_at` None where there is none yet."""

    made_at: float | None
    value: Mapping[str, Any]

    def rate(self, kind: str) -> Rate | None:
        found = self.value.get("rates", {}).get(kind)
        return None if found is None else Rate(found["named"], found["jobs"])

    @property
    def proposed(self) -> set[Key]:
        return {
            (each["kind"], each.get("label", each["name"]))
            for each in self.value.get("suspects", ())
            if each["proposed"]
        }


EMPTY: Mapping[str, Any] = {"suspects": [], "braked": False, "outages": [], "rates": {}}


def summary(database: Database, project_id: int, now: float | None = None) -> Summary:
    """The summary as it is, and of a small project as of now."""
    now = time.time() if now is None else now
    with database.read() as connection:
        row = connection.execute(select(SUMMARIES).where(SUMMARIES.c.project_id == project_id)).first()
        made = Summary(row.made_at, json.loads(row.value)) if row and row.value else Summary(None, EMPTY)
        if made.made_at is not None and now - made.made_at < FRESH_S:
            return made
        covers = _covers(connection, project_id)
        is_current = row is not None and row.covers == covers and now - row.made_at < OLDEST_S
        if is_current or not _is_small(connection, project_id):
            return made
    return make(database, project_id, covers, now)


def make(database: Database, project_id: int, covers: str, now: float) -> Summary:
    """Read and weigh the whole past, and keep what came of it."""
    with database.read() as connection:
        past = observations(connection, project_id, now)
        only = Places(connection, project_id).only
    value = described(past, suspects(past, now), only)
    try:
        with database.write() as connection:
            value["announced"] = suspect_messages.tell(connection, project_id, value, now)
            row = {"made_at": now, "covers": covers, "leased_until": 0.0, "value": json.dumps(value)}
            if not insert_new(connection, SUMMARIES, {"project_id": project_id, **row}):
                same = SUMMARIES.c.project_id == project_id
                connection.execute(update(SUMMARIES).where(same, SUMMARIES.c.made_at <= now).values(**row))
    except OperationalError:
        pass  # the disk is full: what was made is shown all the same
    return Summary(now, value)


def stale(database: Database, now: float | None = None) -> tuple[int, str] | None:
    """A project whose summary is to be made, leased to whoever asked; and what the summary will cover."""
    now = time.time() if now is None else now
    with database.read() as connection:
        rows = connection.execute(
            select(PROJECTS.c.id, SUMMARIES.c.made_at, SUMMARIES.c.covers, SUMMARIES.c.leased_until)
            .outerjoin(SUMMARIES, SUMMARIES.c.project_id == PROJECTS.c.id)
            .order_by(func.coalesce(SUMMARIES.c.made_at, 0.0))
        ).all()
        due = []
        for row in rows:
            if row.made_at is not None and (now - row.made_at < FRESH_S or row.leased_until > now):
                continue
            covers = _covers(connection, row.id)
            if row.made_at is None or row.covers != covers or now - row.made_at > OLDEST_S:
                due.append((row.id, covers))
    return next(((project, covers) for project, covers in due if _lease(database, project, now)), None)


def _lease(database: Database, project_id: int, now: float) -> bool:
    row = {"project_id": project_id, "made_at": 0.0, "covers": "", "leased_until": now + LEASE_S, "value": ""}
    with database.write() as connection:
        if insert_new(connection, SUMMARIES, row):
            return True
        free = (SUMMARIES.c.project_id == project_id, SUMMARIES.c.leased_until <= now)
        return connection.execute(update(SUMMARIES).where(*free).values(leased_until=now + LEASE_S)).rowcount == 1


def _covers(connection: Connection, project_id: int) -> str:
    """What the past consists of, in short: something else where anything came or went."""
    jobs = connection.execute(select(func.max(JOBS.c.id)).where(JOBS.c.project_id == project_id)).scalar()
    digested = connection.execute(
        select(func.max(INCIDENTS.c.digested_at)).where(INCIDENTS.c.project_id == project_id)
    ).scalar()
    marks = connection.execute(select(func.max(MARKS.c.id)).where(MARKS.c.project_id == project_id)).scalar()
    return f"job {jobs or 0}, digested {digested or 0:.6f}, mark {marks or 0}"


def _is_small(connection: Connection, project_id: int) -> bool:
    mine = select(JOBS.c.id).where(JOBS.c.project_id == project_id, JOBS.c.started_at > time.time() - REACH_S)
    few = select(EXPOSURES.c.job_id).where(EXPOSURES.c.job_id.in_(mine)).limit(SMALL + 1).subquery()
    return int(connection.execute(select(func.count()).select_from(few)).scalar_one()) <= SMALL


def described(past: Sequence[JobRecord], found: Suspicion, only_cluster: str = "") -> dict[str, Any]:
    """All who were named, with odds, counts and what could be done about those that are proposed; everybody's rates.
    `only_cluster` is the one that all machines are of."""
    everybody = rates(past)
    proposed = {(each.kind, each.name) for each in found.proposed}
    shown = [each for each in found.suspects if not is_past(each.name)][:MOST]
    jobs = _jobs_of({(each.kind, each.name) for each in shown}, past)
    return {
        "suspects": [_suspect(each, jobs[each.kind, each.name], everybody, proposed, only_cluster) for each in shown],
        "braked": found.braked,
        "outages": [{"at": at, "jobs": jobs} for at, jobs in found.outages],
        "rates": {kind: rate._asdict() for kind, rate in everybody.items()},
    }


def _jobs_of(keys: set[Key], past: Sequence[JobRecord]) -> Mapping[Key, list[JobRecord]]:
    """The jobs in which each of these took part or was named: the past of a fleet is not read once for each."""
    by_kind: dict[str, set[str]] = defaultdict(set)
    for kind, name in keys:
        by_kind[kind].add(name)
    found: dict[Key, list[JobRecord]] = defaultdict(list)
    for job in past:
        there = {(kind, name) for kind, names in by_kind.items() for name in names & job.took_part.get(kind, _NOBODY)}
        for key in there | (job.accused & keys):
            found[key].append(job)
    return found


def _suspect(
    suspect: Suspect,
    past: Sequence[JobRecord],
    everybody: Mapping[str, Rate],
    proposed: set[tuple[str, str]],
    only_cluster: str,
) -> dict[str, Any]:
    key = (suspect.kind, suspect.name)
    label = node_of(suspect, past)
    node = None if label is None else apart(label)[0]
    name, cluster = apart(suspect.name) if suspect.kind in PLACES else (suspect.name, "")
    is_proposed = key in proposed
    return {
        **suspect._asdict(),
        "name": name,
        "cluster": cluster or (only_cluster if suspect.kind in PLACES else ""),
        "label": suspect.name,
        "node": node,
        "proposed": is_proposed,
        "watched": not is_proposed and is_watched(suspect),
        "says": track_record(key, past, everybody.get(suspect.kind)).says,
        "hints": hints(suspect, node) if is_proposed else [],
    }


def is_watched(suspect: Suspect) -> bool:
    """Whether more speaks against it than chance would, though not enough to do anything about it."""
    return suspect.named >= LEAST_JOBS and suspect.named > 2 * suspect.expected and suspect.odds >= WATCHED_ODDS
