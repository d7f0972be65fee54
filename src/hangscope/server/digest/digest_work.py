"""One incident's digest: its parts are brought together, a child diagnoses them, and what it says is kept at once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select, update

from hangscope.recorder.process.isolated_python import clean_environment, helper_command
from hangscope.safeio import bounded_json
from hangscope.safeio.safe_files import Shelf, read_file
from hangscope.server.digest import digest_child, issue_groups
from hangscope.server.digest.digest_child import ChildLimits
from hangscope.server.digest.fingerprint import Fingerprint
from hangscope.server.intake.entities import Entity
from hangscope.server.intake.job_rosters import entity_rows, expose
from hangscope.server.store import work_queue
from hangscope.server.store.blob_store import BlobError, BlobStore
from hangscope.server.store.database import Database, insert_new
from hangscope.server.store.tables import ACCUSED, BLOBS, DELIVERIES, INCIDENTS, JOBS, PARTS, WEBHOOKS
from hangscope.server.store.work_queue import Lease

ATTEMPTS = 3
"""So often an incident is tried whose child was killed from outside; then it is kept as not diagnosed."""
_VERDICT_BYTES = 64 << 20
_PAGE_BYTES = 256 << 20
_KEPT_BYTES = 16 << 20


class TryLater(Exception):
    """The digest failed for a reason that may pass: the child was killed, a blob is not to be had."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the child left: either a verdict, or the problem."""

    problem: str = ""
    kept: dict[str, Any] | None = None
    verdict: bytes = b""
    page: bytes = b""


