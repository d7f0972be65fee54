"""How the end of a process is said: signals by name and number, exit statuses in one spelling."""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind

TEXT_LIMIT = 400
"""Characters of a line that are kept as the text of a failure."""

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
