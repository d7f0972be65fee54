"""What each folder of the input says about whose it is: its ranks' recordings, reports and processes, its job's name.

Only statements of the same kind are compared: that a rank has a dump in one folder and a log in another is how most
jobs lie on a disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np

from hangscope.model import UNKNOWN
from hangscope.model.values import short_name
from hangscope.reader.dumps.raw_dump import RawDump
from hangscope.reader.find_files import Found
from hangscope.reader.join.dump_owner import Sets, claim
from hangscope.reader.join.pick_dumps import same_recording
from hangscope.reader.raw_evidence import Evidence
from hangscope.reader.sources.incident_files import Manifest, NodeFile

Parts = tuple[str, ...]
Report = tuple[str, "int | None", "str | None", "str | None", "int | None"]
"""(kind, number, operation, group, waited) of a watchdog's report: two processes seldom say the same."""

_WHOLE_JOB = ("default_pg", "0")
_APART_NS = 3_600_000_000_000
"""Recordings of one run end within minutes of each other."""


@dataclass
class Unit:
    """The files of a folder, or of several that go together, and what they say about whose they are."""

    folder: Parts
    files: set[str] = field(default_factory=set)
    dumps: dict[int, list[RawDump]] = field(default_factory=dict)
    reports: dict[int, set[Report]] = field(default_factory=dict)
    processes: dict[int, set[tuple[str, int]]] = field(default_factory=dict)
    names: set[tuple[str, str]] = field(default_factory=set)
    """(job, attempt) that hangscope's own files say."""
    sizes: set[int] = field(default_factory=set)
    """How many ranks the whole job has, as the dumps say."""
    communicators: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    times_ns: list[int] = field(default_factory=list)
    """When something of it happened."""
    logs: int = 0
    """Files other than dumps that say something."""

    @property
    def ranks(self) -> set[int]:
        return self.dumps.keys() | self.reports.keys() | self.processes.keys()

    @property
    def is_of_one_run(self) -> bool:
        """Whether all dumps in it may be of one run, by when they end."""
        ends = [int(dump.columns["created_ns"].max()) for each in self.dumps.values() for dump in each]
        return len(self.sizes) <= 1 and (not ends or max(ends) - min(ends) < _APART_NS)

    def add(self, other: Unit) -> None:
        """Take another unit into this one."""
        for rank, dumps in other.dumps.items():
            self.dumps.setdefault(rank, []).extend(dumps)
        for rank, reports in other.reports.items():
            self.reports.setdefault(rank, set()).update(reports)
        for rank, processes in other.processes.items():
            self.processes.setdefault(rank, set()).update(processes)
        self.files |= other.files
        self.names |= other.names
        self.sizes |= other.sizes
        self.communicators |= other.communicators
        self.hosts |= other.hosts
        self.times_ns += other.times_ns
        self.logs += other.logs
        self.folder = _common(self.folder, other.folder)


def _common(one: Parts, other: Parts) -> Parts:
    same = [a for a, b in zip(one, other, strict=False) if a == b]
    return one[: len(same)] if one[: len(same)] == other[: len(same)] else _common(one[:-1], other[:-1])


def units_of(found: Iterable[Found], evidence: Evidence) -> dict[Parts, Unit]:
    """Every folder that holds a file, with what its files say."""
    units: dict[Parts, Unit] = {}
    homes: dict[str, Unit] = {}
    for item in found:
        folder = item.parts[:-1]
        unit = units.get(folder) or units.setdefault(folder, Unit(folder))
        unit.files.add(item.file)
        homes[item.file] = unit
    _add_dumps(evidence, homes)
    _add_texts(evidence, homes)
    _add_processes(evidence, homes)
    described: list[Manifest | NodeFile] = [*evidence.manifests, *evidence.nodes]
    for said in described:
        if said.source.file in homes:
            _add_name(homes[said.source.file], said)
    return units


def _add_dumps(evidence: Evidence, homes: Mapping[str, Unit]) -> None:
    sets = Sets()
    for dump in evidence.dumps:
        unit = homes.get(dump.file)
        if unit is None or dump.role == "poll" or not len(dump) or dump.columns["created_ns"].max() == UNKNOWN:
            continue
        rank = claim(dump, sets).rank
        if rank is None:
            continue
        unit.dumps.setdefault(rank, []).append(dump)
        unit.times_ns.append(int(dump.columns["created_ns"].max()))
        whole = [line for line in dump.memberships if line.desc in _WHOLE_JOB or line.name in _WHOLE_JOB]
        unit.sizes.update(size for line in whole if (size := line.size or len(line.members or ())))


