"""Network counters at the job's start and at the stall: only what changed in between says anything about the job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hangscope.model import CounterChange, Gap, NetworkPort, Source
from hangscope.model.numbers import integer, is_number
from hangscope.model.times import parse_time
from hangscope.model.values import gid, pci_id, short_name, text, whole
from hangscope.sources.report import SourceFile, SourceReport, WhoIsWho

MAX_PORTS = 1024
"""Of one node: more are not looked at."""
MAX_NAME = 256
_EARLY = re.compile(r"(?<![a-z])(?:start|before|begin|first|initial)", re.IGNORECASE)
_LATE = re.compile(r"(?<![a-z])(?:stall|after|end|last|later|hang|now|final)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All counters of one node at one moment, keyed ``<device>/<port>/<counter>``, and the ports that it has."""

    node: str | None
    at_ns: int | None
    values: Mapping[str, int]
    source: Source
    ports: tuple[Mapping[str, Any], ...] = ()

    @property
    def order(self) -> tuple[int, int, int, str]:
        """Without a time, its name says which was first, else the counters themselves, which only grow."""
        name = "/".join(self.source.file.rsplit("/", 2)[-2:])
        stage = 0 if _EARLY.search(name) else 2 if _LATE.search(name) else 1
        return (self.at_ns or 0, stage, sum(self.values.values()), self.source.file)


def recognise_object(value: Mapping[str, Any]) -> bool:
    if not isinstance(value.get("counters"), Mapping):
        return False
    return all(isinstance(key, str) and key.count("/") >= 2 for key in value["counters"])


def read_object(value: Mapping[str, Any], file: str) -> Snapshot:
    counters = {
        key: number
        for key, number in value["counters"].items()
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 64 and len(key) <= MAX_NAME
    }
    at = value.get("at")
    listed = value.get("ports")
    ports = tuple(row for row in listed[:MAX_PORTS] if isinstance(row, Mapping)) if isinstance(listed, list) else ()
    return Snapshot(None, parse_time(at) if isinstance(at, str) else None, counters, Source(file), ports)


def join(files: Sequence[SourceFile], who: WhoIsWho) -> SourceReport:
    """What changed between the first and the last sample of each node, and its ports."""
    snapshots = []
    for each in files:
        node = each.node or who.host_in_path((*each.parts, ""))
        placed = who.hosts.get(short_name(node), node) if node else None
        snapshots.append(replace(each.report, node=placed))
    pairs, gaps = first_and_last(snapshots)
    return SourceReport(counters=tuple(changes(pairs)), ports=tuple(_ports(pairs, snapshots)), gaps=tuple(gaps))


Pairs = dict[str, tuple[Snapshot, Snapshot]]
_Place = tuple[str, "int | None"]
"""A device, and its port where it has several."""


def first_and_last(snapshots: Iterable[Snapshot]) -> tuple[Pairs, list[Gap]]:
    """Of each node the first and the last sample; a gap for each node that has but one."""
    by_node: dict[str, list[Snapshot]] = {}
    for snapshot in snapshots:
        if snapshot.node is not None:
            by_node.setdefault(snapshot.node, []).append(snapshot)
    pairs: Pairs = {}
    gaps: list[Gap] = []
    for node, taken in sorted(by_node.items()):
        taken.sort(key=lambda s: s.order)
        if len(taken) > 1:
            pairs[node] = (taken[0], taken[-1])
        elif taken[0].values:
            why = "there is only one sample; values since boot say nothing about this job"
            gaps.append(Gap(f"change of the network counters of {node}", why, node=node, source=taken[0].source))
    return pairs, gaps


def changes(pairs: Pairs) -> list[CounterChange]:
    """What changed on each node between its first and its last sample."""
    found: list[CounterChange] = []
    for node, (first, last) in pairs.items():
        seconds = (last.at_ns - first.at_ns) / 1e9 if first.at_ns and last.at_ns else None
        for key, after in sorted(last.values.items()):
            before = first.values.get(key)
            if before is not None and after != before:
                device, port, counter = _parts(key)
                found.append(CounterChange(node, device, port, counter, before, after, last.source, seconds))
    return found


def _ports(pairs: Pairs, snapshots: Iterable[Snapshot]) -> list[NetworkPort]:
    """Every port that a sample speaks of, as the last sample of its node has it."""
    found: dict[tuple[str, str, int | None], NetworkPort] = {}
    sampled_twice = {node: _places(first) & _places(last) for node, (first, last) in pairs.items()}
    for snapshot in sorted(snapshots, key=lambda s: s.order):
        if snapshot.node is None:
            continue
        sampled = sampled_twice.get(snapshot.node, set())
        for row in snapshot.ports:
            device = text(row.get("name"))
            if device is not None and len(device) <= MAX_NAME:
                place = (device, whole(row.get("port")))
                known = _port(snapshot.node, place, row, place in sampled)
                found[known.node, known.device, known.port] = known
        for place in _places(snapshot):
            known = found.get((snapshot.node, *place), NetworkPort(snapshot.node, *place))
            found[known.node, known.device, known.port] = replace(known, sampled=place in sampled)
    at_last = {node: _places(last) | _listed(last) for node, (_, last) in pairs.items() if last.values}
    return [replace(port, state="gone") if _is_gone(port, at_last.get(port.node)) else port for port in found.values()]


def _is_gone(port: NetworkPort, at_last: set[_Place] | None) -> bool:
    """An adapter's port that the last sample of its node has no more; interfaces come and go with containers."""
    return at_last is not None and port.port is not None and (port.device, port.port) not in at_last


def _places(snapshot: Snapshot) -> set[_Place]:
    return {_parts(key)[:2] for key in snapshot.values}


def _listed(snapshot: Snapshot) -> set[_Place]:
    return {(device, whole(row.get("port"))) for row in snapshot.ports if (device := text(row.get("name"))) is not None}


def _port(node: str, place: tuple[str, int | None], row: Mapping[str, Any], sampled: bool) -> NetworkPort:
    layer = row.get("layer")
    return NetworkPort(
        node,
        *place,
        layer=layer if layer in ("IB", "RoCE") else None,
        lid=whole(row.get("lid")),
        gid=gid(text(row.get("gid"))),
        interface=text(row.get("interface")),
        pci=pci_id(text(row.get("pci"))),
        state=text(row.get("state")),
        sampled=sampled,
    )


def _parts(key: str) -> tuple[str, int | None, str]:
    device, port, counter = key.split("/", 2)
    return device, integer(port) if is_number(port, 5) else None, counter
