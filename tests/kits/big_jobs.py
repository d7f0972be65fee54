"""Jobs of any size in memory, with their verdict: reading as many dumps from disk would take minutes."""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.verdict import Completeness, Culprit, Diagnosis, Finding, OperationInFlight, Victim
from hangscope.model import (
    COLUMNS,
    Dump,
    Facts,
    Frame,
    Group,
    Job,
    Operations,
    PythonError,
    Source,
    State,
    Tables,
    ThreadStack,
)

T0 = 1_790_000_000_000_000_000
STEP_NS = 120_000_000
SIZE = 8
"""Ranks of a tensor group, and of a node."""


def big_job(ranks: int, steps: int, culprit: int, ahead_ns: dict[str, int] | None = None, text: str = "") -> Job:
    """Each step an all_reduce in the tensor group and one among all; `culprit` does not come to its last tensor call.

    `ahead_ns` sets the clocks of nodes wrong; `text` stands in every name.
    """
    per_rank = 2 * steps
    of = np.repeat(np.arange(ranks), per_rank)
    at = np.tile(np.arange(per_rank), ranks)
    step, everyone = at // 2 + 1, at % 2
    nodes = {rank: f"gpu-node-{rank // SIZE:04d}{text}" for rank in range(ranks)}
    tables = Tables()
    name = tables.add_name(f"all_reduce{text}")
    frames = (Frame(f"reduce{text}", f"/workspace/model{text}.py", 58), Frame("main", f"/workspace/{text}", 9))
    stack = tables.add_stack(frames)
    home = of // SIZE
    hung = culprit // SIZE
    last = step == steps
    in_hung = (home == hung) & last & (everyone == 0)
    waiting = last & ((everyone == 1) | in_hung)
    state = np.where(waiting, State.SCHEDULED, State.COMPLETED)
    state = np.where(in_hung, State.STARTED, state)
    created = T0 + step * STEP_NS + everyone * 20_000_000 + (of % 7) * 10_000
    skew = np.array([(ahead_ns or {}).get(nodes[rank], 0) for rank in range(ranks)])[of]
    done = T0 + step * STEP_NS + everyone * 20_000_000 + 15_000_000
    columns = {column: np.full(len(of), -1, dtype=kind) for column, kind in COLUMNS.items()}
    columns |= {
        "rank": of,
        "group": np.where(everyone == 1, 0, 1 + home),
        "kind": np.zeros(len(of)),
        "name": np.full(len(of), name),
        "seq": step,
        "record_id": at,
        "state": state,
        "retired": (state == State.COMPLETED).astype(int),
        "created_ns": created + skew,
        "completed_ns": np.where(state == State.COMPLETED, done + skew, -1),
        "duration_ms": np.where(state == State.COMPLETED, 4.5, np.nan),
        "size_bytes": np.full(len(of), 1 << 20),
        "stack": np.full(len(of), stack),
    }
    for empty in ("in_shapes", "out_shapes", "in_dtypes", "out_dtypes", "thread"):
        columns[empty] = np.zeros(len(of))
    stays = ~((of == culprit) & (step == steps))
    columns = {column: np.asarray(values)[stays] for column, values in columns.items()}
    members = [tuple(range(first, min(first + SIZE, ranks))) for first in range(0, ranks, SIZE)]
    groups = (
        Group(0, "0", "default_pg", tuple(range(ranks))),
        *(Group(i, f"{i}{text}", f"mesh_tp{text}", ranks_of) for i, ranks_of in enumerate(members, 1)),
    )
    dump = {"version": "2.10", "backend": "nccl", "library_version": "2.28.9", "timing": True, "has_stacks": True}
    dumps = {
        rank: (Dump(rank=rank, file=f"nccl_trace_rank_{rank}", records=per_rank, first_record=0, **dump),)  # type: ignore[arg-type]
        for rank in range(ranks)
    }
    return Job(
        ops=Operations(columns, tables, groups),
        groups=groups,
        ranks=tuple(range(ranks)),
        dumps=dumps,
        status={},
        nodes=nodes,
        processes={},
        facts=_facts(culprit, frames, text),
        gaps=(),
        inputs=("job",),
    )


def _facts(culprit: int, frames: tuple[Frame, ...], text: str) -> Facts:
    """A stack of the culprit and of another rank, each in a place of its own."""
    source = Source(f"stacks{text}.txt", "line 2")
    other = (Frame(f"read_shard{text}", f"/workspace/data{text}.py", 72), *frames[1:])
    return Facts(
        stacks=(
            ThreadStack(culprit, 4711, f"main{text}", other, source, main=True),
            ThreadStack(culprit ^ 1, 4712, f"main{text}", frames, source, main=True),
        ),
        errors=(PythonError(culprit, f"ValueError{text}", text, frames, source),),
    )


def its_verdict(job: Job, steps: int, culprit: int) -> Diagnosis:
    """What a diagnosis of `big_job` says."""
    ranks = len(job.ranks)
    group = next(g for g in job.groups[1:] if culprit in (g.members or ()))
    near = tuple(rank for rank in group.members or () if rank != culprit)
    operation = f"all_reduce #{steps}"
    label = f"mesh_tp ({group.name})"
    frames = (Frame("reduce", "/workspace/model.py", 58),)
    return Diagnosis(
        hang=True,
        kind="absent",
        culprits=(
            Culprit(culprit, job.nodes[culprit], culprit % SIZE, "0000:9d:00.0", 4711, f"never launched {operation}"),
        ),
        victims=tuple(Victim(rank, (culprit,), label, operation, (rank, culprit)) for rank in near)
        + tuple(
            Victim(rank, (culprit, *near), "default_pg", operation, (rank, near[0], culprit))
            for rank in range(ranks)
            if rank not in near and rank != culprit
        ),
        operation=OperationInFlight(
            label,
            group.members or (),
            steps,
            "all_reduce",
            1 << 20,
            ("BFloat16",),
            {**dict.fromkeys(near, "started"), culprit: "not launched"},
            frames,
        ),
        last_completed=None,
        link=None,
        first_reported=None,
        confidence="high",
        confidence_rule="its own recording ends before what its peers are inside of",
        summary=f"Rank {culprit} on {job.nodes[culprit]} never launched {operation}.",
        why=(Finding(f"rank {culprit}'s last operation is all_reduce #{steps - 1}", (Source("dump", "entries[9]"),)),),
        ruled_out=(),
        next_steps=(f"look at rank {culprit}",),
        evidence=(),
        gaps=(),
        headline=f"rank {culprit} never launched {operation}",
        waiting_s=600.0,
        nodes=job.nodes,
        completeness=Completeness(ranks, ranks, 0, 0, 0),
        inputs=("job",),
    )
