"""Accepting an incident: its chunks are there already, its row and its work are written together, then the answer.

A bundle is sent in chunks, each a blob, so that an upload that broke off goes on where it was. A push is known by its
bundle's checksum: the same one twice is one part. Parts of one incident from many nodes join; a later part from the
same source takes the place of the earlier one where the same token sent it: a part belongs to the token that made it
first, until that token is revoked or has run out. What took the place of what is kept, and written into the audit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, or_, select, update

from hangscope.errors import InputError
from hangscope.server.intake import budgets as project_budgets
from hangscope.server.intake import plain_values as plain
from hangscope.server.intake.budgets import DEFAULT, Budgets, OverBudget
from hangscope.server.intake.job_rosters import JobName, job_row
from hangscope.server.store import work_queue
from hangscope.server.store.access_tokens import Access
from hangscope.server.store.audit_log import write_down
from hangscope.server.store.blob_store import BlobStore, is_sha256
from hangscope.server.store.database import Database, insert_new, row_id
from hangscope.server.store.tables import BLOBS, INCIDENTS, PARTS, TOKENS

CHUNK_BYTES = 8 << 20
"""Of a bundle, each chunk but the last; the most that one upload may hold."""
MOST_BYTES = 2 << 30
"""Of one bundle."""
MOST_CHUNKS = MOST_BYTES // CHUNK_BYTES
MOST_ASKED = 10_000
"""Checksums in one question."""
MOST_PARTS = 5000
"""Of one incident: nodes of one job that each send theirs."""
MOST_PARTS_BYTES = 8 << 30
"""Of one incident: what one diagnosis reads."""


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
    """One bundle, and what its sender says of it. `evidence` is a checksum of what is in it, which stays the same when
    the same folder is bundled again."""

    sha256: str
    size: int
    chunks: tuple[str, ...]
    source: str
    captured_at: float
    hang: str
    job: JobName | None
    evidence: str = ""

    @property
    def identity(self) -> str:
        """What the parts of one incident have in common; a bundle of no known job is an incident of its own."""
        if self.job is None:
            return f"evidence {self.evidence}" if self.evidence else f"bundle {self.sha256}"
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
    evidence = value.get("evidence")
    return PushedPart(
        sha256=bundle["sha256"],
        size=size,
        chunks=chunks,
        source=plain.text(value, "source"),
        captured_at=plain.moment(value, "captured_at", now),
        hang=plain.text(value, "hang", 100),
        job=JobName.of(value) if plain.text(value, "job") else None,
        evidence=str(evidence) if is_sha256(evidence) else "",
    )


def lacking(connection: Connection, project_id: int, sha256s: Sequence[str]) -> list[str]:
    """Those of these blobs that the project does not have, each once, in order."""
    asked = list(dict.fromkeys(sha256s))
    there = set(_sizes(connection, project_id, asked))
    return [sha256 for sha256 in asked if sha256 not in there]


def accept(
    database: Database, access: Access, part: PushedPart, now: float | None = None, budgets: Budgets | None = DEFAULT
) -> Accepted | Lacking:
    """Take a bundle whose chunks are all there. What it returns as accepted survives whatever comes."""
    now = time.time() if now is None else now
    with database.write() as connection:
        before = connection.execute(
            select(PARTS.c.incident_id).where(PARTS.c.project_id == access.project_id, PARTS.c.sha256 == part.sha256)
        ).first()
        if before is not None:
            return Accepted(before.incident_id, is_new=False)
        # From here on nobody deletes a chunk of this project: see `use`.
        project_budgets.use(connection, access.project_id, budgets, claimed_bytes=part.size, kept_rows=3)
        project_budgets.check_queue(connection, access.project_id, budgets)
        sizes = _sizes(connection, access.project_id, part.chunks)
        missing = [sha256 for sha256 in dict.fromkeys(part.chunks) if sha256 not in sizes]
        if not missing:
            if sum(sizes[sha256] for sha256 in part.chunks) != part.size:
                raise InputError("the chunks together are not of the size that the bundle is said to have")
            return _keep(connection, access, part, now)
        project_budgets.use(connection, access.project_id, None, claimed_bytes=-part.size, kept_rows=-3)
        return Lacking(tuple(missing))


def _keep(connection: Connection, access: Access, part: PushedPart, now: float) -> Accepted:
    project_id = access.project_id
    job_id = None if part.job is None else job_row(connection, project_id, part.job, part.captured_at)
    key = {"project_id": project_id, "identity": part.identity}
    rest = {
        "job_id": job_id,
        "state": "accepted",
        "received_at": now,
        "happened_at": part.captured_at,
        "words": " ".join(part.job or ()).lower(),
        "token_id": access.token_id,
    }
    incident, made = row_id(connection, INCIDENTS, key, rest)
    earlier = [] if made else connection.execute(select(PARTS).where(PARTS.c.incident_id == incident)).all()
    if len(earlier) >= MOST_PARTS or sum(row.size for row in earlier) + part.size > MOST_PARTS_BYTES:
        raise InputError(f"an incident has at most {MOST_PARTS:,} parts of {MOST_PARTS_BYTES:,} bytes together")
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
            "token_id": access.token_id,
        },
    )
    if not kept:  # the same bundle at the same moment, by another connection
        return Accepted(incident, is_new=False)
    if not made:
        same = (INCIDENTS.c.id == incident, INCIDENTS.c.token_id == access.token_id)
        is_earlier = INCIDENTS.c.happened_at > part.captured_at
        connection.execute(update(INCIDENTS).where(*same, is_earlier).values(happened_at=part.captured_at))
        _note_replacement(connection, access, incident, part, earlier)
    work_queue.add(connection, work_queue.DIGEST, incident, project_id)
    return Accepted(incident, is_new=True)


def _note_replacement(
    connection: Connection, access: Access, incident: int, part: PushedPart, earlier: Sequence[Any]
) -> None:
    """Write down that a part took another's place, or that it did not, because it is of another token."""
    of_source = [row for row in earlier if part.source and row.source == part.source]
    if not of_source:
        return
    counting = {row.id for row in counting_parts(connection, incident)}
    newest = connection.execute(
        select(PARTS.c.id).where(PARTS.c.incident_id == incident, PARTS.c.sha256 == part.sha256)
    ).scalar()
    what = "part replaced" if newest in counting else "part of another token not counted"
    write_down(connection, access, what, f"incident {incident}, source {part.source}")


