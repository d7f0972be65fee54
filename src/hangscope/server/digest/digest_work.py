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
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select, update
from sqlalchemy.exc import InterfaceError, OperationalError

from hangscope.errors import InputError
from hangscope.processes.isolated_python import helper_command
from hangscope.safeio import bounded_json
from hangscope.safeio.safe_files import Shelf, read_file
from hangscope.server.digest import digest_child, issue_groups
from hangscope.server.digest.digest_child import ChildLimits, bare_environment
from hangscope.server.digest.fingerprint import EVIDENCE, completed, program_of
from hangscope.server.digest.kept_values import Kept
from hangscope.server.intake import budgets as project_budgets
from hangscope.server.intake import plain_values as plain
from hangscope.server.intake.accept_push import counting_parts, keep_blob
from hangscope.server.intake.entities import NODE, Entity
from hangscope.server.intake.job_rosters import JobName, entity_rows, expose_in_batches, job_row, only_cluster
from hangscope.server.retention import delete_blobs
from hangscope.server.store import outbox, work_queue
from hangscope.server.store.blob_store import BlobError, BlobStore
from hangscope.server.store.database import Database, insert_new
from hangscope.server.store.tables import ACCUSED, INCIDENTS, JOBS
from hangscope.server.store.work_queue import Lease

FAILURES = 3
"""So often an incident is tried whose digest ends with an error; then it is kept as failed."""
ATTEMPTS = 12
"""So often one is begun in all, where the server that began it ended before it did: that may be the incident's fault,
and mostly is not."""
_VERDICT_BYTES = 64 << 20
_PAGE_BYTES = 256 << 20
_KEPT_BYTES = 16 << 20
_FOLDER = "hangscope-digest-"
_YOUNG_S = 60.0
"""A folder that was made just now may not be held yet."""
_ROOM = 256 << 20
"""Left free on the disk for what a diagnosis writes, and for others."""


class TryLater(Exception):
    """The digest failed for a reason that may pass: the child was killed, a blob is not to be had."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the child left: either a verdict, or the problem."""

    problem: str = ""
    kept: Kept | None = None
    verdict: bytes = b""
    page: bytes = b""


