"""Draws one place for the fault that is asked for: the planner of its kind, and a variant that the job can have."""

from __future__ import annotations

import random
from collections.abc import Callable

from hangscope.simulate.faults.fault_plan import FaultPlan
from hangscope.simulate.faults.pick_place import kind_of_fault_step, pick_rank, program_of
from hangscope.simulate.faults.plan_deadlock import plan_deadlock
from hangscope.simulate.faults.plan_lost_link import plan_lost_link
from hangscope.simulate.faults.plan_mismatch import plan_mismatch
from hangscope.simulate.faults.plan_stop import plan_absent, plan_dead_or_frozen, plan_gpu, plan_slow
from hangscope.simulate.program.healthy_job import HealthyJob
from hangscope.simulate.spec.job_spec import FAULTS

LEFT_OUT = "step"


def plan_shift(job: HealthyJob, rng: random.Random, variant: str) -> FaultPlan | None:
    """One rank leaves a whole step out, or makes one twice, and all goes on: its later calls meet the wrong ones.

    A step left out moves all of a rank's groups alike, so that nothing hangs. Steps take turns to be called from two
    places in the code, as those of an actor and a critic do: without that it could not be seen.
    """
    rank = pick_rank(job, rng)
    ops = program_of(job, rank, kind_of_fault_step(job))
    plan = FaultPlan("shift", variant, rank, hang=False, culprits=[rank])
    plan.programs[rank] = () if variant == LEFT_OUT else (*ops, *ops)
    plan.steps_more = 1 if variant == LEFT_OUT else -1
    return plan


Planner = Callable[[HealthyJob, random.Random, str], "FaultPlan | None"]


def plan_fault(job: HealthyJob, rng: random.Random) -> FaultPlan | None:
    """One possible place for the fault, or None where this draw found none."""
    spec = job.spec
    variant = spec.variant or rng.choice(_possible_variants(job))
    return _PLANNERS[spec.fault](job, rng, variant)


def _possible_variants(job: HealthyJob) -> list[str]:
    """Variants that the layout can have at all, and that its dumps can show."""
    layout = job.layout
    spec = job.spec
    unusable = {
        "batch": not _has_batches(job),
        "split": layout.ep == 1,
        "dtype": spec.minor < 4,  # older formats do not record types
        "root": layout.tp == 1 or not spec.records_lines,
        "peer": layout.pp < 3 or spec.backend == "gloo",
        "cycle": layout.tp == 1 or layout.dp == 1 or spec.overlap,
        "p2p": layout.pp == 1 or spec.backend == "gloo",
        "broadcast": layout.tp == 1,
        "running": not spec.sees_starts,
        "gpu": not _starts_are_recorded(job),
    }
    return [name for name in FAULTS[spec.fault] if not unusable.get(name, False)]


def _has_batches(job: HealthyJob) -> bool:
    batched_transfers = job.layout.pp > 1 and not job.model.plain_p2p
    batched_collectives = job.layout.dp > 1 and job.model.data_parallel == "coalesced"
    return batched_transfers or batched_collectives


def _starts_are_recorded(job: HealthyJob) -> bool:
    return job.spec.sees_starts and job.spec.minor > 2


def _plan_nothing(job: HealthyJob, rng: random.Random, variant: str) -> FaultPlan:  # noqa: ARG001  # as all planners
    return FaultPlan("none", variant, hang=False)


_PLANNERS: dict[str, Planner] = {
    "none": _plan_nothing,
    "absent": plan_absent,
    "dead": plan_dead_or_frozen,
    "frozen": plan_dead_or_frozen,
    "gpu": plan_gpu,
    "mismatch": plan_mismatch,
    "deadlock": plan_deadlock,
    "network": plan_lost_link,
    "slow": plan_slow,
    "shift": plan_shift,
}
