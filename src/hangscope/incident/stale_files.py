"""Recognising what an earlier run left behind.

PyTorch never deletes a dump and names it by the rank alone, so the dump of a rank that could not write one this time is
often still there from last week.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

STALE_AFTER_S = 2 * 3600.0
"""Dumps of one hang are written within minutes of each other, at most within the longest collective timeout. A dump
that is hours older than the newest belongs to another run."""

FUTURE_S = 3600.0
"""Clocks of one cluster differ by less. What is dated later says nothing about the age of other files."""

_ENDING = r"(?:\.(?:pickle|pkl|json))?(?:\.gz)?$"
_INCIDENT_DUMP = re.compile(r"(?:^|/)dumps/(?P<stem>[^/]+)_rank_(?P<rank>\d+)" + _ENDING)
_TORCH_DUMP = re.compile(r"(?:^|/)(?P<stem>[^/]*(?:trace|dump)[^/]*?)(?P<rank>\d+)" + _ENDING)
"""`nccl_trace_rank_3`, `comm_lib_trace_rank_3`, and with a host name that users put in: `nccl_trace_rank_host-7_3`."""


@dataclass(frozen=True, slots=True)
class Stale:
    """A file that belongs to an earlier run, and how that was told."""

    file: str
    why: str


def dump_rank(name: str) -> tuple[str, int] | None:
    """(kind of dump, rank) that a file name gives, or None where it is not the name of a dump."""
    match = _INCIDENT_DUMP.search(name) or _TORCH_DUMP.search(name)
    return (match["stem"].strip("_-"), int(match["rank"])) if match else None


def stale_dumps(modified: Mapping[str, float], *, spread_s: float = STALE_AFTER_S) -> list[Stale]:
    """Dumps that an earlier run left: hours older than the newest, or older than another dump of the same rank.

    Two dumps of one rank under different names are one picture when written together (two backends, a poll and a
    dump), hence only a second one under the same name in another folder of the same node counts.
    """
    dumps = {name: told for name in modified if (told := dump_rank(name)) is not None}
    if not dumps:
        return []
    soon = time.time() + FUTURE_S
    latest = max((modified[name] for name in dumps if modified[name] <= soon), default=0.0)
    by_key: dict[tuple[str, str, int], list[str]] = {}
    for name, (stem, rank) in dumps.items():
        node = name.split("/")[1] if name.startswith("nodes/") and name.count("/") > 1 else ""
        by_key.setdefault((node, stem, rank), []).append(name)
    found: list[Stale] = []
    for name in sorted(dumps):
        behind = latest - modified[name]
        if behind > spread_s:
            found.append(Stale(name, f"{behind / 3600:.1f} h older than the newest dump"))
    old = {item.file for item in found}
    for (node, _, rank), names in sorted(by_key.items()):
        if not node:
            continue
        dated = [name for name in names if modified[name] <= soon]  # a date to come says nothing about the others
        fresh = max(dated, key=lambda name: (modified[name], name), default="")
        for name in sorted(dated):
            if name != fresh and name not in old and modified[name] < modified[fresh]:
                found.append(Stale(name, f"older than {fresh}, also a dump of rank {rank}"))
    return found
