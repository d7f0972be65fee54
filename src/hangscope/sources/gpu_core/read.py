"""Cores of GPUs: the tables that a node keeps of them (gpu/rank_<r>.json), and the driver's own files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hangscope.model import Gap, GpuCore, GpuKernel, Source
from hangscope.model.numbers import integer
from hangscope.model.ranks_in_paths import rank_of_log
from hangscope.model.times import parse_time
from hangscope.model.values import host_name, rank_number, text, whole
from hangscope.safeio.file_magic import is_cuda_elf
from hangscope.sources.gpu_core import core_file
from hangscope.sources.gpu_core.demangle import demangle, title
from hangscope.sources.gpu_core.schema import SCHEMAS
from hangscope.sources.report import Opened, SourceFile, SourceReport, WhoIsWho

_UNNAMED = "an unnamed kernel"
_PID = re.compile(r"(?<!\d)(\d{1,7})(?:\.[a-z]+)?$")
"""core.4711, core_1794705819_node7_4711.nvcudmp: the process stands last."""
_MOST_THREADS = 1 << 32


def recognise(head: bytes) -> bool:
    return is_cuda_elf(head)


def recognise_object(value: Mapping[str, Any]) -> bool:
    return str(value.get("schema", "")).startswith(SCHEMAS)


def read_object(value: Mapping[str, Any], file: str) -> SourceReport:
    """What gpu/rank_<r>.json says, and what of it cannot be used."""
    try:
        return _table(value, file)
    except ValueError as error:
        return SourceReport(gaps=(Gap(f"GPU core {file}", str(error), source=Source(file)),))


def _table(value: Mapping[str, Any], file: str) -> SourceReport:
    source = Source(file)
    rows = value.get("grids")
    listed = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else None
    rank = rank_number(value.get("rank"))
    node = host_name(text(value.get("node")))
    if listed is None:
        raise ValueError("it has no list of grids")
    kernels = tuple(_kernel(row) for row in listed[: core_file.MOST_GRIDS])
    core = GpuCore(rank, kernels, source, whole(value.get("pid")), node, parse_time(text(value.get("asked_at")) or ""))
    problems = value.get("problems")
    said = [text(each) for each in problems[:20]] if isinstance(problems, list) else []
    gaps = [Gap(f"GPU core {file}", each[:200], rank, node, source) for each in said if each]
    return SourceReport(gpu_cores=(core,), gaps=tuple(gaps))


def _kernel(row: Mapping[str, Any]) -> GpuKernel:
    mangled = text(row.get("kernel"))
    name = demangle(mangled[: core_file.LONGEST_NAME]) if mangled else _UNNAMED
    blocks = whole(row.get("blocks"))
    return GpuKernel(
        name,
        title(name),
        whole(row.get("device")) or 0,
        _dimensions(row.get("grid")),
        _dimensions(row.get("block")),
        blocks if blocks is not None and 0 <= blocks < _MOST_THREADS else None,
    )


def _dimensions(value: object) -> tuple[int, int, int] | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    x, y, z = (whole(each) for each in value)
    if x is None or y is None or z is None or not all(0 <= each < _MOST_THREADS for each in (x, y, z)):
        return None
    return x, y, z


def read_file(item: Opened) -> SourceReport | None:
    """What a core that the driver wrote says; None of a compiled kernel, which begins alike. Whose it is only its name
    may tell."""
    rank = rank_of_log(item.parts)
    pid = _PID.search(item.parts[-1]) if rank is None else None
    try:
        with item.open() as stream:

            def pread(length: int, at: int) -> bytes:
                stream.seek(at)
                return stream.read(length)

            found = core_file.read(pread, item.size)
            return _table(core_file.table(found, rank=rank, pid=integer(pid[1]) if pid else None), item.file)
    except core_file.Damaged as error:
        if error.foreign:
            return None
        return SourceReport(gaps=(Gap(f"GPU core {item.file}", str(error), source=Source(item.file)),))


def join(files: Sequence[SourceFile], who: WhoIsWho) -> SourceReport:
    """Each rank's newest core; of those that name a process alone, with the rank that it is."""
    newest: dict[int, GpuCore] = {}
    gaps: list[Gap] = []
    cores = [(core, each.parts) for each in files for core in each.report.gpu_cores]
    for core, parts in sorted(cores, key=lambda each: (each[0].asked_ns or 0, each[0].source.file)):
        node = core.node or who.host_in_path(parts)
        rank = core.rank if core.rank is not None else who.rank_of(node, core.pid)
        if rank is None:
            why = "whose it is is not known: neither its name nor another file says which rank"
            gaps.append(Gap(f"GPU core {core.source.file}", why, node=node, source=core.source))
            continue
        older = newest.get(rank)
        if older is not None:
            why = f"rank {rank} has a newer one"
            gaps.append(Gap(f"GPU core {older.source.file}", why, rank, older.node, older.source))
        newest[rank] = replace(core, rank=rank, node=node)
    return SourceReport(gpu_cores=tuple(newest[rank] for rank in sorted(newest)), gaps=tuple(gaps))
