"""Recognising what an earlier run left behind.

PyTorch never deletes a dump and names it by the rank alone, so the dump of a rank that could not write one this time is
often still there from last week.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
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
    """A file that belongs to an earlier run, and how that is known."""

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
    dumps = {name: known for name in modified if (known := dump_rank(name)) is not None}
    soon = time.time() + FUTURE_S
    dated = {name: modified[name] for name in dumps if modified[name] <= soon}
    latest = max(dated.values(), default=0.0)
    found = []
    for name in sorted(dumps):
        behind = latest - modified[name]
        if behind > spread_s:
            found.append(Stale(name, f"{behind / 3600:.1f} h older than the newest dump"))
    old = {item.file for item in found}
    found.extend(item for item in _superseded(dumps, dated) if item.file not in old)
    return found


def _superseded(dumps: Mapping[str, tuple[str, int]], dated: Mapping[str, float]) -> Iterator[Stale]:
    """Of dumps of one rank under one name in several folders of its node, all but the newest. Those with a date to come
    are not in `dated`: it says nothing about the others."""
    by_rank: dict[tuple[str, str, int], list[str]] = {}
    for name in dated:
        stem, rank = dumps[name]
        if node := _node_of(name):
            by_rank.setdefault((node, stem, rank), []).append(name)
    for (_, _, rank), names in sorted(by_rank.items()):
        newest = max(names, key=lambda name: (dated[name], name))
        for name in sorted(names):
            if dated[name] < dated[newest]:
                yield Stale(name, f"older than {newest}, also a dump of rank {rank}")


def _node_of(name: str) -> str:
    """The node in whose folder of an incident a file lies; empty where it lies in none."""
    top, _, below = name.partition("/")
    node, slash, _ = below.partition("/")
    return node if top == "nodes" and slash else ""
