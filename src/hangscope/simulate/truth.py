"""What an analyst who sees all the evidence, and only that, would say about a run."""

from __future__ import annotations

from collections.abc import Iterable

from hangscope.simulate.dump_formats import NCCL_OF_TORCH, recorded_name
from hangscope.simulate.event_engine import NEVER
from hangscope.simulate.program import Op
from hangscope.simulate.ring_records import SINGLE, Call, Recorder
from hangscope.simulate.training_sites import Site
from hangscope.simulate.true_waits import waits_for
from hangscope.simulate.whole_job import REHEARSAL, Plan, Run


def judge(run: Run) -> bool:
    """Whether the plan worked out. Writes what came of it into the plan: the culprits that others do wait for, whether
    it hangs, and what else it would be honest to say."""
    plan, spec = run.plan, run.job.spec
    ended = [rank for rank in range(spec.ranks) if run.engine.finished(rank)]
    if plan.kind in ("none", "slow"):
        if plan.kind == "slow" and (not spec.sees_starts or spec.minor < 3):
            # Nothing says how long anybody waited, and clocks and run-ahead hide who came late.
            plan.accept.append([])
            plan.accept_kinds = ["none"]
        return len(ended) == spec.ranks
    if plan.kind == "mismatch" and len(ended) == spec.ranks:
        plan.hang = False
        return plan.variant in ("name", "size", "dtype", "root") and _side(run)
    if ended:
        return False  # somebody went on as if nothing had happened: what he did next is not simulated
    if plan.kind in ("absent", "dead", "frozen", "gpu"):
        return _who_is_waited_for(run)
    if plan.kind == "network":
        return _who_got_through(run)
    if plan.kind == "deadlock":
        return _who_turned_round(run)
    return _side(run)


def _who_is_waited_for(run: Run) -> bool:
    plan, spec = run.plan, run.job.spec
    waits = waits_for(run)
    wanted = set().union(*waits.values()) if waits else set()
    found = [rank for rank in plan.culprits if rank in run.engine.halted and rank in wanted and not run.stuck(rank)]
    if found != plan.culprits:
        return False  # one of them has himself to wait, or nobody came far enough to wait for him
    if plan.kind == "gpu":
        groups_unknown = not spec.names_members and run.job.layout.ranks != run.job.layout.dp
        if not spec.sees_starts or groups_unknown:
            # Everybody launched it and nobody is seen to have started: nothing tells whose GPU is in the way.
            plan.accept.append([])
            plan.accept_kinds = ["unknown", "network"]
        return True
    without_dump = plan.kind != "absent" or spec.self_dump
    if without_dump and not spec.evidence:
        plan.accept_kinds = [kind for kind in ("dead", "frozen", "absent", "unknown") if kind != plan.kind]
        if not spec.names_members:
            # Nothing says that a rank without a dump belongs to the job at all.
            plan.accept.append([])
            plan.accept_kinds += ["network", "gpu"]
    elif plan.kind == "absent" and spec.self_dump:
        plan.accept_kinds = ["frozen", "unknown"]
    return True


def _who_got_through(run: Run) -> bool:
    """A dead link: the receiver is named where others got through, nobody where all are inside."""
    plan = run.plan
    assert plan.link is not None
    sender, receiver = plan.link
    place = run.number(sender, plan.number)
    op = run.flat[sender][place]
    both = [sender, receiver]
    if _link_is_said(run):
        plan.accept.append([sender])
    elif not run.job.spec.sees_starts:
        plan.accept_kinds = ["unknown", "gpu"]
    if op.p2p:
        plan.culprits, plan.accept = [], [both, [receiver], *plan.accept]
        return bool(run.stuck(receiver))
    index = run.job.groups.of[sender][op.role]
    ordinal = run.collectives_before(sender, place, index)
    inside: list[int] = []
    through: list[int] = []
    for rank in run.job.groups.all[index].members:
        end = _end_of(run, rank, index, ordinal)
        if end is None:
            return False
        (inside if end == NEVER else through).append(rank)
    if not inside:
        return False
    plan.accept.append(both)
    if not through:
        plan.culprits = []
    elif op.algorithm == "all_to_all" and sender in inside:
        plan.culprits = []  # both ends are stuck, each in a transfer with the other
        plan.accept.append([receiver])
    else:
        plan.culprits = [receiver]
        if not run.job.spec.evidence or op.algorithm != "broadcast":
            # Without NCCL's own word on the order of the ring nobody can say where in it the stuck ones begin.
            plan.accept += [[], inside] if inside != [receiver] else [[]]
    return True


def _link_is_said(run: Run) -> bool:
    """Whether a log names the link."""
    spec, link = run.job.spec, run.plan.link
    if link is None or not (spec.evidence and spec.nccl_warnings) or spec.backend == "gloo":
        return False
    return spec.node(link[0]) != spec.node(link[1])


def _end_of(run: Run, rank: int, index: int, ordinal: int) -> int | None:
    """When a rank finished the n-th collective of a group; None if it never started it."""
    of = run.job.groups.of[rank]
    for number, end in enumerate(run.timelines[rank].finished):
        op = run.flat[rank][number]
        if of[op.role] == index and not op.p2p:
            if ordinal == 0:
                return end
            ordinal -= 1
    return None


