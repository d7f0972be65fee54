"""A failure as one line says it, while nobody knows yet which rank wrote that line."""

from __future__ import annotations

from typing import NamedTuple

from hangscope.engine_roles import of_prefix
from hangscope.model import Failure, FailureKind, Source
from hangscope.model.times import Clock
from hangscope.reader.logs.log_lines import Line

TEXT_LIMIT = 400
"""Characters of a line that are kept as its text."""


class FailureLine(NamedTuple):
    """One failure. Its rank is set only where the line itself says it; otherwise its writer is looked up later."""

    failure: Failure
    line: Line
    at: Clock | int | None = None
    of_writer: bool = True
    """Whether the line speaks of its writer where it names nobody. A launcher speaks of others."""
    tasks: tuple[int, ...] = ()
    """A launcher's task numbers: ranks where one task is one rank."""
    hint: int | None = None
    """The rank that the line names in the default group, or in one that it does not name: a last resort."""


def make_failure(file: str, line: Line, kind: FailureKind, **values: object) -> Failure:
    """A failure in the words of one line."""
    text = str(values.pop("text", "") or line.text).strip()[:TEXT_LIMIT]
    rank = values.pop("rank", None)
    node = values.pop("node", None)
    values.setdefault("role", of_prefix(line.stream) if line.stream else None)
    # the values are those of the dataclass, which checks nothing either
    return Failure(kind, text, Source(file, f"line {line.number}"), rank, node, **values)  # type: ignore[arg-type]


SIGNAL_NAMES = {
    "SIGHUP": 1,
    "SIGINT": 2,
    "SIGQUIT": 3,
    "SIGILL": 4,
    "SIGABRT": 6,
    "SIGBUS": 7,
    "SIGFPE": 8,
    "SIGKILL": 9,
    "SIGUSR1": 10,
    "SIGSEGV": 11,
    "SIGUSR2": 12,
    "SIGTERM": 15,
    "SIGXCPU": 24,
}
"""Signals by number as Linux has them, whatever system hangscope runs on."""

ENDS = {
    "Killed": -9,
    "Out Of Memory": -9,
    "Segmentation fault": -11,
    "Aborted": -6,
    "Bus error": -7,
    "Terminated": -15,
    "Floating point exception": -8,
    "Illegal instruction": -4,
}
"""How a shell and Slurm say that a signal ended a process."""


ORDERED_ENDS = frozenset((-15, -1, -2))
"""How a process ends that somebody asked to: SIGTERM, a terminal that was closed, Ctrl-C."""


def plain_status(status: int) -> int:
    """An exit status in one spelling: a shell's 137 is a SIGKILL."""
    return 128 - status if 128 < status <= 128 + 64 else status


def kind_of_end(status: int) -> FailureKind:
    return FailureKind.SIGNAL if status < 0 else FailureKind.EXIT
