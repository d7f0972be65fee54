"""Where a fault strikes: every kind is a small planner that changes what one rank does.

What comes of it is for the engine to find out. A plan that did not work out (nobody waits, or the job went on
elsewhere) is thrown away and another place is tried.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from hangscope.simulate.layouts import DP, TP
from hangscope.simulate.program import CHECKPOINT, TRAIN, Op, Part
from hangscope.simulate.spec import FAULTS
from hangscope.simulate.training_sites import ELEMENT_BYTES, Site, count, on_line_of, site
from hangscope.simulate.whole_job import Job, Plan

Planner = Callable[[Job, random.Random, str], "Plan | None"]


def draw(job: Job, rng: random.Random) -> Plan | None:
    """One possible place for the fault, or None where this draw found none."""
    spec = job.spec
    variant = spec.variant or rng.choice(_likely_variants(job))
    return _PLANNERS[spec.fault](job, rng, variant)


def _likely_variants(job: Job) -> list[str]:
    """Variants that the layout can have at all."""
    layout, spec = job.layout, job.spec
    wanted = list(FAULTS[spec.fault])
    batches = (layout.pp > 1 and not job.model.plain_p2p) or (job.model.data_parallel == "coalesced" and layout.dp > 1)
    unusable = {
        "batch": not batches,
        "split": layout.ep == 1,
        "dtype": spec.minor < 4,  # older formats do not record types
        "root": layout.tp == 1 or not _lines_are_seen(job),
        "peer": layout.pp < 3 or spec.backend == "gloo",
        "cycle": layout.tp == 1 or layout.dp == 1 or spec.overlap,
        "p2p": layout.pp == 1 or spec.backend == "gloo",
        "broadcast": layout.tp == 1,
        "running": not spec.sees_starts,
        "gpu": not _starts_are_seen(job),
    }
    return [name for name in wanted if not unusable.get(name, False)]


def _starts_are_seen(job: Job) -> bool:
    return job.spec.sees_starts and job.spec.minor > 2


def _lines_are_seen(job: Job) -> bool:
    return job.spec.stacks and job.spec.form != "json" and job.spec.backend != "torchcomms"


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _program(job: Job, rank: int, kind: str = TRAIN) -> tuple[Op, ...]:
    return job.program(job.stages[rank], kind)


def _step_kind(job: Job) -> str:
    return job.kind_of_step(job.steps)


def _members(job: Job, rank: int, role: int) -> tuple[int, ...]:
    return job.groups.all[job.groups.of[rank][role]].members


def _some_rank(job: Job, rng: random.Random) -> int:
    return rng.choice(job.spec.culprits) if job.spec.culprits else rng.randrange(job.spec.ranks)


def _some_ranks(job: Job, rng: random.Random) -> list[int]:
    """As many ranks as were asked for, all of one stage, so that they can be stuck at the same place."""
    spec = job.spec
    if spec.culprits:
        return sorted(set(spec.culprits))
    stage = rng.choice(job.stages)
    there = [rank for rank in range(spec.ranks) if job.stages[rank] == stage]
    return sorted(rng.sample(there, min(spec.culprit_count, max(1, len(there) - 1))))


def _pick(rng: random.Random, ops: tuple[Op, ...], wanted: Callable[[Op], bool]) -> int | None:
    found = [number for number, op in enumerate(ops) if wanted(op)]
    return rng.choice(found) if found else None


# ---- the planners ----------------------------------------------------------------------------------------------------


def _none(job: Job, rng: random.Random, variant: str) -> Plan:  # noqa: ARG001  # one signature for all planners
    return Plan("none", variant, hang=False)


def _absent(job: Job, rng: random.Random, variant: str) -> Plan | None:
    ranks = _some_ranks(job, rng)
    kind = CHECKPOINT if variant == "checkpoint" else _step_kind(job)
    plan = Plan("absent", variant, ranks[0], culprits=ranks, step_kind=kind)
    for rank in ranks:
        ops = _program(job, rank, kind)
        if variant == "loader":
            number: int | None = 0
        elif variant == "checkpoint":
            number = len(ops) - rng.randint(1, 3)
        elif variant == "batch":
            number = _pick(rng, ops, lambda op: op.batch)
        else:
            number = rng.randrange(len(ops))
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


def _gone(job: Job, rng: random.Random, variant: str) -> Plan | None:
    plan = _absent(job, rng, "branch")
    if plan is not None:
        plan.kind, plan.variant = job.spec.fault, variant
    return plan


def _gpu(job: Job, rng: random.Random, variant: str) -> Plan:
    ranks = _some_ranks(job, rng)
    plan = Plan("gpu", variant, ranks[0], culprits=ranks)
    for rank in ranks:
        plan.gpu_stops[rank] = rng.randrange(len(_program(job, rank, _step_kind(job))))
    plan.number = plan.gpu_stops[ranks[0]]
    return plan


def _slow(job: Job, rng: random.Random, variant: str) -> Plan | None:
    rank = _some_rank(job, rng)
    if job.layout.pp > 1 and job.stages[rank]:
        if job.spec.culprits:
            return None
        rank %= job.layout.dp * job.layout.tp  # behind the first stage a pipeline's own waiting hides a late start
    work_ns = sum(op.gap_us * 1000 * job.spec.step_gap + op.size / 100 for op in _program(job, rank))
    late = int(job.spec.slow_ms * 1e6) or int((work_ns + 4e6) * rng.uniform(0.3, 0.8))
    plan = Plan("slow", variant, rank, hang=False, culprits=[rank])
    (plan.late_cpu_ns if variant == "cpu" else plan.late_gpu_ns)[rank] = late
    return plan


def _network(job: Job, rng: random.Random, variant: str) -> Plan | None:
    spec = job.spec
    sender = spec.culprits[0] if spec.culprits else rng.randrange(spec.ranks)
    ops = _program(job, sender, _step_kind(job))
    wanted = {
        "collective": lambda op: not op.p2p and op.algorithm != "broadcast",
        "broadcast": lambda op: op.algorithm == "broadcast",
        "p2p": lambda op: op.p2p and any(part.site.direction == "send" for part in op.parts),
    }[variant]
    number = _pick(rng, ops, wanted)
    if number is None:
        return None
    op = ops[number]
    members = _members(job, sender, op.role)
    place = members.index(sender)
    if op.p2p:
        receiver = members[next(part.peer for part in op.parts if part.site.direction == "send")]
    else:
        receiver = members[(place + 1) % len(members)]
    if variant == "broadcast" and (place + 1) % len(members) == op.root:
        return None
    if len(spec.culprits) > 1 and receiver != spec.culprits[1]:
        return None
    crosses = any(spec.node(rank) != spec.node(members[0]) for rank in members)
    if crosses and spec.node(sender) == spec.node(receiver) and not spec.culprits:
        return None  # links between nodes are the ones that die
    return Plan("network", variant, sender, number, link=(sender, receiver))


def _deadlock(job: Job, rng: random.Random, variant: str) -> Plan | None:
    if variant == "cycle":
        return _cycle(job, rng)
    rank = _some_rank(job, rng)
    kind = _step_kind(job)
    ops = _program(job, rank, kind)
    pairs = []
    for number in range(len(ops) - 1):
        here, after = ops[number], ops[number + 1]
        if here.p2p or after.p2p or here.role == after.role or here.fence:
            continue
        shared = set(_members(job, rank, here.role)) & set(_members(job, rank, after.role))
        if len(shared) > 1:
            pairs.append((number, len(shared), here.role))
    if not pairs:
        return None
    number, _, _ = rng.choice(pairs)
    return _swapped(job, [rank], number, kind, "order")


def _cycle(job: Job, rng: random.Random) -> Plan | None:
    """Two ranks at opposite corners of a square of the mesh use their groups in the other order."""
    layout, kind = job.layout, _step_kind(job)
    first = _some_rank(job, rng)
    dp, tp, pp = layout.place(first)
    other_dp = rng.choice([d for d in range(layout.dp) if d != dp])
    other_tp = rng.choice([t for t in range(layout.tp) if t != tp])
    second = layout.rank(other_dp, other_tp, pp)
    if len(job.spec.culprits) > 1 and second not in job.spec.culprits:
        return None
    ops = _program(job, first, kind)
    number = _pick_pair(rng, ops, TP, DP)
    return None if number is None else _swapped(job, sorted((first, second)), number, kind, "cycle")


def _pick_pair(rng: random.Random, ops: tuple[Op, ...], first: int, second: int) -> int | None:
    found = [
        number
        for number in range(len(ops) - 1)
        if {ops[number].role, ops[number + 1].role} == {first, second} and not ops[number].fence
    ]
    return rng.choice(found) if found else None


def _swapped(job: Job, ranks: list[int], number: int, kind: str, variant: str) -> Plan:
    plan = Plan("deadlock", variant, ranks[0], number, culprits=ranks, step_kind=kind)
    for rank in ranks:
        ops = list(_program(job, rank, kind))
        ops[number], ops[number + 1] = ops[number + 1], ops[number]
        plan.programs[rank] = tuple(ops)
    return plan


# ---- a rank that does something else ---------------------------------------------------------------------------------


def _mismatch(job: Job, rng: random.Random, variant: str) -> Plan | None:
    rank = _some_rank(job, rng)
    kind = _step_kind(job)
    ops = _program(job, rank, kind)
    number = _pick(rng, ops, lambda op: _fits(op, variant))
    if number is None:
        return None
    op = ops[number]
    members = _members(job, rank, op.role)
    plan = Plan("mismatch", variant, rank, number, culprits=[rank], step_kind=kind, odd=not op.p2p)
    changed = _changed(op, variant, rng, members.index(rank), len(members))
    if changed is None:
        return None
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
        return [replace(op, site=call, algorithm=name, root=root, size=_bytes(call))]
    if variant == "size":
        factor = rng.choice((2, 3, 16))
        longer = replace(
            op.site, inputs=_stretched(op.site.inputs, factor), outputs=_stretched(op.site.outputs, factor)
        )
        return [replace(op, site=longer, size=op.size * factor)]
    if variant == "dtype":
        other = "Float" if op.site.dtype != "Float" else rng.choice(("BFloat16", "Double"))
        call = replace(op.site, dtype=other)
        return [replace(op, site=call, size=_bytes(call))]
    if variant == "split":
        peer = rng.choice([other for other in range(size) if other != place])
        rows, width = op.site.inputs[0]
        extra = rng.choice((1, 2, 8)) * max(1, rows // size)
        call = replace(op.site, inputs=((rows + extra, width),))
        return [replace(op, site=call, split=(peer, extra * width * ELEMENT_BYTES[op.site.dtype]))]
    if variant == "root":
        others = [other for other in range(size) if other != op.root]
        root = rng.choice(others)
        return [replace(op, site=on_line_of(op.site, "other branch"), root=root)]
    return _other_peer(op, rng, place, size)


def _other_peer(op: Op, rng: random.Random, place: int, size: int) -> list[Op] | None:
    which = rng.randrange(len(op.parts))
    part = op.parts[which]
    choices = [peer for peer in range(size) if peer not in (place, part.peer)]
    if not choices:
        return None
    parts = list(op.parts)
    parts[which] = Part(part.site, rng.choice(choices))
    return [replace(op, parts=tuple(parts))]


def _bytes(call: Site) -> int:
    return max(count(call.inputs), count(call.outputs)) * ELEMENT_BYTES[call.dtype]


def _stretched(shapes: tuple[tuple[int, ...], ...], factor: int) -> tuple[tuple[int, ...], ...]:
    return tuple((shape[0] * factor, *shape[1:]) for shape in shapes)


_PLANNERS: dict[str, Planner] = {
    "none": _none,
    "absent": _absent,
    "dead": _gone,
    "frozen": _gone,
    "gpu": _gpu,
    "mismatch": _mismatch,
    "deadlock": _deadlock,
    "network": _network,
    "slow": _slow,
}