class Digester:
    """Digests accepted incidents, one at a time."""

    def __init__(self, database: Database, blobs: BlobStore, limits: ChildLimits | None = None) -> None:
        self._database = database
        self._blobs = blobs
        self._limits = limits or ChildLimits()

    def work(self, lease: Lease) -> None:
        """Digest the incident of `lease`, and give the lease back in the transaction that keeps the result. Whatever
        goes wrong is counted: no incident is tried for ever."""
        with self._database.read() as connection:
            incident = connection.execute(select(INCIDENTS).where(INCIDENTS.c.id == lease.subject)).first()
            parts = counting_parts(connection, lease.subject)
        if incident is None or not parts:  # deleted meanwhile
            with self._database.write() as connection:
                work_queue.finish(connection, lease)
            return
        if lease.attempts > ATTEMPTS:
            self._later(lease, f"given up: {ATTEMPTS} times the server ended before its diagnosis did", is_last=True)
            return
        began = time.monotonic()
        try:
            self._digest(lease, incident, parts)
        except (OperationalError, InterfaceError):
            raise  # the database is away, which no incident can help
        except Exception as error:
            problem = (
                str(error) if isinstance(error, TryLater | BlobError | OSError) else f"{type(error).__name__}: {error}"
            )
            self._later(lease, problem)
        with self._database.write() as connection:
            work_queue.spend(connection, incident.project_id, time.monotonic() - began)

    def _digest(self, lease: Lease, incident: Any, parts: Sequence[Any]) -> None:
        project_id = incident.project_id
        outcome = Outcome(problem=_REPEATS) if _repeat(parts) else self._diagnose(project_id, parts)
        verdict = self._put(project_id, outcome.verdict, _VERDICT_BYTES)
        page = self._put(project_id, outcome.page, _PAGE_BYTES)
        if outcome.kept is not None:
            incident = self._expose(incident, outcome.kept)
        with self._database.write() as connection:
            if connection.execute(select(INCIDENTS.c.id).where(INCIDENTS.c.id == incident.id)).first() is None:
                work_queue.finish(connection, lease)  # deleted meanwhile; what was put goes with what nobody refers to
                return
            project_budgets.use(connection, project_id, None)  # before any row of the project: see there
            _keep(connection, incident, outcome, verdict, page)
            work_queue.finish(connection, lease)
        before = {incident.verdict_sha256, incident.page_sha256} - {None, verdict, page}
        if before:
            with self._database.write() as connection:
                delete_blobs(connection, self._blobs, project_id, before)

    def _expose(self, incident: Any, kept: Kept) -> Any:
        """What the job is seen to have run on, in short transactions. Evidence of no known job gets one of its own:
        what hung there counts for its machines like any other hang."""
        job_id = incident.job_id
        if job_id is None:
            with self._database.write() as connection:
                cluster = _cluster(connection, incident.project_id, None, kept)
                name = JobName(cluster, f"{EVIDENCE}{incident.identity.rpartition(' ')[2][:12]}", "0")
                job_id = job_row(connection, incident.project_id, name, incident.happened_at)
                same = INCIDENTS.c.id == incident.id
                connection.execute(update(INCIDENTS).where(same).values(job_id=job_id))
                incident = connection.execute(select(INCIDENTS).where(same)).first() or incident
        with self._database.read() as connection:
            cluster = _cluster(connection, incident.project_id, job_id, kept)
        entities = kept.entities()
        expose_in_batches(self._database, incident.project_id, job_id, entities, incident.happened_at, cluster=cluster)
        return incident

    def _later(self, lease: Lease, problem: str, *, is_last: bool = False) -> None:
        problem = plain.clean(problem, 2000)
        with self._database.write() as connection:
            same = INCIDENTS.c.id == lease.subject
            if lease.failures + 1 < FAILURES and not is_last:
                connection.execute(update(INCIDENTS).where(same).values(problem=problem))
                work_queue.put_back(connection, lease)
                return
            values = {"state": "failed", "problem": problem, "digested_at": time.time()}
            connection.execute(update(INCIDENTS).where(same).values(**values))
            work_queue.finish(connection, lease)

    def _put(self, project_id: int, data: bytes, most: int) -> str | None:
        if not data:
            return None
        sha256 = hashlib.sha256(data).hexdigest()
        keep_blob(self._database, self._blobs, project_id, sha256, [data], most, None)
        return sha256

    def _diagnose(self, project_id: int, parts: Sequence[Any]) -> Outcome:
        _check_disk(sum(part.size for part in parts))
        folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
        try:
            with _held(folder), Shelf(folder) as shelf:
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
            env=bare_environment(os.environ, out),
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


_REPEATS = "its parts repeat each other's chunks: unpacked they would be many times what was sent"


def _repeat(parts: Sequence[Any]) -> bool:
    """Whether few chunks make up many bundles: what was sent is little, and what would be read is much."""
    chunks = [sha256 for part in parts for sha256 in json.loads(part.chunks)]
    return len(chunks) > 2 * len(set(chunks)) + 8


def _check_disk(size: int) -> None:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if size + _ROOM > free:
        raise TryLater(f"its {size:,} bytes do not fit into {tempfile.gettempdir()}, where {free:,} are free")


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Shows that somebody is at work in the folder, for as long as this process lives: see `clear_left_behind`."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flock(handle, LOCK_EX)
        yield
    finally:
        os.close(handle)