def _add_texts(evidence: Evidence, homes: Mapping[str, Unit]) -> None:
    for text in evidence.texts:
        unit = homes.get(text.file)
        if unit is None:
            continue
        unit.logs += bool(text.useful)
        if text.node:
            unit.hosts.add(text.node)
        for logged in text.torch.reports:
            report = logged.report
            if logged.tag is not None and report.seq is not None:
                said = (report.kind, report.seq, report.operation, report.group_name, report.elapsed_ms)
                unit.reports.setdefault(logged.tag, set()).add(said)
        for process in text.nccl.processes.values():
            unit.hosts.add(process.host)
            for comm in process.comms:
                if comm.comm_id:
                    unit.communicators.add(comm.comm_id)
                if comm.started_at_ns is not None:
                    unit.times_ns.append(comm.started_at_ns)


def _add_processes(evidence: Evidence, homes: Mapping[str, Unit]) -> None:
    for said in [*evidence.statements, *(each for node in evidence.nodes for each in node.statements)]:
        process = said.process
        unit = homes.get(process.source.file) if process.source is not None else None
        if unit is None:
            continue
        unit.logs += 1
        if process.node:
            unit.hosts.add(process.node)
        if said.rank is not None and process.pid is not None and process.node is not None:
            unit.processes.setdefault(said.rank, set()).add((short_name(process.node), process.pid))


def _add_name(unit: Unit, said: Manifest | NodeFile) -> None:
    if said.job:
        unit.names.add((said.job, said.attempt or ""))
    if said.captured_at_ns is not None:
        unit.times_ns.append(said.captured_at_ns)
    if isinstance(said, Manifest) and said.world_size is not None:
        unit.sizes.add(said.world_size)


# ---- two units -------------------------------------------------------------------------------------------------------


def compare(one: Unit, other: Unit) -> tuple[set[int], set[int]]:
    """(ranks whose process is the same in both, ranks whose process is another one)."""
    same: set[int] = set()
    another: set[int] = set()
    for rank in one.ranks & other.ranks:
        answers = {
            _same_process(one.dumps.get(rank, ()), other.dumps.get(rank, ())),
            _same_words(one.reports.get(rank), other.reports.get(rank)),
            _same_words(one.processes.get(rank), other.processes.get(rank)),
        }
        if True in answers:
            same.add(rank)
        elif False in answers:
            another.add(rank)
    return same, another


def _same_words(one: Set[object] | None, other: Set[object] | None) -> bool | None:
    return None if not one or not other else not one.isdisjoint(other)


def _same_process(one: Iterable[RawDump], other: Iterable[RawDump]) -> bool | None:
    """Whether dumps of a rank are of one process; None where they may be, or there are none to compare."""
    answers = {_one_process(left, right) for left in one for right in other if left.backend == right.backend}
    return True if True in answers else False if answers == {False} else None


def _one_process(left: RawDump, right: RawDump) -> bool | None:
    if left.digest == right.digest or same_recording(left, right):
        return True
    if len(np.intersect1d(left.columns["record_id"], right.columns["record_id"])):
        return False
    earlier, later = sorted((left, right), key=lambda dump: int(dump.columns["created_ns"].max()))
    counts_on = later.columns["record_id"].min() > earlier.columns["record_id"].max()
    return None if counts_on else False  # a process never counts backwards


def same_program(one: Unit, other: Unit, ranks: Iterable[int]) -> bool:
    """Whether two runs look like one job that was started again: the same groups, and mostly the same places in the
    code that call. Not where nothing tells."""
    compared = False
    for rank in ranks:
        for left, right in zip(one.dumps.get(rank, ()), other.dumps.get(rank, ()), strict=False):
            if not _same_groups(left, right) or not _overlap(_calls(left), _calls(right)):
                return False
            compared = True
    return compared


def _same_groups(left: RawDump, right: RawDump) -> bool:
    """Whether one has the other's groups: some are made late."""
    groups = _layout(left)
    others = _layout(right)
    return groups <= others or others <= groups


def _layout(dump: RawDump) -> set[tuple[str, int | None]]:
    return {(line.desc, line.size or len(line.members or ()) or None) for line in dump.memberships}


def _calls(dump: RawDump) -> set[str]:
    """Where the dump's operations were called, without lines; without stacks, what they are."""
    places = set()
    for stack in dump.stacks:
        own = next((f for f in stack if "-packages/" not in f.filename and "/torch/" not in f.filename), None)
        if own is not None:
            places.add(f"{PurePosixPath(own.filename).name}:{own.name}")
    return places or {name.operation for name in dump.names}


def _overlap(one: set[str], other: set[str]) -> bool:
    return not one or not other or 2 * len(one & other) >= min(len(one), len(other))
