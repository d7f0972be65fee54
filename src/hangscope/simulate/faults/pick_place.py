"""Ranks and operations where a fault may strike, drawn from the job."""

from __future__ import annotations

import random
from collections.abc import Callable

from hangscope.simulate.program.healthy_job import HealthyJob
from hangscope.simulate.program.step_operations import Op


def program_of(job: HealthyJob, rank: int, kind: str) -> tuple[Op, ...]:
    """What a rank runs in a step of one kind."""
    return job.program(job.stages[rank], kind)


def kind_of_fault_step(job: HealthyJob) -> str:
    return job.kind_of_step(job.steps)


def pick_rank(job: HealthyJob, rng: random.Random) -> int:
    return rng.choice(job.spec.culprits) if job.spec.culprits else rng.randrange(job.spec.ranks)


def pick_ranks(job: HealthyJob, rng: random.Random) -> list[int]:
    """As many ranks as were asked for, all of one stage, so that they can be stuck at the same place."""
    spec = job.spec
    if spec.culprits:
        return sorted(set(spec.culprits))
    stage = rng.choice(job.stages)
    there = [rank for rank in range(spec.ranks) if job.stages[rank] == stage]
    return sorted(rng.sample(there, min(spec.culprit_count, max(1, len(there) - 1))))


def pick_operation(rng: random.Random, ops: tuple[Op, ...], wanted: Callable[[Op], bool]) -> int | None:
    """The number of one operation that fits, None where there is none."""
    found = [number for number, op in enumerate(ops) if wanted(op)]
    return rng.choice(found) if found else None
