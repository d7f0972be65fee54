"""Of several incidents side by side, the newest; and which directories belong to which host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hangscope.incident.layout import own_files, place_of
from hangscope.model import Gap, Source
from hangscope.reader.find_files import Found
from hangscope.reader.join.jobs_apart import FoundJob
from hangscope.reader.pick_job import several_jobs
from hangscope.reader.recognise_file import INCIDENT, NODE, schema_of
from hangscope.reader.sources import incident_files
from hangscope.reader.sources.incident_files import Manifest

SAME_INCIDENT_NS = 3_600_000_000_000
"""Manifests of one attempt that were captured within this time are parts of one incident."""

Parts = tuple[str, ...]


def newest_incident(found: list[Found], gaps: list[Gap], job: str | None) -> tuple[list[Found], list[Manifest]]:
    """Where manifests of several incidents lie side by side, the files of the newest alone, with its manifests.

    Raises SeveralJobsError where they are of several jobs, and `job` names none of them."""
    manifests = _manifests(found)
    if not manifests:
        return found, []
    candidates = _of_job(manifests, job, found)
    if candidates is None:
        return found, [manifest for _, manifest in manifests]
    place, newest = max(candidates, key=lambda m: (m[1].captured_at_ns or 0, m[1].attempt or "", m[0]))
    ours: list[Parts] = []
    others: list[Parts] = []
    for where, manifest in manifests:
        same = _same_incident(manifest, newest) and _same_place(where, place)
        (ours if same else others).append(where)
    run = place_of(place)[0]
    for where in sorted(others):
        name = "/".join(where)
        whose = "of another time in the same run" if place_of(where)[0] == run else "of another attempt or job"
        gaps.append(Gap(f"incident {name}", f"{whose}; the newest one is used", source=Source(name)))
    kept = [item for item in found if _depth(item.parts, ours) >= _depth(item.parts, others)]
    return _without_other_incidents(kept, ours, gaps), [each for where, each in manifests if where in ours]


Described = list[tuple[Parts, Manifest]]
"""Manifests, each with the directory that it describes."""


def _of_job(manifests: Described, job: str | None, found: Sequence[Found]) -> Described | None:
    """The manifests of the one job that there is, or that is meant. None where other evidence lies beside those of
    several jobs: then all of it has to be read to tell the jobs apart."""
    by_name: dict[str, Described] = {}
    for where, manifest in manifests:
        if manifest.job is not None:
            by_name.setdefault(manifest.job, []).append((where, manifest))
    if len(by_name) < 2:
        return manifests
    if job in by_name:
        return by_name[job]
    tops = [where for where, _ in manifests]
    if any(_depth(item.parts, tops) < 0 for item in found):
        return None
    made = []
    for name, described in by_name.items():
        folders = [where for where, _ in described]
        files = [item.file for item in found if _depth(item.parts, folders) >= max(0, _depth(item.parts, tops))]
        made.append(_found_job(name, [manifest for _, manifest in described], files))
    made.sort(key=lambda each: (each.ended_ns or 0, each.name))
    raise several_jobs(made, job, [found[0].parts[0]])


def _found_job(name: str, manifests: Sequence[Manifest], files: Sequence[str]) -> FoundJob:
    times = [manifest.captured_at_ns for manifest in manifests if manifest.captured_at_ns is not None]
    newest = max(manifests, key=lambda manifest: manifest.captured_at_ns or 0)
    return FoundJob(
        name=name,
        attempt=newest.attempt or "",
        files=frozenset(files),
        ranks=newest.world_size or 0,
        hosts=(),
        started_ns=min(times, default=None),
        ended_ns=max(times, default=None),
        dumps=0,
        family=0,
    )


def _manifests(found: Sequence[Found]) -> Described:
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


def _same_place(one: Parts, other: Parts) -> bool:
    """Whether two incidents' directories may hold parts of one: the same hang of one run, or of runs on other nodes."""
    run, later = place_of(one)
    other_run, other_later = place_of(other)
    if run == other_run:
        return later == other_later
    return [name for name in later if not name.startswith("run-")] == [
        name for name in other_later if not name.startswith("run-")
    ]


def _without_other_incidents(found: list[Found], ours: list[Parts], gaps: list[Gap]) -> list[Found]:
    """The files without those of later incidents that nobody described, and without the run's own where ours is later:
    what the output of a restarted attempt says is about another hang."""
    runs = [place_of(where)[0] for where in ours if place_of(where)[1]]
    kept = []
    left: set[str] = set()
    for item in found:
        inside = max((top for top in ours if item.parts[: len(top)] == top), key=len, default=None)
        if inside is not None and not own_files("/".join(item.parts[len(inside) :])):
            left.add("/".join(item.parts[: len(inside) + 1]))
        elif inside is not None or _depth(item.parts, runs) < 0:
            kept.append(item)
    gaps.extend(Gap(f"incident {name}", "nobody described it; not used", source=Source(name)) for name in sorted(left))
    return kept


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
