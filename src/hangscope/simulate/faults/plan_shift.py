"""One rank leaves a whole step out, or makes one twice, and everything goes on: its later calls meet the wrong ones.

A step left out moves all of a rank's groups alike, so that nothing hangs. Steps take turns to be called from two places
in the code, as those of an actor and a critic do: else nobody could see it.
"""

from __future__ import annotations

import random

from hangscope.simulate.faults.fault_plan import FaultPlan
from hangscope.simulate.faults.pick_place import kind_of_fault_step, pick_rank, program_of
from hangscope.simulate.program.healthy_job import HealthyJob

LEFT_OUT = "step"


def plan_shift(job: HealthyJob, rng: random.Random, variant: str) -> FaultPlan | None:
    rank = pick_rank(job, rng)
    ops = program_of(job, rank, kind_of_fault_step(job))
    plan = FaultPlan("shift", variant, rank, hang=False, culprits=[rank])
    plan.programs[rank] = () if variant == LEFT_OUT else (*ops, *ops)
    plan.steps_more = 1 if variant == LEFT_OUT else -1
    return plan
