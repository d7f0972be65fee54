"""Network counters at the job's start and at the stall: only what changed in between says anything about the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hangscope.model import CounterChange, Source
from hangscope.reader.lines import parse_time


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All counters of one node at one moment, keyed ``<device>/<port>/<counter>``."""

    node: str | None
    at_ns: int | None
    values: Mapping[str, int]
    source: Source


def is_snapshot(value: Any) -> bool:
    if not isinstance(value, Mapping) or not isinstance(value.get("counters"), Mapping):
        return False
    return all(isinstance(key, str) and key.count("/") >= 2 for key in value["counters"])


def read(value: Mapping[str, Any], file: str, node: str | None) -> Snapshot:
    counters = {
        key: number
        for key, number in value["counters"].items()
        if isinstance(number, int) and not isinstance(number, bool)
    }
    at = value.get("at")
    return Snapshot(node, parse_time(at) if isinstance(at, str) else None, counters, Source(file))


def changes(snapshots: list[Snapshot]) -> list[CounterChange]:
    """What rose on each node between its first and its last snapshot; a counter that fell was reset or has wrapped."""
    by_node: dict[str, list[Snapshot]] = {}
    for snapshot in snapshots:
        if snapshot.node is not None:
            by_node.setdefault(snapshot.node, []).append(snapshot)
    found: list[CounterChange] = []
    for node, taken in sorted(by_node.items()):
        taken.sort(key=lambda s: (s.at_ns or 0, s.source.file))
        if len(taken) < 2:
            continue
        first, last = taken[0], taken[-1]
        for key, after in sorted(last.values.items()):
            before = first.values.get(key)
            if before is None or after <= before:
                continue
            device, port, counter = key.split("/", 2)
            found.append(
                CounterChange(node, device, int(port) if port.isdigit() else None, counter, before, after, last.source)
            )
    return found
