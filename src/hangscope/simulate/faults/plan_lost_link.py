"""A link that dies: from one operation on no message from one rank to the next arrives."""

from __future__ import annotations

import random
from collections.abc import Callable

from hangscope.simulate.faults.fault_plan import FaultPlan
from hangscope.simulate.faults.pick_place import kind_of_fault_step, pick_operation, program_of
from hangscope.simulate.program.healthy_job import HealthyJob
from hangscope.simulate.program.step_operations import Op


def plan_lost_link(job: HealthyJob, rng: random.Random, variant: str) -> FaultPlan | None:
    spec = job.spec
    sender = spec.culprits[0] if spec.culprits else rng.randrange(spec.ranks)
    ops = program_of(job, sender, kind_of_fault_step(job))
    number = pick_operation(rng, ops, _OPERATIONS[variant])
    if number is None:
        return None
    op = ops[number]
    members = job.members(sender, op.role)
    after = (members.index(sender) + 1) % len(members)
    if variant == "broadcast" and after == op.root:
        return None
    receiver = members[_peer_of_send(op) if op.p2p else after]
    if len(spec.culprits) > 1 and receiver != spec.culprits[1]:
        return None
    if not spec.culprits and not _may_die(job, members, sender, receiver):
        return None
    return FaultPlan("network", variant, sender, number, link=(sender, receiver))


def _sends(op: Op) -> bool:
    return op.p2p and any(part.site.direction == "send" for part in op.parts)


_OPERATIONS: dict[str, Callable[[Op], bool]] = {
    "collective": lambda op: not op.p2p and op.algorithm != "broadcast",
    "broadcast": lambda op: op.algorithm == "broadcast",
    "p2p": _sends,
}


def _peer_of_send(op: Op) -> int:
    return next(part.peer for part in op.parts if part.site.direction == "send")


def _may_die(job: HealthyJob, members: tuple[int, ...], sender: int, receiver: int) -> bool:
    """Links between nodes are the ones that die, where the group has any."""
    node = job.spec.node
    crosses = any(node(rank) != node(members[0]) for rank in members)
    return not crosses or node(sender) != node(receiver)
