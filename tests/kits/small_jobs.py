"""Small jobs, built by hand, for tests of single decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hangscope.model import (
    COLUMNS,
    Dump,
    Facts,
    Frame,
    Group,
    Job,
    Kind,
    Operations,
    Process,
    State,
    Tables,
)

SECOND = 1_000_000_000
START = 1_794_705_000 * SECOND


@dataclass(frozen=True)
class Op:
    """One call. `line` is its line in train.py; calls of one `batch` are one, which its last entry `closes`."""

    group: str
    name: str = "all_reduce"
    state: str = "completed"
    elements: int = 16
    out: int | None = None
    dtype: str = "Float"
    line: int = 10
    peer: int | None = None
    batch: int | None = None
    closes: bool = False


def send(group: str, peer: int, state: str = "completed", **more: Any) -> Op:
    return Op(group, "send", state, peer=peer, **more)


def recv(group: str, peer: int, state: str = "completed", **more: Any) -> Op:
    return Op(group, "recv", state, peer=peer, **more)


@dataclass
class Builder:
    groups: Mapping[str, Sequence[int]]
    ranks: Mapping[int, Sequence[Op]]
    timing: bool = True
    first: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Per rank and group the sequence number before its first recorded call; any means that the ring wrapped."""
    processes: Mapping[int, Process] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    hung_s: float = 30.0
    stacks: bool = True
    world: Sequence[int] | None = None
    incomplete: Sequence[int] = ()

    def build(self) -> Job:
        tables = Tables()
        groups = [Group(i, str(i), desc, tuple(m), "nccl") for i, (desc, m) in enumerate(self.groups.items())]
        index = {g.desc: g.index for g in groups}
        rows: list[dict[str, Any]] = []
        for rank in sorted(self.ranks):
            counters = dict.fromkeys(index, 0) | dict(self.first.get(rank, {}))
            batches: set[int] = set()
            for record, op in enumerate(self.ranks[rank]):
                begins = op.batch is None or op.batch not in batches
                if op.batch is not None:
                    batches.add(op.batch)
                if op.peer is None and op.name != "coalesced" and begins:
                    counters[op.group] += 1
                rows.append(self._row(rank, record, op, index[op.group], counters[op.group], tables))
        columns = {name: np.array([r[name] for r in rows], dtype=kind) for name, kind in COLUMNS.items()}
        members = {r for g in groups for r in g.members or ()}
        ranks = tuple(sorted(self.world if self.world is not None else members | set(self.ranks)))
        dumps = {
            rank: (
                Dump(
                    rank,
                    f"trace_{rank}",
                    "2.10",
                    "nccl",
                    "2.28.9",
                    len(ops),
                    1 if rank in self.first else 0,
                    self.timing,
                    self.stacks,
                    complete=rank not in self.incomplete,
                ),
            )
            for rank, ops in self.ranks.items()
        }
        return Job(
            ops=Operations(columns, tables, groups),
            groups=tuple(groups),
            ranks=ranks,
            dumps=dumps,
            status={},
            nodes={r: p.node for r, p in self.processes.items() if p.node},
            processes=dict(self.processes),
            facts=replace(self.facts, processes=tuple(self.processes.values())),
            gaps=(),
        )

    def _row(self, rank: int, record: int, op: Op, group: int, seq: int, tables: Tables) -> dict[str, Any]:
        state = {"scheduled": State.SCHEDULED, "started": State.STARTED, "completed": State.COMPLETED}[op.state]
        created = START + record * SECOND // 10 + rank  # no two ranks call in the same nanosecond
        dumped = START + int(self.hung_s * SECOND) + 10 * SECOND
        done = state is State.COMPLETED
        source = destination = -1
        kind = Kind.BATCH if op.closes else Kind.COLLECTIVE
        if op.peer is not None:
            kind = Kind.SEND if op.name == "send" else Kind.RECV
            source, destination = (rank, op.peer) if kind is Kind.SEND else (op.peer, rank)
        frames = (
            Frame(op.name, "/usr/lib/torch/distributed/distributed_c10d.py", 3068),
            Frame("step", "/workspace/train.py", op.line),
        )
        return {
            "rank": rank,
            "group": group,
            "kind": kind,
            "name": tables.add_name(op.name),
            "seq": seq,
            "p2p_seq": 0,
            "op_id": record,
            "record_id": record,
            "state": state,
            "retired": int(done),
            "created_ns": created,
            "started_ns": (created + 1 if done else dumped if state is State.STARTED else -1) if self.timing else -1,
            "completed_ns": created + SECOND // 20 if done else -1,
            "duration_ms": 1.0 if done and self.timing else float("nan"),
            "size_bytes": op.elements * 4,
            "in_shapes": tables.add_shapes(((op.elements,),)),
            "out_shapes": tables.add_shapes(((op.out if op.out is not None else op.elements,),)),
            "in_dtypes": tables.add_dtypes((op.dtype,)),
            "out_dtypes": tables.add_dtypes((op.dtype,)),
            "stack": tables.add_stack(frames) if self.stacks else 0,
            "thread": 0,
            "timeout_ms": 600_000,
            "source": source,
            "destination": destination,
            "batch": -1 if op.batch is None else op.batch,
        }


def job(groups: Mapping[str, Sequence[int]], ranks: Mapping[int, Sequence[Op]], **more: Any) -> Job:
    """A job from the calls of each rank."""
    return Builder(groups, ranks, **more).build()
