"""How and when the processes of a job ended, and how that is said.

How ranks ended is put to the vote: PyTorch's watchdog aborts every victim in the end, and launchers stop the rest of a
job, so an end that most ranks share is nobody's cause.
"""

from __future__ import annotations

import signal
from collections import Counter

from hangscope.model import Failure, Job, Process, PythonError, Source, TransportEvent
from hangscope.text import first_line, signal_name

GONE = ("gone", "Z")
EFFECTS = (-signal.SIGABRT, -signal.SIGTERM, 128 + signal.SIGABRT, 128 + signal.SIGTERM)
"""How watchdogs and launchers end the rest of a job."""


class Ends:
    """How and when the processes of a job ended, asked for all but one of them."""

    def __init__(self, job: Job) -> None:
        everyone = job.processes.values()
        self._others = len(job.processes) - 1
        self._statuses = Counter(p.exit_status for p in everyone if p.exit_status is not None)
        self.gone = sum(p.state in GONE for p in everyone)
        self.running = sum(is_running(p) for p in everyone)
        times = sorted(p.ended_at_s for p in everyone if p.ended_at_s is not None)
        self._times = times if len(times) < 4 else [*times[:2], *times[-2:]]
        self.causes = [r for r, p in job.processes.items() if p.exit_status not in (None, 0, *EFFECTS)]
        ended = {r: p.ended_at_s for r, p in job.processes.items() if p.exit_status not in (None, 0)}
        self.failed = {r: at_s for r, at_s in ended.items() if at_s is not None}

    def most(self, status: int) -> bool:
        """Whether most of the others ended in the same way."""
        return (self._statuses[status] - 1) * 2 > self._others

    def besides(self, process: Process) -> tuple[float | None, float | None]:
        """When the first and the last of the others ended."""
        times = list(self._times)
        if process.ended_at_s in times:
            times.remove(process.ended_at_s)
        return (times[0], times[-1]) if times else (None, None)


def is_running(process: Process) -> bool:
    return process.exit_status is None and process.state not in GONE


# ---- in words --------------------------------------------------------------------------------------------------------


def sources(process: Process) -> tuple[Source, ...]:
    return (process.source,) if process.source else ()


def speaker(event: TransportEvent | Failure) -> str:
    """Who a line is about, as far as it says."""
    return f"rank {event.rank}" if event.rank is not None else event.node or "a rank"


def raised(error: PythonError) -> str:
    """``ValueError: loss is NaN``."""
    return f"{error.type}: {first_line(error.message)}"


def ending(process: Process) -> str:
    """``was ended by SIGKILL``, ``exited with status 1``."""
    status = process.exit_status
    if status is None:
        return "is gone"
    if status < 0:
        return f"was killed by {signal_name(-status)}"
    if status == 0:
        return "exited by itself with status 0 while the others continued"
    return f"exited with status {status}"
