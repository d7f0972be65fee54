"""Reads all files under some paths, of the newest attempt, and keeps what they say until everyone is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from hangscope.incident.layout import GPUS_ASKED_FILE
from hangscope.incident.written_before import GROWING, WHY, counted_bytes, sizes_before
from hangscope.model import Gap, Source
from hangscope.reader import find_files, parallel
from hangscope.reader.dumps import ring_history
from hangscope.reader.find_files import Found
from hangscope.reader.first_look import Member, look_at_files
from hangscope.reader.join.jobs_apart import jobs_of
from hangscope.reader.parallel import Work, dump_of
from hangscope.reader.pick_incident import host_directories, host_of, newest_incident
from hangscope.reader.pick_job import choose, left_out
from hangscope.reader.raw_evidence import Evidence
from hangscope.reader.reading_progress import Meter, Progress
from hangscope.reader.recognise_file import add_dump, read_file
from hangscope.safeio.evidence_names import Known
from hangscope.sources.report import SourceFile

_ASKED = tuple(GPUS_ASKED_FILE.split("/"))


def without_what_came_after(found: list[Found], gaps: list[Gap]) -> list[Found]:
    """The files that count, each up to where it was when the GPUs of its node were asked."""
    folders: dict[tuple[str, ...], dict[str, int]] = {}
    for item in found:
        sizes = sizes_before(item.about_others) if item.about_others is not None else None
        if sizes is not None:
            folders[item.parts[: -len(_ASKED)] if item.parts[-len(_ASKED) :] == _ASKED else item.parts[:-1]] = sizes
    if not folders:
        return found
    kept = []
    for item in found:
        most = _counted(item, folders)
        if most is None or item.size <= most:
            kept.append(item)
            continue
        what = f"the end of {item.file}" if most else f"file {item.file}"
        gaps.append(Gap(what, WHY, source=Source(item.file)))
        if most:
            item.cut(most)
            kept.append(item)
        else:
            item.close()
    return kept


def _counted(item: Found, folders: dict[tuple[str, ...], dict[str, int]]) -> int | None:
    for depth, part in enumerate(item.parts):
        sizes = folders.get(item.parts[:depth]) if part in GROWING else None
        if sizes is not None:
            return counted_bytes(sizes, "/".join(item.parts[depth:]))
    return None


class Engine(Protocol):
    """Finds and reads files elsewhere than in this process."""

    def find(self, paths: Sequence[str | Path], gaps: list[Gap]) -> list[Found]:
        """Every file under the paths, sorted."""

    def read(self, items: Sequence[Found], known: int, full: bool, progress: Progress | None) -> Iterator[Evidence]:
        """What each file says, in their order. `known`: dumps that there are beside."""


def gather(
    paths: Sequence[str | Path],
    *,
    full: bool = False,
    progress: Progress | None = None,
    engine: Engine | None = None,
    known: Known | None = None,
    job: str | None = None,
) -> Evidence:
    """Read everything that is known, of the newest attempt of one job; in this process, or by an engine.

    Raises SeveralJobsError where there are several, and `job` does not say which one is meant.
    """
    options = _Options(full, progress, engine, known, job)
    found, evidence = _gather(paths, options, None)
    jobs = jobs_of(found, evidence)
    if not jobs:
        return evidence
    chosen = choose(jobs, job, paths)
    _, evidence = _gather(paths, options, chosen.files)
    evidence.gaps.extend(left_out(chosen, jobs, found))
    return evidence


@dataclass(frozen=True, slots=True)
class _Options:
    """How the files are read."""

    full: bool
    progress: Progress | None
    engine: Engine | None
    known: Known | None
    job: str | None


def _gather(
    paths: Sequence[str | Path], options: _Options, only: frozenset[str] | None
) -> tuple[list[Found], Evidence]:
    """The files that count, and what they say; where `only` names some, of those alone."""
    evidence = Evidence()
    engine = options.engine
    if engine is None:
        listed = find_files.find(paths, evidence.gaps, options.known)
    else:
        listed = engine.find(paths, evidence.gaps)
    meter = Meter(options.progress if engine is None else None, listed)
    looked_at = look_at_files(listed, evidence.gaps, meter)
    found = without_what_came_after(_chosen(looked_at, evidence, meter, options.job, only), evidence.gaps)
    hosts = host_directories(found, incident=bool(evidence.manifests))
    evidence.hosts.update(hosts.values())
    far = [item for item in found if engine is not None and item.is_whole]
    _read_here([item for item in found if engine is None or not item.is_whole], evidence, meter)
    if engine is not None:
        for part in engine.read(far, len(evidence.dumps), options.full, options.progress):
            evidence.add(part.said())
    _read_waiting(evidence, options.full, meter)
    evidence.use_last_status()
    _place(evidence, hosts)
    return found, evidence


def read_items(items: Sequence[Found], keep: int | None, evidence: Evidence) -> None:
    """What some files say; of every dump `keep` entries at most."""
    for item in items:
        read_file(item, evidence)
    for item, form in evidence.waiting:
        add_dump(item, dump_of(Work(item, form, keep)), evidence)
    evidence.waiting.clear()


def _chosen(
    found: list[Found], evidence: Evidence, meter: Meter, job: str | None, only: frozenset[str] | None
) -> list[Found]:
    """The files of the newest attempt and the newest incident; the others are let go."""
    wanted = found if only is None else [item for item in found if item.file in only]
    chosen = find_files.newest_attempt(wanted, evidence.gaps)
    chosen, evidence.manifests = newest_incident(chosen, evidence.gaps, job)
    kept = set(map(id, chosen))
    for item in found:
        if id(item) not in kept:
            item.close()
            if not isinstance(item, Member):
                meter.leave_out(item)
    return chosen


def _read_here(found: list[Found], evidence: Evidence, meter: Meter) -> None:
    """Files of their own first, then what archives hold."""
    members = [item for item in found if isinstance(item, Member)]
    for item in found:
        if not isinstance(item, Member):
            before = len(evidence.waiting)
            read_file(item, evidence)
            if len(evidence.waiting) == before:
                meter.finish(item)
    for member in members:
        if member.said is None:
            member.read_now()
        evidence.add(member.said or {})


def _read_waiting(evidence: Evidence, full: bool, meter: Meter) -> None:
    """Read the dumps that were put off, many at a time."""
    keep = None if full else ring_history.share(len(evidence.waiting) + len(evidence.dumps))
    work = [Work(item, form, keep) for item, form in evidence.waiting]
    evidence.waiting.clear()
    for one, dump in zip(work, parallel.dumps_of(work), strict=True):
        add_dump(one.item, dump, evidence)
        one.item.close()
        meter.finish(one.item)


def _place(evidence: Evidence, hosts: Mapping[tuple[str, ...], str]) -> None:
    """Say of everything that lies in a host's directory that it is that host's."""
    for text in evidence.texts:
        text.node = host_of(text.parts, hosts)
    evidence.dumps = [replace(dump, node=host_of(evidence.paths[dump.file], hosts)) for dump in evidence.dumps]
    evidence.errors = [(found, file, host_of(parts, hosts), parts) for found, file, _, parts in evidence.errors]
    evidence.source_files = [replace(each, node=host_of(each.parts, hosts)) for each in evidence.source_files]
    refused = {gap: replace(gap, node=host_of(parts, hosts)) for gap, parts in evidence.refusals.items()}
    evidence.gaps = [refused.get(gap, gap) for gap in evidence.gaps]
    for parts, tree in sorted(evidence.trees.items()):
        name = "/".join(parts)
        evidence.source_files.append(
            SourceFile("net_counters", tree.snapshot(name), name, parts, host_of((*parts, ""), hosts))
        )
