"""Of several incidents side by side, the newest; and which directories belong to which host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hangscope.model import Gap, Source
from hangscope.reader.find_files import Found
from hangscope.reader.recognise_file import INCIDENT, NODE, schema_of
from hangscope.reader.sources import incident_files
from hangscope.reader.sources.incident_files import Manifest

SAME_INCIDENT_NS = 3_600_000_000_000
"""Manifests of one attempt that were captured within this time are parts of one incident."""

Parts = tuple[str, ...]


def newest_incident(found: list[Found], gaps: list[Gap]) -> tuple[list[Found], list[Manifest]]:
    """Where manifests of several incidents lie side by side, the files of the newest alone, with its manifests."""
    manifests = _manifests(found)
    if not manifests:
        return found, []
    newest = max(manifests, key=lambda m: (m[1].captured_at_ns or 0, m[1].attempt or "", m[0]))[1]
    ours: list[Parts] = []
    others: list[Parts] = []
    for where, manifest in manifests:
        (ours if _same_incident(manifest, newest) else others).append(where)
    for where in sorted(others):
        name = "/".join(where)
        why = "of another attempt or job; the newest one is used"
        gaps.append(Gap(f"incident {name}", why, source=Source(name)))
    kept = [item for item in found if _depth(item.parts, ours) >= _depth(item.parts, others)]
    return kept, [manifest for _, manifest in manifests if _same_incident(manifest, newest)]


def _manifests(found: Sequence[Found]) -> list[tuple[Parts, Manifest]]:
    """The manifests, each with the directory that it describes."""
    manifests = []
    for item in found:
        value = item.about_others
        if value is not None and schema_of(value).startswith(INCIDENT):
            manifests.append((item.parts[:-1], incident_files.read_manifest(value, item.file)))
            item.about_others = {"schema": schema_of(value)}  # the rest, which may be large, is not needed again
    return manifests


def _same_incident(one: Manifest, newest: Manifest) -> bool:
    if (one.job, one.attempt) != (newest.job, newest.attempt):
        return False
    if one.captured_at_ns is None or newest.captured_at_ns is None:
        return True
    return newest.captured_at_ns - one.captured_at_ns <= SAME_INCIDENT_NS


def _depth(parts: Parts, tops: list[Parts]) -> int:
    """How deep the innermost of these directories lies that a path is under; -1 where it is under none."""
    return max((len(top) for top in tops if parts[: len(top)] == top), default=-1)


def host_directories(found: Sequence[Found], *, incident: bool) -> dict[Parts, str]:
    """Directories that are a host's: those with a node.json, and ``nodes/<host>`` of an incident."""
    hosts: dict[Parts, str] = {}
    for item in found:
        if incident:
            for index, part in enumerate(item.parts[:-2]):
                if part == "nodes":
                    hosts.setdefault(item.parts[: index + 2], item.parts[index + 1])
        value = item.about_others
        if value is not None and schema_of(value).startswith(NODE) and isinstance(value.get("node"), str):
            hosts[item.parts[:-1]] = value["node"]
    return hosts


def host_of(parts: Parts, hosts: Mapping[Parts, str]) -> str | None:
    """The host whose directory a file lies in."""
    for end in range(len(parts) - 1, 0, -1):
        if parts[:end] in hosts:
            return hosts[parts[:end]]
    return None
