"""Pushes for tests of the server: bundles of recorded incidents, and what an agent says with them."""

from __future__ import annotations

import hashlib
import time
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hangscope.bundle.pack import write_bundle
from hangscope.server.intake.accept_push import Accepted, accept, note_blob, parse
from hangscope.server.store.access_tokens import Access, project
from hangscope.server.store.blob_store import BlobStore
from hangscope.server.store.database import Database

INCIDENTS = Path(__file__).parents[1] / "incidents"
CASES = Path(__file__).parents[1] / "cases"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@cache
def bundle(name: str) -> bytes:
    """The bundle of a recorded incident, or of a recorded case where there is no such incident."""
    source = INCIDENTS / name if (INCIDENTS / name).is_dir() else CASES / name
    target = Path(mkdtemp(prefix="hangscope-test-")) / f"{name}.tar.gz"
    write_bundle(source, target)
    data = target.read_bytes()
    target.unlink()
    target.parent.rmdir()
    return data


def push_value(data: bytes, *, job: str = "48537", **more: Any) -> dict[str, Any]:
    """What an agent says of a bundle that is one chunk."""
    said = {"sha256": sha(data), "size": len(data), "chunks": [sha(data)]}
    return {"cluster": "west", "job": job, "attempt": "0", "bundle": said, "captured_at": time.time(), **more}


def access(database: Database, name: str = "llm") -> Access:
    with database.write() as connection:
        return Access(1, "test", project(connection, name), name, frozenset(("push", "read", "admin")))


def push(database: Database, blobs: BlobStore, who: Access, data: bytes, **more: Any) -> Accepted:
    """As an agent does it: the blob, then the incident."""
    blobs.put(who.project_id, sha(data), [data], 1 << 30)
    note_blob(database, who.project_id, sha(data), len(data))
    accepted = accept(database, who, parse(push_value(data, **more), time.time()))
    assert isinstance(accepted, Accepted)
    return accepted
