"""Accepting an incident: its chunks are there already, its row and its work are written together, then the answer.

A bundle is sent in chunks, each a blob, so that an upload that broke off goes on where it was. A push is known by its
bundle's checksum: the same one twice is one part. Parts of one incident from many nodes join; a later part from the
same source takes the place of the earlier one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select, update

from hangscope.errors import InputError
from hangscope.server.intake import plain_values as plain
from hangscope.server.intake.job_rosters import JobName, job_row
from hangscope.server.store import work_queue
from hangscope.server.store.access_tokens import Access
from hangscope.server.store.blob_store import is_sha256
from hangscope.server.store.database import Database, insert_new, row_id
from hangscope.server.store.tables import BLOBS, INCIDENTS, PARTS

CHUNK_BYTES = 8 << 20
"""Of a bundle, each chunk but the last; the most that one upload may hold."""
MOST_BYTES = 2 << 30
"""Of one bundle."""
MOST_CHUNKS = MOST_BYTES // CHUNK_BYTES
MOST_ASKED = 10_000
"""Checksums in one question."""


@dataclass(frozen=True, slots=True)
class Accepted:
    incident: int
    is_new: bool
    """False: the same bundle was here before."""


@dataclass(frozen=True, slots=True)
class Lacking:
    sha256s: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PushedPart:
    """One bundle, and what its sender says of it."""

    sha256: str
    size: int
    chunks: tuple[str, ...]
    source: str
    captured_at: float
    hang: str
    job: JobName | None

    @property
    def identity(self) -> str:
        """What the parts of one incident have in common; a bundle of no known job is an incident of its own."""
        if self.job is None:
            return f"bundle {self.sha256}"
        return json.dumps([self.job.cluster, self.job.job, self.job.attempt, self.hang])


def parse(value: object, now: float) -> PushedPart:
    if not isinstance(value, dict):
        raise InputError("a push is a JSON object")
    bundle = plain.table(value, "bundle")
    chunks = tuple(plain.items(bundle, "chunks", MOST_CHUNKS + 1))
    size = plain.whole(bundle, "size", MOST_BYTES + 1)
    if not is_sha256(bundle.get("sha256")) or not all(map(is_sha256, chunks)) or not chunks:
        raise InputError("`bundle` needs `sha256` and the SHA-256 of each of its `chunks`")
    if size is None or len(chunks) > MOST_CHUNKS:
        raise InputError(f"`bundle` needs its `size` in bytes, of at most {MOST_BYTES:,}")
    return PushedPart(
        sha256=bundle["sha256"],
        size=size,
        chunks=chunks,
        source=plain.text(value, "source"),
        captured_at=plain.moment(value, "captured_at", now),
        hang=plain.text(value, "hang", 100),
        job=JobName.of(value) if plain.text(value, "job") else None,
    )


def lacking(connection: Connection, project_id: int, sha256s: Sequence[str]) -> list[str]:
    """Those of these blobs that the project does not have, each once, in order."""
    asked = list(dict.fromkeys(sha256s))
    there = set(_sizes(connection, project_id, asked))
    return [sha256 for sha256 in asked if sha256 not in there]


def accept(database: Database, access: Access, part: PushedPart, now: float | None = None) -> Accepted | Lacking:
    """Take a bundle whose chunks are all there. What it returns as accepted survives whatever comes."""
    now = time.time() if now is None else now
    with database.write() as connection:
        before = connection.execute(
            select(PARTS.c.incident_id).where(PARTS.c.project_id == access.project_id, PARTS.c.sha256 == part.sha256)
        ).first()
        if before is not None:
            return Accepted(before.incident_id, is_new=False)
        sizes = _sizes(connection, access.project_id, part.chunks)
        missing = [sha256 for sha256 in dict.fromkeys(part.chunks) if sha256 not in sizes]
        if missing:
            return Lacking(tuple(missing))
        if sum(sizes[sha256] for sha256 in part.chunks) != part.size:
            raise InputError("the chunks together are not of the size that the bundle is said to have")
        return _keep(connection, access.project_id, part, now)


def _keep(connection: Connection, project_id: int, part: PushedPart, now: float) -> Accepted:
    job_id = None if part.job is None else job_row(connection, project_id, part.job, part.captured_at)
    key = {"project_id": project_id, "identity": part.identity}
    rest = {
        "job_id": job_id,
        "state": "accepted",
        "received_at": now,
        "happened_at": part.captured_at,
        "words": " ".join(part.job or ()).lower(),
    }
    incident, made = row_id(connection, INCIDENTS, key, rest)
    kept = insert_new(
        connection,
        PARTS,
        {
            "project_id": project_id,
            "incident_id": incident,
            "sha256": part.sha256,
            "size": part.size,
            "chunks": json.dumps(part.chunks),
            "source": part.source,
            "received_at": now,
        },
    )
    if not kept:  # the same bundle at the same moment, by another connection
        return Accepted(incident, is_new=False)
    if not made:
        same = INCIDENTS.c.id == incident
        earlier = INCIDENTS.c.happened_at > part.captured_at
        connection.execute(update(INCIDENTS).where(same, earlier).values(happened_at=part.captured_at))
    work_queue.add(connection, work_queue.DIGEST, incident)
    return Accepted(incident, is_new=True)


def _sizes(connection: Connection, project_id: int, sha256s: Iterable[str]) -> Mapping[str, int]:
    wanted = list(dict.fromkeys(sha256s))
    found: dict[str, int] = {}
    for start in range(0, len(wanted), 500):  # SQLite takes so many values in one question, and more
        few = wanted[start : start + 500]
        rows = connection.execute(
            select(BLOBS.c.sha256, BLOBS.c.size).where(BLOBS.c.project_id == project_id, BLOBS.c.sha256.in_(few))
        )
        found.update({row.sha256: row.size for row in rows})
    return found


def note_blob(database: Database, project_id: int, sha256: str, size: int) -> None:
    """The blob is on the disk: from now on the project has it."""
    row: dict[str, Any] = {"project_id": project_id, "sha256": sha256, "size": size, "received_at": time.time()}
    with database.write() as connection:
        insert_new(connection, BLOBS, row)
