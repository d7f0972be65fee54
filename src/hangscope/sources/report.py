"""What a slice's `read` gives back where no more than this has to be known of it."""

from __future__ import annotations

from dataclasses import dataclass

from hangscope.model import Failure, Gap, KernelMessage


@dataclass(frozen=True, slots=True)
class SourceReport:
    """Facts that join what other sources say, without anything that knows this one."""

    failures: tuple[Failure, ...] = ()
    kernel: tuple[KernelMessage, ...] = ()
    gaps: tuple[Gap, ...] = ()
