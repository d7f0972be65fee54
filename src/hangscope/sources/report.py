"""What a slice's `read` gives back where no more than this has to be known of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

from hangscope.model import CallArguments, CallSite, CodeLines, Failure, Gap, KernelMessage


@dataclass(frozen=True, slots=True)
class SourceReport:
    """Facts that join what other sources say, without anything that knows this one."""

    failures: tuple[Failure, ...] = ()
    kernel: tuple[KernelMessage, ...] = ()
    sites: tuple[CallSite, ...] = ()
    calls: tuple[CallArguments, ...] = ()
    code: tuple[CodeLines, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def useful(self) -> bool:
        """Whether it tells of a job by itself. Lines of code and arguments of calls only explain what others tell."""
        return bool(self.failures or self.kernel)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source: what its `read` made of it, and where it lies."""

    source: str
    report: Any
    file: str
    parts: tuple[str, ...] = ()

    @property
    def useful(self) -> bool:
        return bool(getattr(self.report, "useful", True))


def together(reports: Iterable[SourceReport]) -> SourceReport:
    """All of them as one, each kind of fact in their order."""
    every = list(reports)
    merged = {
        each.name: tuple(chain.from_iterable(getattr(report, each.name) for report in every))
        for each in fields(SourceReport)
    }
    return SourceReport(**merged)
