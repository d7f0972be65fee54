"""Cores of GPUs: the tables that a node keeps of them (gpu/rank_<r>.json), and the driver's own files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

from hangscope.incident import gpu_core
from hangscope.model import Gap, GpuCore, GpuKernel, Source
from hangscope.model.numbers import integer
from hangscope.model.times import parse_time
from hangscope.model.values import host_name, rank_number, text, whole
from hangscope.reader.join.who_is_who import Identity, host_in_path
from hangscope.reader.ranks_in_paths import rank_of_log
from hangscope.reader.sources.demangle import demangle, title

SCHEMA = "hangscope.gpu/"
_UNNAMED = "an unnamed kernel"
_PID = re.compile(r"(?<!\d)(\d{1,7})(?:\.[a-z]+)?$")
"""core.4711, core_1794705819_node7_4711.nvcudmp: the process stands last."""
_MOST_THREADS = 1 << 32


def read_table(value: Mapping[str, Any], file: str) -> tuple[GpuCore, list[Gap]]:
    """What gpu/rank_<r>.json says, and what of it cannot be used."""
    source = Source(file)
    rows = value.get("grids")
    listed = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else None
    rank = rank_number(value.get("rank"))
    node = host_name(text(value.get("node")))
    if listed is None:
        raise ValueError("it has no list of grids")
    kernels = tuple(_kernel(row) for row in listed[: gpu_core.MOST_GRIDS])
    core = GpuCore(rank, kernels, source, whole(value.get("pid")), node, parse_time(text(value.get("asked_at")) or ""))
    problems = value.get("problems")
    said = [text(each) for each in problems[:20]] if isinstance(problems, list) else []
    return core, [Gap(f"GPU core {file}", each[:200], rank, node, source) for each in said if each]


def _kernel(row: Mapping[str, Any]) -> GpuKernel:
    mangled = text(row.get("kernel"))
    name = demangle(mangled[: gpu_core.LONGEST_NAME]) if mangled else _UNNAMED
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


def read_core(stream: BinaryIO, size: int, file: str, parts: tuple[str, ...]) -> tuple[GpuCore, list[Gap]]:
    """What a core that the driver wrote says. Whose it is only its name may tell. Raises gpu_core.Damaged."""

    def pread(length: int, at: int) -> bytes:
        stream.seek(at)
        return stream.read(length)

    found = gpu_core.read(pread, size)
    rank = rank_of_log(parts)
    pid = _PID.search(parts[-1]) if rank is None else None
    return read_table(gpu_core.table(found, rank=rank, pid=integer(pid[1]) if pid else None), file)


def of_ranks(cores: Sequence[tuple[GpuCore, tuple[str, ...]]], who: Identity) -> tuple[tuple[GpuCore, ...], list[Gap]]:
    """Each rank's newest core; of those that name a process alone, with the rank that it is."""
    newest: dict[int, GpuCore] = {}
    gaps: list[Gap] = []
    for core, parts in sorted(cores, key=lambda each: (each[0].asked_ns or 0, each[0].source.file)):
        node = core.node or host_in_path(who, parts)
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
    return tuple(newest[rank] for rank in sorted(newest)), gaps