def counting_parts(connection: Connection, incident_id: int) -> list[Any]:
    """Of every source the newest part of the token that sent that source's first; those that do not say where they come
    from all count. A token that was revoked or has run out owns nothing any more."""
    rows = connection.execute(select(PARTS).where(PARTS.c.incident_id == incident_id).order_by(PARTS.c.id)).all()
    still = or_(TOKENS.c.expires_at.is_(None), TOKENS.c.expires_at > time.time())
    ids = {row.token_id for row in rows if row.token_id is not None}
    valid = set(
        connection.execute(
            select(TOKENS.c.id).where(TOKENS.c.id.in_(ids), TOKENS.c.revoked_at.is_(None), still)
        ).scalars()
    )
    owner: dict[str, int | None] = {}
    newest: dict[str, Any] = {}
    for row in rows:
        source = row.source or f"part {row.id}"
        if owner.get(source) not in valid:
            owner[source] = row.token_id
        if row.token_id == owner[source]:
            newest[source] = row
    return list(newest.values())


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


def check_room(database: Database, project_id: int, size: int, budgets: Budgets | None) -> None:
    """Raises where the project's budget does not allow so many bytes more: before they are written anywhere."""
    if budgets is not None:
        with database.read() as connection:
            project_budgets.check_stored(connection, project_id, budgets, size)


def keep_blob(
    database: Database,
    blobs: BlobStore,
    project_id: int,
    sha256: str,
    data: Iterable[bytes],
    most: int,
    budgets: Budgets | None = DEFAULT,
) -> int:
    """Put a blob into the store, and note that the project has it; returns its size. Whoever deletes a blob does so in
    a transaction like the one in which it is noted here: where it went between both, it is put there again."""
    pieces = list(data)
    for _ in range(3):
        size = blobs.put(project_id, sha256, pieces, most)
        try:
            with database.write() as connection:
                _note_blob(connection, project_id, sha256, size, budgets)
                if blobs.has(project_id, sha256):
                    return size
        except OverBudget:
            with database.write() as connection:
                project_budgets.use(connection, project_id, None)
                if not _sizes(connection, project_id, [sha256]):
                    blobs.delete(project_id, sha256)
            raise
    raise InputError("the blob was deleted while it was sent")


def _note_blob(connection: Connection, project_id: int, sha256: str, size: int, budgets: Budgets | None) -> None:
    """From now on the project has it, and nobody else changes that before the transaction ends."""
    project_budgets.use(connection, project_id, None)
    row = {"project_id": project_id, "sha256": sha256, "size": size, "received_at": time.time()}
    if insert_new(connection, BLOBS, row):
        project_budgets.use(connection, project_id, budgets, stored_bytes=size, kept_rows=1)
    else:
        same = (BLOBS.c.project_id == project_id, BLOBS.c.sha256 == sha256)
        connection.execute(update(BLOBS).where(*same).values(received_at=row["received_at"]))
