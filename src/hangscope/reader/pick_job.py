"""Of several jobs side by side the one that is meant: the one that was named, or the newest attempt where all are of
one job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hangscope.errors import SeveralJobsError
from hangscope.model import Gap, Source
from hangscope.reader.find_files import Found
from hangscope.reader.join.jobs_apart import FoundJob


def choose(jobs: Sequence[FoundJob], wanted: str | None, paths: Sequence[str | Path]) -> FoundJob:
    """The job that is meant. Raises SeveralJobsError where nobody can know."""
    if wanted is not None:
        named = [job for job in jobs if wanted in names_of(job)] or [
            job for job in jobs if job.name.endswith(f"/{wanted}")
        ]
        if named and len({job.family for job in named}) == 1:
            return named[-1]
    elif len({job.family for job in jobs}) == 1 and all(job.ended_ns is not None for job in jobs):
        return jobs[-1]
    raise several_jobs(jobs, wanted, paths)


def names_of(job: FoundJob) -> tuple[str, ...]:
    """What it may be called: by its name, or with its attempt."""
    return (job.name, f"{job.name}/{job.attempt}") if job.attempt else (job.name,)


def several_jobs(jobs: Sequence[FoundJob], wanted: str | None, paths: Sequence[str | Path]) -> SeveralJobsError:
    """The error that lists them."""
    named = ", ".join(dict.fromkeys(job.name for job in jobs))
    where = ", ".join(map(str, paths))
    if wanted is None:
        what = f"{where}: evidence of {len(jobs)} jobs, which is never read as one: {named}"
    else:
        what = f"{where}: there is no job {wanted!r} among {named}"
    return SeveralJobsError(what, tuple(jobs), hint="choose one of them: --job NAME, or load(…, job=NAME)")


def left_out(chosen: FoundJob, jobs: Sequence[FoundJob], found: Sequence[Found]) -> Iterator[Gap]:
    """What was not read because it is another job's, or may be."""
    for job in jobs:
        if job is not chosen:
            kind = "an older attempt" if job.family == chosen.family else "another job"
            yield Gap(f"{kind} in {job.name}", f"{len(job.files)} files were left out", source=Source(job.name))
    taken = frozenset().union(*(job.files for job in jobs))
    rest = sum(item.file not in taken for item in found)
    if rest:
        yield Gap(f"{rest} files beside the jobs", "left out: nothing says which of the jobs they belong to")
