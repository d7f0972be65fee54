"""A rank that stops or is late: absent, dead, frozen, a GPU that never starts, a slow one."""

from __future__ import annotations

import random

from hangscope.simulate.faults.fault_plan import FaultPlan
from hangscope.simulate.faults.pick_place import (
    kind_of_fault_step,
    pick_operation,
    pick_rank,
    pick_ranks,
    program_of,
)
from hangscope.simulate.program.healthy_job import HealthyJob
from hangscope.simulate.program.step_operations import CHECKPOINT, TRAIN, Op


def plan_absent(job: HealthyJob, rng: random.Random, variant: str) -> FaultPlan | None:
    """The CPU of a rank, or of several, never launches an operation."""
    ranks = pick_ranks(job, rng)
    kind = CHECKPOINT if variant == "checkpoint" else kind_of_fault_step(job)
    plan = FaultPlan("absent", variant, ranks[0], culprits=ranks, step_kind=kind)
    for rank in ranks:
        number = _where_it_stops(rng, program_of(job, rank, kind), variant)
        if number is None:
            return None
        plan.cpu_stops[rank] = number
    if all(job.stages[rank] == job.stages[ranks[0]] for rank in ranks) and rng.random() < 0.8:
        # The usual way to have several: all of them are stuck at the same place.
        plan.cpu_stops = dict.fromkeys(ranks, plan.cpu_stops[ranks[0]])
    if variant == "batch":
        plan.inside_batch = frozenset(ranks)
    plan.number = plan.cpu_stops[ranks[0]]
    return plan


def _where_it_stops(rng: random.Random, ops: tuple[Op, ...], variant: str) -> int | None:
    if variant == "loader":
        return 0
    if variant == "checkpoint":
        return len(ops) - rng.randint(1, 3)
    if variant == "batch":
        return pick_operation(rng, ops, lambda op: op.batch)
    return rng.randrange(len(ops))


def plan_dead_or_frozen(job: HealthyJob, rng: random.Random, variant: str) -> FaultPlan | None:
    """As seen by its peers a process that ended or was stopped is one that launches nothing more."""
    plan = plan_absent(job, rng, "branch")
    if plan is not None:
        plan.kind = job.spec.fault
        plan.variant = variant
    return plan


def plan_gpu(job: HealthyJob, rng: random.Random, variant: str) -> FaultPlan:
    """The CPU goes on, the GPU never starts an operation."""
    ranks = pick_ranks(job, rng)
    plan = FaultPlan("gpu", variant, ranks[0], culprits=ranks)
    for rank in ranks:
        plan.gpu_stops[rank] = rng.randrange(len(program_of(job, rank, kind_of_fault_step(job))))
    plan.number = plan.gpu_stops[ranks[0]]
    return plan


def plan_slow(job: HealthyJob, rng: random.Random, variant: str) -> FaultPlan | None:
    """A CPU or a GPU comes late in every step."""
    rank = pick_rank(job, rng)
    if job.layout.pp > 1 and job.stages[rank]:
        if job.spec.culprits:
            return None
        rank %= job.layout.dp * job.layout.tp  # behind the first stage a pipeline's own waiting hides a late start
    work_ns = sum(op.gap_us * 1000 * job.spec.step_gap + op.size / 100 for op in program_of(job, rank, TRAIN))
    late_ns = int(job.spec.slow_ms * 1e6) or int((work_ns + 4e6) * rng.uniform(0.3, 0.8))
    plan = FaultPlan("slow", variant, rank, hang=False, culprits=[rank])
    late = plan.late_cpu_ns if variant == "cpu" else plan.late_gpu_ns
    late[rank] = late_ns
    return plan