def _who_turned_round(run: Run) -> bool:
    plan = run.plan
    waits = waits_for(run)
    if not all(rank in waits for rank in plan.culprits):
        return False
    if not any(_leads_to(waits, rank, rank) for rank in plan.culprits):
        return False
    # A rank that is in the wrong order and one that left an operation out look alike until the second call is launched.
    plan.accept_kinds = ["mismatch"]
    ring = sorted(rank for rank in waits if _leads_to(waits, rank, rank))
    others = [rank for rank in ring if rank not in plan.culprits]
    if len(others) <= len(plan.culprits):
        plan.accept += [ring, others]
    return True


def _leads_to(waits: dict[int, set[int]], start: int, goal: int) -> bool:
    seen: set[int] = set()
    todo = [*waits.get(start, ())]
    while todo:
        rank = todo.pop()
        if rank == goal:
            return True
        if rank not in seen:
            seen.add(rank)
            todo.extend(waits.get(rank, ()))
    return False


def _side(run: Run) -> bool:
    """With two members nobody can say who of them is wrong, except by what they did before."""
    plan, groups = run.plan, run.job.groups
    op = usual(run)
    members = groups.all[groups.of[plan.rank][op.role]].members
    if op.p2p:
        peers = {members[part.peer] for part in op.parts}
        wrong = {members[part.peer] for part in plan.programs[plan.rank][plan.number].parts} - peers
        for peer in sorted(peers):
            plan.accept.append(sorted((plan.rank, peer)))
        plan.accept += [sorted((plan.rank, *wrong)), sorted({plan.rank, *peers, *wrong})]
    elif len(members) == 2:
        other = next(rank for rank in members if rank != plan.rank)
        plan.accept += [[other], sorted((plan.rank, other))]
    if plan.variant in ("skipped", "extra"):
        plan.accept_kinds = ["deadlock"]
    if plan.variant == "root" and plan.hang:
        # Nothing but the line of the call tells it from a link that died behind the rank with the wrong root.
        after = members[(members.index(plan.rank) + 1) % len(members)]
        plan.accept += [[after], sorted((plan.rank, after))]
        plan.accept_kinds = ["network"]
    return True


def usual(run: Run) -> Op:
    """The operation at the fault's place as everybody else runs it."""
    plan = run.plan
    kind = run.step_kinds[run.fault_step]
    return run.job.program(run.job.stages[plan.rank], kind)[plan.number]


def seen(run: Run) -> bool:
    """Whether the rings still hold the place where ranks began to differ: else nobody could find it."""
    plan = run.plan
    if plan.kind not in ("mismatch", "deadlock"):
        return True
    groups = run.job.groups
    op = usual(run)
    for rank in groups.all[groups.of[plan.rank][op.role]].members:
        first = run.offsets[rank][run.fault_step]
        later = run.timelines[rank].launched - first
        records = sum(len(part.parts) + 1 if part.batch else 1 for part in run.flat[rank][first : first + later])
        if records >= run.job.spec.entries:
            return False
    return True


def operation(run: Run, recorder: Recorder) -> dict[str, object] | None:
    """The operation at the root, with the sequence number under which its group knows it."""
    plan, spec, groups = run.plan, run.job.spec, run.job.groups
    if plan.rank < 0 or plan.kind == "slow":
        return None
    op = usual(run)
    group = groups.all[groups.of[plan.rank][op.role]]
    place = run.job.stages[plan.rank]
    rows = recorder.usual_rows(plan.rank)
    seq = rows.p2p_seq if op.p2p else rows.seq
    if spec.minor < 4:
        seq = rows.seq + rows.p2p_seq
    steps = run.programs[plan.rank][: run.fault_step]
    before = sum(len(ops) for ops in steps[len(REHEARSAL) :])
    row = int((rows.op == rows.ops + before + plan.number).nonzero()[0][0])
    label = recorder.label(op, place)
    name = recorded_name(spec, Call(op.site, label, op.role, op.p2p, SINGLE))
    return {
        "group": group.name,
        "seq": int(seq[row]),
        "name": name,
        "description": group.desc,
        "members": list(group.members),
    }


def _once(sets: Iterable[list[int]]) -> list[list[int]]:
    return [list(ranks) for ranks in dict.fromkeys(tuple(ranks) for ranks in sets)]


def _place(site: Site) -> str:
    _, file, line = site.caller
    return f"{file}:{line}"


def write(run: Run, recorder: Recorder, plan: Plan) -> dict[str, object]:
    """truth.json."""
    spec = run.job.spec
    line = _place(usual(run).site) if plan.rank >= 0 and plan.kind != "slow" else None
    changed = plan.programs.get(plan.rank, ())[plan.number : plan.number + 1] if plan.variant != "skipped" else ()
    return {
        "case": spec.case or f"{spec.fault}-{spec.seed}",
        "world_size": spec.ranks,
        "nodes": {str(rank): spec.node(rank) for rank in range(spec.ranks)},
        "torch": f"{spec.torch}.0",
        "nccl": NCCL_OF_TORCH[spec.minor] if spec.backend != "gloo" else None,
        "hang": plan.hang,
        "kind": plan.kind,
        "variant": plan.variant,
        "culprits": sorted(plan.culprits),
        "accept": _once(sorted(ranks) for ranks in plan.accept),
        "accept_kinds": plan.accept_kinds,
        "link": list(plan.link) if plan.link else None,
        "operation": operation(run, recorder),
        "line": line,
        "culprit_line": _place(changed[0].site) if changed else None,
        "layout": {"dp": run.job.layout.dp, "tp": spec.tp, "pp": spec.pp, "ep": spec.ep},
        "seed": spec.seed,
        "step": run.job.steps,
        "spec": spec.describe(),
    }
