"""What simulated dumps hold, read by plain Python."""

from __future__ import annotations

import gzip
import json
import pickle
from typing import Any

from hangscope.simulate import Simulated

SMALL = {"ranks": 8, "tp": 2, "entries": 120}


def read(data: bytes) -> Any:
    """A dump in any of its forms."""
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return json.loads(data) if data[:1] == b"{" else pickle.loads(data)


def entries_of(job: Simulated, rank: int) -> list[dict[str, Any]]:
    data = job.dump(rank)
    assert data is not None
    top = read(data)
    return list(top if isinstance(top, list) else top.get("entries", []))


def only_culprit(job: Simulated) -> int:
    culprits: Any = job.truth["culprits"]
    assert len(culprits) == 1
    return int(culprits[0])


def unfinished(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries that are not done; parts of a batch stay "scheduled" for ever and say nothing."""
    closed = {operation_key(entry) for entry in entries if "coalesced" in entry["profiling_name"]}
    return [
        entry
        for entry in entries
        if entry["state"] != "completed"
        and ("coalesced" in entry["profiling_name"] or operation_key(entry) not in closed or entry["retired"])
    ]


def operation_key(entry: dict[str, Any]) -> tuple[int, int, int]:
    """What all entries of one operation share."""
    return entry["pg_id"], entry["collective_seq_id"], entry["p2p_seq_id"]
