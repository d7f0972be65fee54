"""The past of a project out of its database: jobs with what they ran on, whether they hung, and what was named.

All of it for suspicion; for one incident only what has to do with it, which is little however large the past is.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, or_, select

from hangscope.server.digest.fingerprint import is_about_code, is_about_machines, program_of
from hangscope.server.history.place_names import apart, before_repair, ends
from hangscope.server.history.places import NONE, Marks, Places
from hangscope.server.history.suspicion import DOUBT, OUTAGE_S, JobRecord, Key
from hangscope.server.intake.entities import LEAF, LINK, MOUNT, NODE, PLACES, RANK
from hangscope.server.store.tables import ACCUSED, ENTITIES, EXPOSURES, FINGERPRINTS, INCIDENTS, JOBS
from hangscope.verdict_words import NO_TROUBLE

REACH_S = 84 * 86400.0
"""Six half-lives: what is older counts for nothing."""
KINDS = ("node", "gpu", "nic", "leaf", "commit", "image", "mount")
DOUBTS = {"high": 0.05, "medium": 0.2}
"""How often a verdict names the wrong one, by how sure it says it is."""
MOST_JOBS = 3000
MOST_SAME = 1000
MOST_TOGETHER = 200
_AT_A_TIME = 1000


class _Entity(NamedTuple):
    kind: str
    name: str
    leaf: str
    """Of a node: the switch that it is below."""
    marks: Marks = NONE

    def as_of(self, at: float) -> str:
        """What it was then."""
        return before_repair(self.name) if at < self.marks.repaired_at else self.name


class _Hang(NamedTuple):
    at: float
    fingerprint: str
    accused: set[Key]
    culprits: set[str]
    """Nodes that are more than an end of a link."""
    doubts: list[float]
    about_code: bool


def observations(connection: Connection, project_id: int, now: float) -> list[JobRecord]:
    """Every job that started within reach."""
    mine = (JOBS.c.project_id == project_id, JOBS.c.started_at > now - REACH_S)
    jobs = connection.execute(select(JOBS).where(*mine)).all()
    places = Places(connection, project_id)
    entities = _entities(connection, places, ENTITIES.c.project_id == project_id, ENTITIES.c.kind.in_(KINDS))
    on: dict[int, list[_Entity]] = defaultdict(list)
    pairs = select(EXPOSURES.c.job_id, EXPOSURES.c.entity_id).join(JOBS, JOBS.c.id == EXPOSURES.c.job_id).where(*mine)
    for job, entity in connection.execute(pairs):
        if entity in entities:
            on[job].append(entities[entity])
    recent = (INCIDENTS.c.project_id == project_id, INCIDENTS.c.happened_at > now - REACH_S)
    return _records(jobs, on, _hangs(connection, places, *recent))


def one_incident(
    connection: Connection, project_id: int, incident_id: int, proposed: Iterable[Key] = ()
) -> JobRecord | None:
    """The job as this incident's verdict has it, whatever other incidents it had; None where it did not hang. Of what
    it ran on, its mounts and those of `proposed`."""
    places = Places(connection, project_id)
    hangs = _hangs(connection, places, INCIDENTS.c.project_id == project_id, INCIDENTS.c.id == incident_id)
    if not hangs:
        return None
    (job_id,) = hangs
    rows = connection.execute(select(JOBS).where(JOBS.c.id == job_id)).all()
    wanted = or_(ENTITIES.c.kind == MOUNT, ENTITIES.c.id.in_(_ids(connection, project_id, proposed)))
    return _records(rows, _exposures(connection, places, [job_id], wanted), hangs)[0]


def with_known(
    connection: Connection, project_id: int, described: JobRecord, proposed: Iterable[Key] = ()
) -> JobRecord:
    """A hang that somebody describes, with what is known here of its job and machines: as if it had been pushed."""
    cluster, _, name = described.name.partition("/")
    places = Places(connection, project_id)
    accused = frozenset((kind, places.label(kind, each, cluster)) for kind, each in described.accused)
    described = replace(described, accused=accused)
    same = (JOBS.c.project_id == project_id, JOBS.c.cluster == cluster, JOBS.c.name == name)
    row = connection.execute(select(JOBS).where(*same).order_by(JOBS.c.started_at.desc()).limit(1)).first()
    found = described
    if row is not None:
        wanted = or_(ENTITIES.c.kind == MOUNT, ENTITIES.c.id.in_(_ids(connection, project_id, proposed)))
        (known,) = _records([row], _exposures(connection, places, [row.id], wanted), {})
        found = replace(found, code=known.code, took_part=known.took_part)
    nodes = _ids(connection, project_id, [key for key in described.accused if key[0] == NODE])
    leaves = {each.leaf for each in _entities(connection, places, ENTITIES.c.id.in_(nodes)).values() if each.leaf}
    return replace(found, accused=found.accused | {(LEAF, leaf) for leaf in leaves})


def cluster_of(connection: Connection, project_id: int, job: str) -> str:
    """The cluster of a job of which only the name is known."""
    same = select(JOBS.c.cluster).where(JOBS.c.project_id == project_id, JOBS.c.name == job)
    return str(connection.execute(same.order_by(JOBS.c.started_at.desc()).limit(1)).scalar() or "")


def related(
    connection: Connection, project_id: int, mine: JobRecord, now: float, proposed: Iterable[Key] = ()
) -> list[JobRecord]:
    """The jobs that say something about a hang: with the machines that it names, with the same fingerprint, or hung in
    the same minutes. Of what they ran on, what the hang names, and those of `proposed`."""
    wanted = set(mine.accused)
    for kind, name in mine.accused:
        if kind == LINK:
            wanted |= {(NODE, end) for end in ends(name)}
    ids = _ids(connection, project_id, wanted)
    rows = _related_jobs(connection, project_id, mine, ids, now)
    few = [row.id for row in rows]
    shown = {*ids, *_ids(connection, project_id, proposed)}
    places = Places(connection, project_id)
    on = _exposures(connection, places, few, or_(ENTITIES.c.id.in_(shown), ENTITIES.c.kind == MOUNT))
    hangs: dict[int, _Hang] = {}
    for start in range(0, len(few), _AT_A_TIME):
        hangs |= _hangs(connection, places, INCIDENTS.c.job_id.in_(few[start : start + _AT_A_TIME]))
    return _records(rows, on, hangs)


def _ids(connection: Connection, project_id: int, keys: Iterable[Key]) -> list[int]:
    by_kind: dict[tuple[str, str], list[str]] = defaultdict(list)
    for kind, label in keys:
        name, cluster = apart(label) if kind in PLACES else (label, "")
        by_kind[kind, cluster].append(name)
    found: list[int] = []
    for (kind, cluster), names in by_kind.items():
        same = [ENTITIES.c.project_id == project_id, ENTITIES.c.kind == kind, ENTITIES.c.name.in_(names)]
        if cluster:
            same.append(ENTITIES.c.cluster == cluster)
        found += connection.execute(select(ENTITIES.c.id).where(*same)).scalars()
    return found


def _related_jobs(
    connection: Connection, project_id: int, mine: JobRecord, ids: Sequence[int], now: float
) -> Sequence[Any]:
    recent = (JOBS.c.project_id == project_id, JOBS.c.started_at > now - REACH_S)
    with_it = (
        select(JOBS.c.id)
        .where(*recent, JOBS.c.id.in_(select(EXPOSURES.c.job_id).where(EXPOSURES.c.entity_id.in_(ids))))
        .order_by(JOBS.c.started_at.desc())
        .limit(MOST_JOBS)
    )
    numbers = set(connection.execute(with_it).scalars()) if ids else set()
    hung = select(INCIDENTS.c.job_id).where(INCIDENTS.c.project_id == project_id, INCIDENTS.c.job_id.is_not(None))
    hung = hung.order_by(INCIDENTS.c.happened_at.desc())
    if mine.fingerprint:
        known = select(FINGERPRINTS.c.id).where(
            FINGERPRINTS.c.project_id == project_id, FINGERPRINTS.c.value == mine.fingerprint
        )
        same = hung.where(INCIDENTS.c.fingerprint_id.in_(known)).limit(MOST_SAME)
        numbers |= set(connection.execute(same).scalars())
    if mine.hung_at is not None:
        near = INCIDENTS.c.happened_at.between(mine.hung_at - OUTAGE_S, mine.hung_at + OUTAGE_S)
        numbers |= set(connection.execute(hung.where(near).limit(MOST_TOGETHER)).scalars())
    rows: list[Any] = []
    ordered = sorted(numbers)
    for start in range(0, len(ordered), _AT_A_TIME):
        few = JOBS.c.id.in_(ordered[start : start + _AT_A_TIME])
        rows += connection.execute(select(JOBS).where(*recent, few)).all()
    return rows


def _records(jobs: Sequence[Any], on: dict[int, list[_Entity]], hangs: dict[int, _Hang]) -> list[JobRecord]:
    links = {name for hang in hangs.values() for kind, name in hang.accused if kind == LINK}
    return [_record(row, on.get(row.id, ()), hangs.get(row.id), links) for row in jobs]


def _record(row: Any, on: Sequence[_Entity], hang: _Hang | None, links: Iterable[str]) -> JobRecord:
    parts: dict[str, set[str]] = defaultdict(set)
    at = row.started_at if hang is None else hang.at
    for entity in on:
        parts[entity.kind].add(entity.as_of(at))
    took_part = {kind: frozenset(names) for kind, names in parts.items()}
    nodes = took_part.get(NODE, frozenset())
    if links:
        took_part[LINK] = frozenset(link for link in links if set(ends(link)) <= nodes)
    below = Counter(each.leaf for each in on if each.kind == NODE and each.leaf)
    name = f"{row.cluster}/{row.name}"
    well = JobRecord(name, row.started_at, _program(row, took_part), took_part, below=below)
    if hang is None:
        return well
    return replace(
        well,
        hung_at=hang.at,
        accused=frozenset(hang.accused),
        fingerprint=hang.fingerprint,
        about_code=hang.about_code,
        doubt=min(hang.doubts, default=DOUBT),
        ends=frozenset(name for kind, name in hang.accused if kind == NODE) - hang.culprits,
    )


def _program(row: Any, parts: dict[str, frozenset[str]]) -> str:
    """What jobs of the same program have in common, whatever its commit: their name without numbers, else the image."""
    return str(program_of(str(row.name)) or next(iter(sorted(parts.get("image", ()))), ""))


def _entities(connection: Connection, places: Places, *which: ColumnElement[bool]) -> dict[int, _Entity]:
    above = ENTITIES.alias("above")
    rows = connection.execute(
        select(ENTITIES, above.c.kind.label("above_kind"), above.c.name.label("above_name"))
        .outerjoin(above, above.c.id == ENTITIES.c.part_of)
        .where(*which)
    )
    return {
        row.id: _Entity(
            row.kind,
            places.label(row.kind, row.name, row.cluster),
            places.label(LEAF, row.above_name, row.cluster) if row.above_kind == LEAF else "",
            places.marks(row.id, row.kind, row.name, row.cluster, row.part_of),
        )
        for row in rows
    }


def _exposures(
    connection: Connection, places: Places, jobs: Sequence[int], which: ColumnElement[bool]
) -> dict[int, list[_Entity]]:
    """What these jobs ran on, of the entities that `which` selects."""
    found: dict[int, list[_Entity]] = defaultdict(list)
    for start in range(0, len(jobs), _AT_A_TIME):
        few = jobs[start : start + _AT_A_TIME]
        columns = [ENTITIES.c[name] for name in ("id", "kind", "name", "cluster", "part_of")]
        for row in connection.execute(
            select(EXPOSURES.c.job_id, *columns)
            .join(ENTITIES, ENTITIES.c.id == EXPOSURES.c.entity_id)
            .where(EXPOSURES.c.job_id.in_(few), which)
        ):
            marks = places.marks(row.id, row.kind, row.name, row.cluster, row.part_of)
            found[row.job_id].append(_Entity(row.kind, places.label(row.kind, row.name, row.cluster), "", marks))
    return found


def _hangs(connection: Connection, places: Places, *which: ColumnElement[bool]) -> dict[int, _Hang]:
    """By job: when its first incident was, its fingerprint, which machines its verdicts accuse with more than low
    confidence."""
    above = ENTITIES.alias("above")
    found: dict[int, _Hang] = {}
    mine = (*which, INCIDENTS.c.job_id.is_not(None), INCIDENTS.c.outcome.not_in(NO_TROUBLE))
    for row in connection.execute(
        select(
            INCIDENTS.c.job_id,
            INCIDENTS.c.happened_at,
            INCIDENTS.c.kind,
            FINGERPRINTS.c.value,
            FINGERPRINTS.c.explanation,
        )
        .outerjoin(FINGERPRINTS, FINGERPRINTS.c.id == INCIDENTS.c.fingerprint_id)
        .where(*mine)
        .order_by(INCIDENTS.c.happened_at)
    ):
        about_code = is_about_code(row.kind or "", json.loads(row.explanation or "{}"))
        found.setdefault(row.job_id, _Hang(row.happened_at, row.value or "", set(), set(), [], about_code))
    for each in connection.execute(
        select(
            INCIDENTS.c.job_id,
            INCIDENTS.c.confidence,
            INCIDENTS.c.kind.label("verdict"),
            INCIDENTS.c.happened_at,
            ACCUSED.c.role,
            ENTITIES.c.id,
            ENTITIES.c.kind,
            ENTITIES.c.name,
            ENTITIES.c.cluster,
            above.c.id.label("above_id"),
            above.c.kind.label("above_kind"),
            above.c.name.label("above_name"),
        )
        .join(ACCUSED, ACCUSED.c.incident_id == INCIDENTS.c.id)
        .join(ENTITIES, ENTITIES.c.id == ACCUSED.c.entity_id)
        .outerjoin(above, above.c.id == ENTITIES.c.part_of)
        .where(*mine, ENTITIES.c.kind != RANK, INCIDENTS.c.confidence != "low")
    ):
        hang = found[each.job_id]
        if not is_about_machines(each.verdict or ""):
            continue  # that a mismatched call was made on a node says nothing of the node
        marks = places.marks(each.id, each.kind, each.name, each.cluster, each.above_id)
        if each.happened_at < marks.dismissed_at:
            continue  # somebody looked, and said that it was not this
        name = _Entity(each.kind, places.label(each.kind, each.name, each.cluster), "", marks).as_of(each.happened_at)
        hang.accused.add((each.kind, name))
        hang.doubts.append(DOUBTS.get(each.confidence, DOUBT))
        if each.kind == NODE and each.role != LINK:
            hang.culprits.add(name)
        if each.above_kind == LEAF:
            hang.accused.add((LEAF, places.label(LEAF, each.above_name, each.cluster)))
    return found
