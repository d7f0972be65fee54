"""What a slice's `read` gives back where no more than this has to be known of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, BinaryIO, Protocol

from hangscope.model import (
    BlackBox,
    CallArguments,
    CallSite,
    CodeLines,
    CounterChange,
    Failure,
    Gap,
    GpuCore,
    KernelMessage,
    NetworkPort,
)
from hangscope.model.ray_cluster import RayCluster
from hangscope.model.statements import Statement


@dataclass(frozen=True, slots=True)
class SourceReport:
    """Facts that join what other sources say, without anything that knows this one."""

    failures: tuple[Failure, ...] = ()
    kernel: tuple[KernelMessage, ...] = ()
    sites: tuple[CallSite, ...] = ()
    calls: tuple[CallArguments, ...] = ()
    code: tuple[CodeLines, ...] = ()
    blackboxes: tuple[BlackBox, ...] = ()
    gpu_cores: tuple[GpuCore, ...] = ()
    counters: tuple[CounterChange, ...] = ()
    ports: tuple[NetworkPort, ...] = ()
    ray: tuple[RayCluster, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def useful(self) -> bool:
        """Whether it tells of a job by itself. Lines of code and arguments of calls only explain what others tell."""
        return bool(self.failures or self.kernel or self.blackboxes or self.gpu_cores or self.ray)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source: what its `read` made of it, and where it lies."""

    source: str
    report: Any
    file: str
    parts: tuple[str, ...] = ()
    node: str | None = None
    """Whose directory of an incident it lies in."""

    @property
    def useful(self) -> bool:
        return bool(getattr(self.report, "useful", True))


class Opened(Protocol):
    """A file, for a slice's `read_file`: of one that is read in parts, or that may still be written."""

    @property
    def file(self) -> str: ...

    @property
    def parts(self) -> tuple[str, ...]: ...

    @property
    def size(self) -> int: ...

    @property
    def path(self) -> str | None:
        """Where it lies by itself; None in an archive."""

    def open(self) -> BinaryIO: ...


class WhoIsWho(Protocol):
    """What is known of all ranks once every file has been read: for a slice's `join`."""

    @property
    def statements(self) -> Sequence[Statement]: ...

    @property
    def hosts(self) -> Mapping[str, str]:
        """Short name → the spelling to show."""

    def rank_of(self, host: str | None, pid: int | None) -> int | None: ...

    def host_in_path(self, parts: tuple[str, ...]) -> str | None: ...


def together(reports: Iterable[SourceReport]) -> SourceReport:
    """All of them as one, each kind of fact in their order."""
    every = list(reports)
    merged = {
        each.name: tuple(chain.from_iterable(getattr(report, each.name) for report in every))
        for each in fields(SourceReport)
    }
    return SourceReport(**merged)
