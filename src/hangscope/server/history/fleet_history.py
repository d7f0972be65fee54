"""What history answers to the pages, the API and `diagnose --server`: suspects, and whose fault one hang is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from hangscope.errors import InputError
from hangscope.server.digest import issue_groups
from hangscope.server.digest.fingerprint import OF_MACHINES, PARTS, completed, is_about_machines, program_of
from hangscope.server.history.decide import Decision, TrackRecord, decide, track_record
from hangscope.server.history.observations import cluster_of, one_incident, related, with_known
from hangscope.server.history.summary import Summary, summary
from hangscope.server.history.suspicion import JobRecord
from hangscope.server.intake import plain_values as plain
from hangscope.server.store.database import Database

SCHEMA = "hangscope.history/1"
ASKED = ("node", "gpu", "nic", "link", "leaf")
MOST_NAMED = 64
MOST_TRACK_RECORDS = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """What history says of one hang."""

    track_records: tuple[TrackRecord, ...]
    decision: Decision


@dataclass(frozen=True, slots=True)
class History:
    database: Database

    def suspects(self, project_id: int) -> dict[str, Any]:
        found = summary(self.database, project_id)
        return {**found.value, "made_at": found.made_at}

    def of_incident(self, project_id: int, incident_id: int) -> Answer | None:
        """Of a hang that was pushed; None where it is none."""
        beside = summary(self.database, project_id)
        with self.database.read() as connection:
            mine = one_incident(connection, project_id, incident_id, beside.proposed)
            return None if mine is None else self._answer(connection, project_id, mine, beside)

    def asked(self, project_id: int, value: object) -> dict[str, Any]:
        """Of a hang that somebody describes: what its verdict names, its fingerprint, job and time."""
        beside = summary(self.database, project_id)
        with self.database.read() as connection:
            mine = with_known(connection, project_id, _described(connection, project_id, value), beside.proposed)
            made = self._answer(connection, project_id, mine, beside)
            issue = issue_groups.seen_before(connection, project_id, mine.fingerprint, mine.name.partition("/")[2])
        return {"schema": SCHEMA, **as_json(made), "issue": issue}

    @staticmethod
    def _answer(connection: Connection, project_id: int, mine: JobRecord, beside: Summary) -> Answer:
        past = related(connection, project_id, mine, time.time(), beside.proposed)
        named = sorted((key for key in mine.accused if key[0] in ASKED), key=lambda key: (ASKED.index(key[0]), key[1]))
        return Answer(
            tuple(track_record(key, past, beside.rate(key[0]), mine.name) for key in named[:MOST_TRACK_RECORDS]),
            decide(mine, past, beside.rate, beside.proposed),
        )


def as_json(answer: Answer) -> dict[str, Any]:
    decision = answer.decision
    return {
        "track_records": [
            {
                "kind": each.kind,
                "name": each.name,
                "named": each.named,
                "jobs": each.jobs,
                "cluster": None if each.cluster is None else each.cluster._asdict(),
                "says": each.says,
            }
            for each in answer.track_records
        ],
        "answer": decision.answer,
        "says": decision.says,
        "rows": [each._asdict() for each in decision.rows],
        "experiment": None if decision.experiment is None else decision.experiment._asdict(),
    }


def _described(connection: Connection, project_id: int, value: object) -> JobRecord:
    if not isinstance(value, dict):
        raise InputError("a question is a JSON object")
    accused = frozenset(
        (plain.text(each, "kind", 20), plain.text(each, "name", 300))
        for each in plain.items(value, "accused", MOST_NAMED)
        if isinstance(each, dict)
    )
    job = plain.text(value, "job")
    cluster = plain.text(value, "cluster") or cluster_of(connection, project_id, job)
    kind = plain.text(value, "kind", 20)
    known = frozenset(key for key in accused if key[0] in ASKED and key[1] and is_about_machines(kind))
    hung_at = _moment(value)
    said = plain.table(value, "parts")
    parts = {name: plain.text(said, name, 300) for name in PARTS if plain.text(said, name, 300)}
    return JobRecord(
        f"{cluster}/{job}",
        hung_at or time.time(),
        "",
        {},
        hung_at,
        known,
        completed(parts, program_of(job), cluster).value if parts else plain.text(value, "fingerprint", 40),
        about_code=kind not in OF_MACHINES or value.get("raised") is True,
    )


def _moment(value: Mapping[str, Any]) -> float | None:
    return plain.moment(value, "happened_at", time.time()) if value.get("happened_at") is not None else None
