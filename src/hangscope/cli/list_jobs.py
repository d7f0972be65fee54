"""Several jobs in one folder, with a line each, for whoever has to choose."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from hangscope.cli.output import complain, note
from hangscope.errors import SeveralJobsError
from hangscope.text import plural

if TYPE_CHECKING:
    from hangscope.reader.join.jobs_apart import FoundJob

_SHOWN = 40
_HOSTS_SHOWN = 4


def list_jobs(error: SeveralJobsError) -> None:
    """The error, and below it the jobs, on stderr."""
    complain(str(error))
    wide = min(max(len(_name(job)) for job in error.jobs), 40)
    for job in error.jobs[:_SHOWN]:
        note(f"  {_name(job).ljust(wide)}  {_about(job)}")
    if len(error.jobs) > _SHOWN:
        note(f"  and {len(error.jobs) - _SHOWN} more")
    if error.hint:
        note(f"hint: {error.hint}")


def _name(job: FoundJob) -> str:
    return f"{job.name}/{job.attempt}" if job.attempt else job.name


def _about(job: FoundJob) -> str:
    said = [plural(job.ranks, "rank")] if job.ranks else []
    if job.hosts:
        more = len(job.hosts) - _HOSTS_SHOWN
        said.append(", ".join(job.hosts[:_HOSTS_SHOWN]) + (f" and {more} more" if more > 0 else ""))
    if job.ended_ns is not None:
        said.append(f"until {_clock(job.ended_ns)}")
    said.append(plural(job.dumps, "dump") if job.dumps else plural(len(job.files), "file"))
    return "; ".join([*said, *([job.doubt] if job.doubt else [])])


def _clock(at_ns: int) -> str:
    try:
        return datetime.fromtimestamp(at_ns / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return "a time that cannot be"
