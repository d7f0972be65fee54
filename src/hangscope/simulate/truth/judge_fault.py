"""What an analyst who sees all the evidence, and only that, would say about a run."""

from __future__ import annotations

from hangscope.simulate.events.event_engine import NEVER
from hangscope.simulate.events.job_run import JobRun
from hangscope.simulate.events.true_waits import waits_for
from hangscope.simulate.program.step_operations import Op


def judge(run: JobRun) -> bool:
    """Whether the plan worked out. Writes what came of it into the plan: the culprits that others do wait for, whether
    it hangs, and what else it would be honest to say."""
    plan = run.plan
    spec = run.job.spec
    ended = [rank for rank in range(spec.ranks) if run.engine.finished(rank)]
    if plan.kind in ("none", "slow", "shift"):
        if not _can_be_seen(run):
            plan.accept.append([])
            plan.accept_kinds = ["none"]
        return len(ended) == spec.ranks
    if plan.kind == "mismatch" and len(ended) == spec.ranks:
        plan.hang = False
        return plan.variant in ("name", "size", "dtype", "root") and _judge_mismatch(run)
    if ended:
        return False  # a rank went on as if nothing had happened: what it did next is not simulated
    if plan.kind in ("absent", "dead", "frozen", "gpu"):
        return _judge_stop(run)
    if plan.kind == "network":
        return _judge_lost_link(run)
    if plan.kind == "deadlock":
        return _judge_deadlock(run)
    return _judge_mismatch(run)


def _can_be_seen(run: JobRun) -> bool:
    """Whether the recordings of a job that runs can show its fault."""
    spec = run.job.spec
    if run.plan.kind == "slow":
        # Else nothing says how long anybody waited, and clocks and run-ahead hide who came late.
        return spec.sees_starts and spec.minor >= 3
    # Sizes and operations of all steps are the same: lines show it, and who belongs to a group has to be known.
    return run.plan.kind == "none" or (spec.records_lines and spec.minor >= 3)


def expected_op(run: JobRun) -> Op:
    """The operation at the fault's place as everybody else runs it."""
    plan = run.plan
    kind = run.step_kinds[run.fault_step]
    return run.job.program(run.job.stages[plan.rank], kind)[plan.number]


def rings_hold_the_fault(run: JobRun) -> bool:
    """Whether the rings still hold the place where ranks began to differ: else nobody could find it."""
    plan = run.plan
    if plan.kind not in ("mismatch", "deadlock"):
        return True
    for rank in run.job.members(plan.rank, expected_op(run).role):
        first = run.offsets[rank][run.fault_step]
        launched = run.flat[rank][first : run.timelines[rank].launched]
        records = sum(len(op.parts) + 1 if op.batch else 1 for op in launched)
        if records >= run.job.spec.entries:
            return False
    return True


# ---- a rank that stopped ---------------------------------------------------------------------------------------------


def _judge_stop(run: JobRun) -> bool:
    """The culprits are those that others wait for while they wait for nobody."""
    plan = run.plan
    waits = waits_for(run)
    waited_for: set[int] = set().union(*waits.values())
    if not all(rank in run.engine.halted and rank in waited_for and not run.stuck(rank) for rank in plan.culprits):
        return False  # one of them has itself to wait, or nobody came far enough to wait for it
    if plan.kind == "gpu":
        _accept_unseen_gpu(run)
    else:
        _accept_without_dump(run)
    return True


def _accept_unseen_gpu(run: JobRun) -> None:
    spec = run.job.spec
    groups_unknown = not spec.names_members and run.job.layout.ranks != run.job.layout.dp
    if not spec.sees_starts or groups_unknown:
        # Everybody launched it and nobody is seen to have started: nothing tells whose GPU is in the way.
        run.plan.accept.append([])
        run.plan.accept_kinds = ["unknown", "network"]


def _accept_without_dump(run: JobRun) -> None:
    plan = run.plan
    spec = run.job.spec
    without_dump = plan.kind != "absent" or spec.self_dump
    if not without_dump:
        return
    if not spec.evidence:
        plan.accept_kinds = [kind for kind in ("dead", "frozen", "absent", "unknown") if kind != plan.kind]
        if not spec.names_members:
            # Nothing says that a rank without a dump belongs to the job at all.
            plan.accept.append([])
            plan.accept_kinds += ["network", "gpu"]
    elif plan.kind == "absent":
        plan.accept_kinds = ["frozen", "unknown"]


# ---- a dead link -----------------------------------------------------------------------------------------------------


def _judge_lost_link(run: JobRun) -> bool:
    """The receiver is named where others got through, nobody where all are inside."""
    plan = run.plan
    assert plan.link is not None
    sender, receiver = plan.link
    place = run.number(sender, plan.number)
    op = run.flat[sender][place]
    both = [sender, receiver]
    if _a_log_names_the_link(run):
        plan.accept.append([sender])
    elif not run.job.spec.sees_starts:
        plan.accept_kinds = ["unknown", "gpu"]
    if op.p2p:
        plan.culprits = []
        plan.accept = [both, [receiver], *plan.accept]
        return bool(run.stuck(receiver))
    index = run.job.groups.of[sender][op.role]
    ordinal = run.collectives_before(sender, place, index)
    members = run.job.groups.all[index].members
    ends = {rank: _end_of(run, rank, index, ordinal) for rank in members}
    inside = [rank for rank in members if ends[rank] == NEVER]
    if None in ends.values() or not inside:
        return False
    plan.accept.append(both)
    if inside == list(members):
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


def _a_log_names_the_link(run: JobRun) -> bool:
    spec = run.job.spec
    link = run.plan.link
    if link is None or not (spec.evidence and spec.nccl_warnings) or spec.backend == "gloo":
        return False
    return spec.node(link[0]) != spec.node(link[1])


def _end_of(run: JobRun, rank: int, index: int, ordinal: int) -> int | None:
    """When a rank finished the n-th collective of a group; None if it never started it."""
    of = run.job.groups.of[rank]
    for number, end in enumerate(run.timelines[rank].finished):
        op = run.flat[rank][number]
        if of[op.role] == index and not op.p2p:
            if ordinal == 0:
                return end
            ordinal -= 1
    return None


# ---- two groups in the other order -----------------------------------------------------------------------------------


def _judge_deadlock(run: JobRun) -> bool:
    """The culprits must be in a cycle of waits."""
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


# ---- another call ----------------------------------------------------------------------------------------------------


def _judge_mismatch(run: JobRun) -> bool:
    """With two members nobody can say who of them is wrong, except by what they did before."""
    plan = run.plan
    op = expected_op(run)
    members = run.job.members(plan.rank, op.role)
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
