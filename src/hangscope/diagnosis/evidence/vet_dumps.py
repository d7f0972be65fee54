"""Which dumps speak of this hang at all: compared with each other before anything is judged.

A folder holds what it holds: the dump of an attempt before, of another job, one taken minutes earlier, one from a node
whose clock is hours off. What tells them apart is what the ranks agree on. A dump that most others contradict is set
aside with a gap. One that cannot be judged is *disputed*: what it has, happened; what it does not have, it is silent
about.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from hangscope.diagnosis.align.op_index import Index
from hangscope.diagnosis.evidence.ends_apart import ends_apart
from hangscope.diagnosis.evidence.stale_dumps import (
    copies,
    further_than_possible,
    in_another_time,
    older_than_their_logs,
    recorded_spans,
)
from hangscope.diagnosis.evidence.wrongly_completed import corrected
from hangscope.model import Gap, Job, Operations, Source


@dataclass(frozen=True, slots=True)
class VettedDumps:
    """The evidence as it is judged.

    `job` is without the dumps that were set aside, and with what recordings are known to get wrong set right; `index`
    is over its operations.
    `disputed`: ranks whose dump may be of another time, silent about all that it does not have. `copied`: ranks whose
    dump is the same as another rank's. `clocks_off_s`: nodes whose clock differs so much that people should know.
    """

    job: Job
    index: Index
    gaps: tuple[Gap, ...]
    disputed: frozenset[int]
    copied: frozenset[int]
    clocks_off_s: Mapping[str, float]


@dataclass(slots=True)
class _Compared:
    """What comparing the dumps found: by rank why it is set aside, and of which other rank its dump is a copy."""

    aside: dict[int, str]
    copied_from: dict[int, int] = field(default_factory=dict)
    disputed: set[int] = field(default_factory=set)
    clocks_off_s: dict[str, float] = field(default_factory=dict)


def vet_dumps(job: Job) -> VettedDumps:
    """Compare the dumps of a job with each other; no file is trusted for being first, or alone."""
    index = Index(job.ops)
    found = _compared(job, index)
    gaps = _gaps(job, found)
    if found.aside:
        job = _without(job, set(found.aside))
        index = Index(job.ops)
    job = corrected(job, index)
    return VettedDumps(
        job=job,
        index=index if index.ops is job.ops else Index(job.ops),
        gaps=tuple(gaps),
        disputed=frozenset(found.disputed - set(found.aside)),
        copied=frozenset(found.copied_from),
        clocks_off_s=found.clocks_off_s,
    )


def _compared(job: Job, index: Index) -> _Compared:
    found = _Compared(older_than_their_logs(job, index))
    if len(job.dumps) < 2 or not len(job.ops):
        return found
    apart = ends_apart(job, index)
    found.aside.update(apart.of_another_attempt)
    found.clocks_off_s.update(apart.clocks_off_s)
    found.disputed.update(apart.disputed)
    unstamped = {rank for rank in job.dumps if len(job.ops.rows(rank=rank))} - set(recorded_spans(job, index))
    if len(unstamped) * 2 < len(job.dumps):
        found.disputed.update(unstamped)
    found.aside.update(in_another_time(job, index, set(found.aside) | apart.ranks))
    found.aside.update(further_than_possible(job, index, set(found.aside)))
    found.copied_from.update(copies(job, index))
    return found


def _gaps(job: Job, found: _Compared) -> list[Gap]:
    files = {rank: Source(dumps[0].file) for rank, dumps in job.dumps.items() if dumps}
    gaps = []
    for rank, why in sorted(found.aside.items()):
        what = f"stale: the dump of rank {rank} is not of this attempt"
        gaps.append(Gap(what, why, rank, job.nodes.get(rank), files.get(rank)))
    for rank, other in sorted(found.copied_from.items()):
        what = f"whose recording rank {rank}'s dump is"
        gaps.append(Gap(what, f"it is the same as rank {other}'s", rank, source=files.get(rank)))
    return gaps


def _without(job: Job, aside: set[int]) -> Job:
    """The job as if these dumps had not been found; ranks that nothing else mentions are not part of it."""
    keep = ~np.isin(job.ops.column("rank"), sorted(aside))
    columns = {name: column[keep] for name, column in job.ops.columns.items()}
    less = replace(
        job,
        ops=Operations(columns, job.ops.tables, job.groups),
        dumps={rank: dumps for rank, dumps in job.dumps.items() if rank not in aside},
        status={key: status for key, status in job.status.items() if key[0] not in aside},
        first_kept={key: first for key, first in job.first_kept.items() if key[0] not in aside},
    )
    known = _mentioned(less)
    most = max(known, default=None)
    return replace(less, ranks=tuple(r for r in job.ranks if most is None or r in known or r < most))


def _mentioned(job: Job) -> set[int]:
    """The ranks that dumps, groups in use, processes or logs speak of."""
    used = {*np.unique(job.ops.column("group")).tolist(), *(group for _, group in job.status)}
    members = {rank for group in job.groups if group.index in used for rank in group.members or ()}
    logs = {rank for rank, _ in job.facts.log_ranks} | {report.rank for report in job.facts.watchdog}
    return {*job.dumps, *members, *job.processes, *logs, *job.facts.signs_of_life}