class Digester:
    """Digests accepted incidents, one at a time."""

    def __init__(self, database: Database, blobs: BlobStore, limits: ChildLimits | None = None) -> None:
        self._database = database
        self._blobs = blobs
        self._limits = limits or ChildLimits()

    def work(self, lease: Lease) -> None:
        """Digest the incident of `lease`, and give the lease back in the transaction that keeps the result."""
        with self._database.read() as connection:
            incident = connection.execute(select(INCIDENTS).where(INCIDENTS.c.id == lease.subject)).first()
            parts = _newest_parts(connection, lease.subject)
        if incident is None or not parts:  # deleted meanwhile
            with self._database.write() as connection:
                work_queue.finish(connection, lease)
            return
        try:
            outcome = self._diagnose(incident.project_id, parts)
        except (TryLater, BlobError, OSError) as error:
            self._later(lease, str(error))
            return
        verdict = self._put(incident.project_id, outcome.verdict, _VERDICT_BYTES)
        page = self._put(incident.project_id, outcome.page, _PAGE_BYTES)
        with self._database.write() as connection:
            _keep(connection, incident, outcome, verdict, page)
            work_queue.finish(connection, lease)

    def _later(self, lease: Lease, problem: str) -> None:
        with self._database.write() as connection:
            same = INCIDENTS.c.id == lease.subject
            if lease.attempts < ATTEMPTS:
                connection.execute(update(INCIDENTS).where(same).values(problem=problem[:2000]))
                work_queue.put_back(connection, lease)
                return
            values = {"state": "failed", "problem": problem[:2000], "digested_at": time.time()}
            connection.execute(update(INCIDENTS).where(same).values(**values))
            work_queue.finish(connection, lease)

    def _put(self, project_id: int, data: bytes, most: int) -> str | None:
        if not data:
            return None
        sha256 = hashlib.sha256(data).hexdigest()
        size = self._blobs.put(project_id, sha256, [data], most)
        row = {"project_id": project_id, "sha256": sha256, "size": size, "received_at": time.time()}
        with self._database.write() as connection:
            insert_new(connection, BLOBS, row)
        return sha256

    def _diagnose(self, project_id: int, parts: Sequence[Any]) -> Outcome:
        folder = Path(tempfile.mkdtemp(prefix="hangscope-digest-"))
        try:
            with Shelf(folder) as shelf:
                for number, part in enumerate(parts):
                    with shelf.new(f"in/part-{number}.tar.gz") as out:
                        for piece in joined(self._blobs, project_id, part):
                            out.write(piece)
                with shelf.new("out/started") as out:
                    out.write(b"")
            paths = [str(folder / "in" / f"part-{number}.tar.gz") for number in range(len(parts))]
            return self._run(paths, folder / "out")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, paths: list[str], out: Path) -> Outcome:
        order = json.dumps({"paths": paths, "out": str(out), "limits": asdict(self._limits)})
        child = subprocess.Popen(
            helper_command(digest_child.__name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=clean_environment(os.environ),
            cwd=out,
            start_new_session=True,
        )
        try:
            _, said = child.communicate(order.encode(), timeout=self._limits.deadline_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return Outcome(problem=f"no verdict within {self._limits.deadline_s:g} s")
        return _read(out, child.returncode, said.decode(errors="replace"))


def joined(blobs: BlobStore, project_id: int, part: Any) -> Iterator[bytes]:
    """The bytes of a bundle out of its chunks, checked as a whole."""
    digest = hashlib.sha256()
    for sha256 in json.loads(part.chunks):
        for piece in blobs.read(project_id, sha256):
            digest.update(piece)
            yield piece
    if digest.hexdigest() != part.sha256:
        raise BlobError(f"the chunks of bundle {part.sha256[:12]} do not make it up")


def _read(out: Path, status: int, said: str) -> Outcome:
    """What the child left. Killed from outside it may be tried again; by a limit, or with an error, not."""
    try:
        return Outcome(problem=read_file(out / digest_child.PROBLEM, 1 << 16).decode(errors="replace"))
    except FileNotFoundError:
        pass
    if status == -9:
        raise TryLater("the diagnosis was killed")
    if status == -24:  # SIGXCPU
        return Outcome(problem="the diagnosis took more CPU time than it may have")
    try:
        kept = bounded_json.loads(read_file(out / digest_child.KEPT, _KEPT_BYTES))
        verdict = read_file(out / digest_child.VERDICT, _VERDICT_BYTES)
    except (OSError, ValueError):
        last = said.strip().splitlines()[-1:] or ["nothing"]
        return Outcome(problem=f"the diagnosis ended with status {status} and said: {last[0][:500]}")
    try:
        page = read_file(out / digest_child.PAGE, _PAGE_BYTES)
    except OSError:
        page = b""
    return Outcome(kept=kept, verdict=verdict, page=page)


def _newest_parts(connection: Connection, incident_id: int) -> list[Any]:
    """The last part of every source; those that do not say where they come from all count."""
    rows = connection.execute(select(PARTS).where(PARTS.c.incident_id == incident_id).order_by(PARTS.c.id)).all()
    by_source = {row.source or f"part {row.id}": row for row in rows}
    return list(by_source.values())


def _keep(connection: Connection, incident: Any, outcome: Outcome, verdict: str | None, page: str | None) -> None:
    """Write down what the child found out: on the incident, its job, the machines and the issue."""
    now = time.time()
    if outcome.kept is None:
        values: dict[str, Any] = {"state": "failed", "problem": outcome.problem[:2000], "digested_at": now}
        connection.execute(update(INCIDENTS).where(INCIDENTS.c.id == incident.id).values(**values))
        return
    kept = outcome.kept
    fingerprint_id, event = _group(connection, incident, kept)
    _blame(connection, incident, kept)
    connection.execute(
        update(INCIDENTS)
        .where(INCIDENTS.c.id == incident.id)
        .values(
            state="digested",
            digested_at=now,
            problem=None,
            fingerprint_id=fingerprint_id,
            verdict_sha256=verdict,
            page_sha256=page,
            words=_words(incident, kept),
            **{name: kept[name] for name in ("outcome", "kind", "confidence", "headline", "summary")},
        )
    )
    if event in (issue_groups.NEW, issue_groups.REOPENED, issue_groups.AGAIN):
        _tell(connection, incident, event, now)


def _group(connection: Connection, incident: Any, kept: dict[str, Any]) -> tuple[int | None, str]:
    """The incident's fingerprint, and what it means for its issue; nothing new where another part says the same."""
    if not kept["grouped"]:
        return None, ""
    details = connection.execute(select(JOBS.c.details).where(JOBS.c.id == incident.job_id)).scalar() or "{}"
    commit = str(json.loads(details).get("commit") or "")
    found = Fingerprint(kept["fingerprint"]["value"], kept["fingerprint"]["explanation"])
    fingerprint_id, event = issue_groups.assign(connection, incident.project_id, found, incident.happened_at, commit)
    return fingerprint_id, "" if fingerprint_id == incident.fingerprint_id else event


def _blame(connection: Connection, incident: Any, kept: dict[str, Any]) -> None:
    """Which machines the verdict names, in place of what it named before; and what the job is seen to have run on."""
    entities = [Entity(kind, name) for kind, name, _ in kept["accused"]]
    rows = entity_rows(connection, incident.project_id, entities, incident.happened_at)
    connection.execute(ACCUSED.delete().where(ACCUSED.c.incident_id == incident.id))
    for kind, name, role in kept["accused"]:
        row = {"incident_id": incident.id, "entity_id": rows[Entity(kind, name)], "role": role}
        insert_new(connection, ACCUSED, row)
    if incident.job_id is not None:
        on = {
            Entity(kind, name, Entity(*above) if all(above) else None): ranks
            for kind, name, *above, ranks in kept["exposed"]
        }
        expose(connection, incident.project_id, incident.job_id, on, incident.happened_at)


def _words(incident: Any, kept: dict[str, Any]) -> str:
    """What a search finds the incident by."""
    words = [*json.loads(incident.identity)[:3]] if incident.identity.startswith("[") else []
    words += [kept["headline"], kept["fingerprint"]["value"], *kept["fingerprint"]["explanation"].values()]
    words += [name for _, name, _ in kept["accused"]]
    return " ".join(words).lower()[:8000]


def _tell(connection: Connection, incident: Any, event: str, now: float) -> None:
    """Have a message sent to every webhook of the project, once per incident and event."""
    hooks = connection.execute(select(WEBHOOKS.c.id).where(WEBHOOKS.c.project_id == incident.project_id)).scalars()
    for hook in list(hooks):
        row = {"webhook_id": hook, "incident_id": incident.id, "event": event, "created_at": now}
        if insert_new(connection, DELIVERIES, row):
            made = connection.execute(
                select(DELIVERIES.c.id).where(
                    DELIVERIES.c.webhook_id == hook,
                    DELIVERIES.c.incident_id == incident.id,
                    DELIVERIES.c.event == event,
                )
            ).scalar_one()
            work_queue.add(connection, work_queue.DELIVER, made)
