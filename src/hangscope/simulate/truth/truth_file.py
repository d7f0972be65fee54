"""truth.json: what was injected, as far as it came to anything, and how to make the job again."""

from __future__ import annotations

from collections.abc import Iterable

from hangscope.simulate.events.job_run import REHEARSAL, JobRun
from hangscope.simulate.files.dump_contents import recorded_name
from hangscope.simulate.files.dump_formats import NCCL_OF_TORCH
from hangscope.simulate.program.training_sites import Site
from hangscope.simulate.record.recorded_rows import SINGLE, RecordedCall, RowTable
from hangscope.simulate.truth.judge_fault import expected_op


def truth_of(run: JobRun, table: RowTable) -> dict[str, object]:
    plan = run.plan
    spec = run.job.spec
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
        "operation": _operation(run, table),
        "line": _line(expected_op(run).site) if _at_one_operation(run) else None,
        "culprit_line": _culprit_line(run),
        "layout": {"dp": run.job.layout.dp, "tp": spec.tp, "pp": spec.pp, "ep": spec.ep},
        "seed": spec.seed,
        "step": run.job.steps,
        "spec": spec.describe(),
    }


def _at_one_operation(run: JobRun) -> bool:
    """Whether the fault is at one operation, unlike a slow rank's."""
    return run.plan.rank >= 0 and run.plan.kind != "slow"


def _operation(run: JobRun, table: RowTable) -> dict[str, object] | None:
    """The operation at the root, with the sequence number under which its group knows it."""
    if not _at_one_operation(run):
        return None
    plan = run.plan
    spec = run.job.spec
    groups = run.job.groups
    op = expected_op(run)
    group = groups.all[groups.of[plan.rank][op.role]]
    rows = table.usual_rows(plan.rank)
    seq = rows.p2p_seq if op.p2p else rows.seq
    if spec.minor < 4:
        seq = rows.seq + rows.p2p_seq
    steps = run.programs[plan.rank][: run.fault_step]
    before = sum(len(ops) for ops in steps[len(REHEARSAL) :])
    row = int((rows.op == rows.past_ops + before + plan.number).nonzero()[0][0])
    label = table.label(op, run.job.stages[plan.rank])
    return {
        "group": group.name,
        "seq": int(seq[row]),
        "name": recorded_name(spec, RecordedCall(op.site, label, op.role, op.p2p, SINGLE)),
        "description": group.desc,
        "members": list(group.members),
    }


def _once(sets: Iterable[list[int]]) -> list[list[int]]:
    return [list(ranks) for ranks in dict.fromkeys(tuple(ranks) for ranks in sets)]


def _line(site: Site) -> str:
    _, file, line = site.caller
    return f"{file}:{line}"


def _culprit_line(run: JobRun) -> str | None:
    """The line from which the culprit calls something else, where it calls anything."""
    plan = run.plan
    if plan.kind == "shift" or plan.variant == "skipped" or plan.rank not in plan.programs:
        return None
    return _line(plan.programs[plan.rank][plan.number].site)
