"""What history answers to the pages and the API: suspects of a project, and the table that decides one incident."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from hangscope.server.history.decide import Decision, decide, sentence
from hangscope.server.history.observations import observations
from hangscope.server.history.scheduler_hints import hints, node_of
from hangscope.server.history.suspicion import JobRecord, Suspect, Suspicion, suspects
from hangscope.server.store.database import Database

MOST = 200
FRESH_S = 30.0
"""A project's past is read anew after so long: it is large, and changes slowly."""


@dataclass(slots=True)
class History:
    """The past of each project, as this process last read it."""

    database: Database
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _read: dict[int, tuple[float, list[JobRecord], Suspicion]] = field(default_factory=dict)

    def suspects(self, project_id: int) -> dict[str, Any]:
        """All who were named, with odds, counts and what could be done about those that are proposed."""
        past, found = self._past(project_id)
        proposed = {(each.kind, each.name) for each in found.proposed}
        return {
            "suspects": [
                _described(each, past, proposed=(each.kind, each.name) in proposed) for each in found.suspects[:MOST]
            ],
            "braked": found.braked,
            "outages": [{"at": at, "jobs": jobs} for at, jobs in found.outages],
        }

    def decision(self, project_id: int, cluster: str, job: str) -> Decision | None:
        """The deciding table of a job's hang; None where its roster or verdict says nothing."""
        past, _ = self._past(project_id)
        mine = _hung(past, f"{cluster}/{job}")
        return None if mine is None else decide(mine, past)

    def _past(self, project_id: int) -> tuple[list[JobRecord], Suspicion]:
        now = time.time()
        with self._lock:
            read = self._read.get(project_id)
        if read is not None and now - read[0] < FRESH_S:
            return read[1], read[2]
        with self.database.read() as connection:
            past = self._observe(connection, project_id, now)
        found = suspects(past, now)
        with self._lock:
            self._read[project_id] = (now, past, found)
        return past, found

    @staticmethod
    def _observe(connection: Connection, project_id: int, now: float) -> list[JobRecord]:
        return observations(connection, project_id, now)


def _described(suspect: Suspect, past: Sequence[JobRecord], *, proposed: bool) -> dict[str, Any]:
    node = node_of(suspect, past)
    return {
        **suspect._asdict(),
        "node": node,
        "proposed": proposed,
        "says": sentence(suspect, past),
        "hints": hints(suspect, node) if proposed else [],
    }


def _hung(past: Sequence[JobRecord], name: str) -> JobRecord | None:
    return next((job for job in past if job.name == name and job.hung_at is not None), None)
