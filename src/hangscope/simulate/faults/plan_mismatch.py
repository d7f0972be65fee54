"""One rank calls something else than its group: another operation, size, type, split, root or peer, or one more."""

from __future__ import annotations

import random
from dataclasses import replace

from hangscope.simulate.faults.fault_plan import FaultPlan
from hangscope.simulate.faults.pick_place import kind_of_fault_step, pick_operation, pick_rank, program_of
from hangscope.simulate.program.healthy_job import HealthyJob
from hangscope.simulate.program.step_operations import Op, OpPart
from hangscope.simulate.program.training_sites import ELEMENT_BYTES, count, on_line_of, site


def plan_mismatch(job: HealthyJob, rng: random.Random, variant: str) -> FaultPlan | None:
    rank = pick_rank(job, rng)
    kind = kind_of_fault_step(job)
    ops = program_of(job, rank, kind)
    number = pick_operation(rng, ops, lambda op: _fits(op, variant))
    if number is None:
        return None
    op = ops[number]
    members = job.members(rank, op.role)
    changed = _changed(op, variant, rng, members.index(rank), len(members))
    if changed is None:
        return None
    plan = FaultPlan("mismatch", variant, rank, number, culprits=[rank], step_kind=kind, members_disagree=not op.p2p)
    plan.programs[rank] = (*ops[:number], *changed, *ops[number + 1 :])
    return plan


def _fits(op: Op, variant: str) -> bool:
    if variant == "peer":
        return op.p2p
    if op.p2p or op.batch:
        return variant == "skipped" and op.batch and not op.p2p
    return {
        "split": op.algorithm == "all_to_all",
        "root": op.algorithm == "broadcast",
        "size": op.algorithm in ("all_reduce", "all_gather", "reduce_scatter") and count(op.site.inputs) > 1,
        "dtype": op.algorithm == "all_reduce",
        "name": op.algorithm in _OTHER_CALL,
    }.get(variant, True)


_OTHER_CALL = {
    "all_reduce": (("broadcast", "broadcast"), ("reduce", "reduce")),
    "broadcast": (("all_reduce", "all_reduce"),),
    "all_gather": (("all_reduce", "all_reduce"), ("broadcast", "broadcast")),
    "reduce_scatter": (("all_reduce", "all_reduce"),),
    "all_to_all": (("all_reduce", "all_reduce"),),
}


def _changed(op: Op, variant: str, rng: random.Random, place: int, size: int) -> list[Op] | None:
    """What the faulty rank runs instead of one operation."""
    if variant == "skipped":
        return []
    if variant == "extra":
        call = site("all_reduce", "all_reduce", "other branch", ((1,),), None, "Float")
        return [Op(call, op.role, "all_reduce", 4), op]
    if variant == "name":
        name, api = rng.choice(_OTHER_CALL[op.algorithm])
        call = site(name, api, "other branch", op.site.inputs, None, op.site.dtype)
        root = place if rng.random() < 0.5 else 0
        return [replace(op, site=call, algorithm=name, root=root, size=call.size_bytes)]
    if variant == "size":
        factor = rng.choice((2, 3, 16))
        longer = replace(
            op.site, inputs=_stretched(op.site.inputs, factor), outputs=_stretched(op.site.outputs, factor)
        )
        return [replace(op, site=longer, size=op.size * factor)]
    if variant == "dtype":
        other = "Float" if op.site.dtype != "Float" else rng.choice(("BFloat16", "Double"))
        call = replace(op.site, dtype=other)
        return [replace(op, site=call, size=call.size_bytes)]
    if variant == "split":
        peer = rng.choice([other for other in range(size) if other != place])
        rows, width = op.site.inputs[0]
        extra = rng.choice((1, 2, 8)) * max(1, rows // size)
        call = replace(op.site, inputs=((rows + extra, width),))
        return [replace(op, site=call, split=(peer, extra * width * ELEMENT_BYTES[op.site.dtype]))]
    if variant == "root":
        root = rng.choice([other for other in range(size) if other != op.root])
        return [replace(op, site=on_line_of(op.site, "other branch"), root=root)]
    return _other_peer(op, rng, place, size)


def _other_peer(op: Op, rng: random.Random, place: int, size: int) -> list[Op] | None:
    which = rng.randrange(len(op.parts))
    part = op.parts[which]
    choices = [peer for peer in range(size) if peer not in (place, part.peer)]
    if not choices:
        return None
    parts = list(op.parts)
    parts[which] = OpPart(part.site, rng.choice(choices))
    return [replace(op, parts=tuple(parts))]


def _stretched(shapes: tuple[tuple[int, ...], ...], factor: int) -> tuple[tuple[int, ...], ...]:
    return tuple((shape[0] * factor, *shape[1:]) for shape in shapes)
