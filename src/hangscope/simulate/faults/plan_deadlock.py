"""One rank uses two groups in the other order, or two ranks at opposite corners of a mesh do."""

from __future__ import annotations

import random

from hangscope.simulate.faults.fault_plan import FaultPlan
from hangscope.simulate.faults.pick_place import kind_of_fault_step, pick_rank, program_of
from hangscope.simulate.program.healthy_job import HealthyJob
from hangscope.simulate.program.step_operations import Op
from hangscope.simulate.spec.job_layout import DP, TP


def plan_deadlock(job: HealthyJob, rng: random.Random, variant: str) -> FaultPlan | None:
    return _cycle(job, rng) if variant == "cycle" else _other_order(job, rng)


def _other_order(job: HealthyJob, rng: random.Random) -> FaultPlan | None:
    rank = pick_rank(job, rng)
    kind = kind_of_fault_step(job)
    ops = program_of(job, rank, kind)
    pairs = [number for number in range(len(ops) - 1) if _can_deadlock(job, rank, ops[number], ops[number + 1])]
    if not pairs:
        return None
    return _swapped(job, [rank], rng.choice(pairs), kind, "order")


def _can_deadlock(job: HealthyJob, rank: int, here: Op, after: Op) -> bool:
    """Whether the two are collectives of two groups that share more than this rank, launched in one go."""
    if here.p2p or after.p2p or here.role == after.role or here.fence:
        return False
    shared = set(job.members(rank, here.role)) & set(job.members(rank, after.role))
    return len(shared) > 1


def _cycle(job: HealthyJob, rng: random.Random) -> FaultPlan | None:
    """Two ranks at opposite corners of a square of the mesh use their groups in the other order."""
    layout = job.layout
    if layout.dp == 1 or layout.tp == 1:
        return None  # there is no square
    kind = kind_of_fault_step(job)
    first = pick_rank(job, rng)
    dp, tp, pp = layout.place(first)
    other_dp = rng.choice([d for d in range(layout.dp) if d != dp])
    other_tp = rng.choice([t for t in range(layout.tp) if t != tp])
    second = layout.rank(other_dp, other_tp, pp)
    if len(job.spec.culprits) > 1 and second not in job.spec.culprits:
        return None
    number = _pick_pair(rng, program_of(job, first, kind), TP, DP)
    return None if number is None else _swapped(job, sorted((first, second)), number, kind, "cycle")


def _pick_pair(rng: random.Random, ops: tuple[Op, ...], first: int, second: int) -> int | None:
    found = [
        number
        for number in range(len(ops) - 1)
        if {ops[number].role, ops[number + 1].role} == {first, second} and not ops[number].fence
    ]
    return rng.choice(found) if found else None


def _swapped(job: HealthyJob, ranks: list[int], number: int, kind: str, variant: str) -> FaultPlan:
    plan = FaultPlan("deadlock", variant, ranks[0], number, culprits=ranks, step_kind=kind)
    for rank in ranks:
        ops = list(program_of(job, rank, kind))
        ops[number], ops[number + 1] = ops[number + 1], ops[number]
        plan.programs[rank] = tuple(ops)
    return plan