def clear_left_behind() -> int:
    """Take away the folders of digests whose server was killed; returns how many there were."""
    gone = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            status = os.fstat(handle)
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > _YOUNG_S:
                flock(handle, LOCK_EX | LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                gone += 1
        except OSError:
            continue
        finally:
            os.close(handle)
    return gone


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
        kept = Kept.of(bounded_json.loads(read_file(out / digest_child.KEPT, _KEPT_BYTES)))
        verdict = read_file(out / digest_child.VERDICT, _VERDICT_BYTES)
    except (OSError, ValueError, InputError):
        last = said.strip().splitlines()[-1:] or ["nothing"]
        return Outcome(problem=f"the diagnosis ended with status {status} and said: {last[0][:500]}")
    try:
        page = read_file(out / digest_child.PAGE, _PAGE_BYTES)
    except OSError:
        page = b""
    return Outcome(kept=kept, verdict=verdict, page=page)


def _keep(connection: Connection, incident: Any, outcome: Outcome, verdict: str | None, page: str | None) -> None:
    """Write down what the child found out: on the incident, its job, the machines and the issue."""
    now = time.time()
    if outcome.kept is None:
        values: dict[str, Any] = {"state": "failed", "problem": plain.clean(outcome.problem, 2000), "digested_at": now}
        connection.execute(update(INCIDENTS).where(INCIDENTS.c.id == incident.id).values(**values))
        return
    kept = outcome.kept
    fingerprint_id, event = _group(connection, incident, kept)
    if kept.world_size and incident.job_id is not None:
        unknown = (JOBS.c.id == incident.job_id, JOBS.c.world_size.is_(None))
        connection.execute(update(JOBS).where(*unknown).values(world_size=kept.world_size))
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
            **{
                name: getattr(kept, name)
                for name in ("outcome", "kind", "confidence", "headline", "summary", "waited_s")
            },
        )
    )
    if event in (issue_groups.NEW, issue_groups.REOPENED, issue_groups.AGAIN):
        _tell(connection, incident, event, now)


def _group(connection: Connection, incident: Any, kept: Kept) -> tuple[int | None, str]:
    """The incident's fingerprint, and what it means for its issue; nothing new where another part says the same."""
    if not kept.grouped:
        return None, ""
    job = connection.execute(select(JOBS.c.details, JOBS.c.name).where(JOBS.c.id == incident.job_id)).first()
    details = json.loads(job.details) if job is not None else {}
    commit = str(details.get("commit") or "")
    program = program_of(job.name) if job is not None else ""
    cluster = _cluster(connection, incident.project_id, incident.job_id, kept)
    found = completed(kept.explanation, program or str(details.get("image") or ""), cluster)
    fingerprint_id, event = issue_groups.assign(connection, incident.project_id, found, incident.happened_at, commit)
    return fingerprint_id, "" if fingerprint_id == incident.fingerprint_id else event


def _blame(connection: Connection, incident: Any, kept: Kept) -> None:
    """Which machines the verdict names, in place of what it named before."""
    entities = [Entity(kind, name) for kind, name, _ in kept.accused]
    cluster = _cluster(connection, incident.project_id, incident.job_id, kept)
    rows = entity_rows(connection, incident.project_id, entities, incident.happened_at, cluster=cluster)
    connection.execute(ACCUSED.delete().where(ACCUSED.c.incident_id == incident.id))
    for kind, name, role in kept.accused:
        row = {"incident_id": incident.id, "entity_id": rows[Entity(kind, name)], "role": role}
        insert_new(connection, ACCUSED, row)


def _cluster(connection: Connection, project_id: int, job_id: int | None, kept: Kept) -> str:
    """The cluster of the incident's job; where nobody said it, the only one that its nodes can be of."""
    said = connection.execute(select(JOBS.c.cluster).where(JOBS.c.id == job_id)).scalar() or ""
    nodes = {name for kind, name, _ in kept.accused if kind == NODE}
    nodes |= {entity.name for entity, _ in kept.exposed if entity.kind == NODE}
    return said or only_cluster(connection, project_id, sorted(nodes))


def _words(incident: Any, kept: Kept) -> str:
    """What a search finds the incident by."""
    words = [*json.loads(incident.identity)[:3]] if incident.identity.startswith("[") else []
    words += [kept.headline, *kept.explanation.values()]
    words += [name for _, name, _ in kept.accused]
    return " ".join(words).lower()[:8000]


def _tell(connection: Connection, incident: Any, event: str, now: float) -> None:
    """Have a message sent to every webhook of the project, once per incident and event."""
    outbox.tell(connection, incident.project_id, event, f"incident {incident.id}", now, incident_id=incident.id)
