"""Verdicts made by hand, one for every kind and for the awkward sizes. Facts invented."""

from __future__ import annotations

from hangscope.diagnosis.verdict import (
    Completeness,
    Culprit,
    Diagnosis,
    Finding,
    FirstReported,
    LastCompleted,
    Lateness,
    Link,
    LinkEnd,
    OperationInFlight,
    RuledOut,
    Victim,
)
from hangscope.model import Frame, Gap, Source

TORCH = "/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
AT = 1_794_709_330_991_000_000  # 2026-11-15T02:22:10.991Z
STACK = (
    Frame("all_to_all_single", TORCH, 4512),
    Frame("dispatch", "/workspace/moe/layers.py", 204),
    Frame("train_step", "/workspace/train.py", 418),
)


def absent() -> Diagnosis:
    """Expert parallel: rank 14 of 16 is in its data loader; the other half waits behind the group that waits for it."""
    group = tuple(range(8, 16))
    nodes = {rank: f"gpu-a01{6 + rank // 8}" for rank in range(16)}
    return Diagnosis(
        hang=True,
        kind="absent",
        culprits=(Culprit(14, "gpu-a017", 6, "0000:9d:00.0", 81233, "never launched what 7 ranks wait in"),),
        victims=tuple(Victim(r, (14,), "EXPERT_MODEL_PARALLEL", "all_to_all #45265", (r, 14)) for r in group if r != 14)
        + tuple(
            Victim(r, (r + 8,), "PIPELINE", f"recv {r}<-{r + 8}", (r, 14) if r == 6 else (r, r + 8, 14))
            for r in range(8)
        ),
        operation=OperationInFlight(
            "EXPERT_MODEL_PARALLEL",
            group,
            45265,
            "all_to_all",
            268435456,
            ("BFloat16",),
            {r: "not launched" if r == 14 else "started" for r in group},
            STACK,
        ),
        last_completed=LastCompleted("EXPERT_MODEL_PARALLEL", 45264, "all_to_all", STACK, AT),
        link=None,
        first_reported=FirstReported(9, "gpu-a017", AT + 1_800_000_000_000, "all_to_all #45265"),
        confidence="high",
        confidence_rule="its own dump ends before #45265, and its stack is not in a collective",
        summary="The job hangs because rank 14 on gpu-a017 never launched all_to_all #45265; it is waiting for data.",
        why=(
            Finding(
                "ranks 8-13, 15 launched #45265 between 02:22:11.204 and .219; rank 14's last is #45264, completed",
                tuple(Source(f"hangs/job-48121/dumps/nccl_trace_rank_{r}", "entries[1999]") for r in group),
            ),
            Finding(
                "rank 14's main thread is not in a collective:",
                (Source("hangs/job-48121/stacks/rank_14.1.txt", "line 12"),),
                ("loader.py:212  __next__          blocked in queue.get", "train.py:418   train_step"),
            ),
            Finding("gpu-a017 shows no Xid, no NIC error, no throttling since 02:12"),
        ),
        ruled_out=(
            RuledOut("mismatch", "operations and sizes agree"),
            RuledOut("gpu", ""),
            RuledOut("network", "no transport error on 16 ranks"),
        ),
        next_steps=("look at the data loader on gpu-a017; the node itself looks healthy",),
        evidence=(Finding("16 dumps of torch 2.11 (format 2.10)", (Source("hangs/job-48121/dumps"),)),),
        gaps=(Gap("NCCL logs of ranks 4, 5", "not found", node="gpu-a016"),),
        headline="rank 14 never launched all_to_all #45265",
        waiting_s=1802.0,
        nodes=nodes,
        completeness=Completeness(16, 16, 16, 16, 14, (), (4, 5), 3.6),
        versions={"torch": "2.11.0", "nccl": "2.28.9"},
        inputs=("hangs/job-48121",),
    )


def small(kind: str, **changes: object) -> Diagnosis:
    """Four ranks on two nodes; whatever is not given is unknown."""
    values: dict[str, object] = {
        "hang": True,
        "kind": kind,
        "culprits": (),
        "victims": (),
        "operation": None,
        "last_completed": None,
        "link": None,
        "first_reported": None,
        "confidence": "medium",
        "confidence_rule": "one kind of evidence",
        "summary": f"A {kind} verdict.",
        "why": (),
        "ruled_out": (),
        "next_steps": (),
        "evidence": (),
        "gaps": (),
        "nodes": {0: "gpu-worker-6", 1: "gpu-worker-6", 2: "gpu-worker-7", 3: "gpu-worker-7"},
        "completeness": Completeness(4, 4, 0, 4, 4),
        "inputs": ("case",),
    }
    return Diagnosis(**{**values, **changes})  # type: ignore[arg-type]


def all_reduce(states: dict[int, str], seq: int = 16) -> OperationInFlight:
    return OperationInFlight(
        "default_pg", (0, 1, 2, 3), seq, "all_reduce", 4194304, ("Float",), states, (Frame("step", "/w/train.py", 88),)
    )


def waiting(culprit: int, operation: str = "all_reduce #16") -> tuple[Victim, ...]:
    return tuple(Victim(r, (culprit,), "default_pg", operation, (r, culprit)) for r in range(4) if r != culprit)


def dead() -> Diagnosis:
    return small(
        "dead",
        culprits=(Culprit(3, "gpu-worker-7", 1, None, 4711, "killed by SIGKILL at 02:22:11"),),
        victims=waiting(3),
        operation=all_reduce({0: "started", 1: "started", 2: "started", 3: "unknown"}),
        first_reported=FirstReported(0, "gpu-worker-6", AT, "all_reduce #16"),
        confidence="high",
        headline="rank 3 died of SIGKILL; its group waits in all_reduce #16",
        summary="The job hangs because rank 3 on gpu-worker-7 was killed by SIGKILL.",
        why=(Finding("the launcher recorded signal 9 for rank 3", (Source("case/roster.json", "rank 3"),)),),
        next_steps=("look for who killed pid 4711 on gpu-worker-7: journalctl -k", "restart the job"),
        completeness=Completeness(4, 3, 0, 4, 4, (3,)),
        gaps=(Gap("dump of rank 3", "the process ended before it could write one", 3, "gpu-worker-7"),),
        waiting_s=12.2,
    )


def frozen() -> Diagnosis:
    return small(
        "frozen",
        culprits=(Culprit(1, "gpu-worker-6", 1, None, 99, "stopped by SIGSTOP"),),
        victims=waiting(1),
        headline="rank 1 is frozen: its process is stopped",
        summary="The job hangs because rank 1 on gpu-worker-6 is stopped.",
    )


def gpu() -> Diagnosis:
    return small(
        "gpu",
        culprits=(Culprit(1, "gpu-worker-6", 1, "1", None, "launched all_reduce #16, its GPU never started it"),),
        victims=waiting(1),
        operation=all_reduce({0: "started", 1: "scheduled", 2: "started", 3: "started"}),
        headline="rank 1's GPU never started all_reduce #16",
        summary="The job hangs because the GPU of rank 1 on gpu-worker-6 never started all_reduce #16.",
    )


def mismatch() -> Diagnosis:
    return small(
        "mismatch",
        culprits=(Culprit(2, "gpu-worker-7", 0, None, None, "skipped all_reduce #16"),),
        victims=waiting(2),
        operation=all_reduce({0: "started", 1: "started", 2: "started", 3: "started"}),
        headline="rank 2 skipped all_reduce #16 at train.py:88 and went on at train.py:91",
        summary="The job hangs because rank 2 on gpu-worker-7 skipped all_reduce #16.",
    )


def silent_mismatch() -> Diagnosis:
    return small(
        "mismatch",
        hang=False,
        outcome="wrong",
        culprits=(Culprit(2, "gpu-worker-7", 0, None, None, "all_reduce #16 with 1024 elements, the rest had 2048"),),
        operation=all_reduce(dict.fromkeys(range(4), "completed")),
        headline="rank 2's all_reduce #16 has another size; nothing hung, the result is wrong",
        summary="Nothing hangs, but rank 2 on gpu-worker-7 reduced another size: the result is wrong.",
    )


def deadlock() -> Diagnosis:
    return small(
        "deadlock",
        culprits=(Culprit(1, "gpu-worker-6", 1, None, None, "used group b before group a"),),
        victims=tuple(Victim(r, (1,), "a", "all_reduce #5", (r, 1)) for r in (0, 2, 3)),
        headline="ranks 0, 2, 3 wait in group a, rank 1 in group b: a cycle",
        summary="The job is in a deadlock: rank 1 uses two groups in the other order.",
    )


def network() -> Diagnosis:
    return small(
        "network",
        link=Link(
            LinkEnd(2, "gpu-worker-7", "eth0"), LinkEnd(3, "gpu-worker-7", "eth0"), 0, "ring 00: 2 -> 3 stands still"
        ),
        victims=tuple(Victim(r, (), "default_pg", "all_reduce #16", (r,)) for r in range(4)),
        operation=all_reduce(dict.fromkeys(range(4), "started")),
        headline="all ranks are inside all_reduce #16; the link from rank 2 to rank 3 stands still",
        summary="The job hangs in the network: data from rank 2 never reaches rank 3.",
        waiting_s=14.0,
    )


def unknown() -> Diagnosis:
    return small(
        "unknown",
        operation=all_reduce({0: "started", 1: "started", 2: "not launched", 3: "unknown"}),
        victims=(Victim(0, (2, 3), "default_pg", "all_reduce #16", (0,)),),
        confidence="low",
        headline="the job hangs in all_reduce #16; the evidence does not name the cause",
        summary="The job hangs in all_reduce #16; the evidence does not name the cause.",
        completeness=Completeness(4, 2, 0, 0, 0, (2, 3)),
        gaps=tuple(Gap(f"dump of rank {r}", "not found", r) for r in (2, 3)),
    )


def slow() -> Diagnosis:
    return small(
        "slow",
        hang=False,
        outcome="slow",
        culprits=(Culprit(2, "gpu-worker-7", 0, None, None, "late in 19 of 20 operations"),),
        headline="rank 2 keeps the others waiting: 78% of step time",
        summary="Nothing hangs, but rank 2 on gpu-worker-7 costs the job 78% of its step time.",
        lateness=(Lateness(2, 402.13, 0.781, 19, 20), Lateness(0, 0.42, 0.001, 1, 20), Lateness(1, 0.4, 0.0, 0, 20)),
        confidence="high",
    )


def none() -> Diagnosis:
    return small(
        "none",
        hang=False,
        outcome="ok",
        confidence="high",
        headline="no rank waits for another: all recorded operations completed",
        summary="The job is healthy: every recorded operation completed on every rank.",
        last_completed=LastCompleted("default_pg", 41, "all_reduce", (), AT),
    )


def hostile() -> Diagnosis:
    """Every text holds what a terminal or a JSON parser should never see."""
    bad = "\x1b[31mred\x1b[0m \x07 \r\n\u202e\u2028 \udcff\x9b2J"
    return small(
        "dead",
        culprits=(Culprit(3, f"node{bad}", 1, bad, 1, bad),),
        victims=tuple(Victim(r, (3,), bad, bad, (r, 3)) for r in range(3)),
        operation=OperationInFlight(bad, (0, 1, 2, 3), 1, bad, 1, (bad,), {0: "started"}, (Frame(bad, bad, 1),)),
        last_completed=LastCompleted(bad, 1, bad, (Frame(bad, bad, 1),), AT),
        link=Link(LinkEnd(2, bad, bad), LinkEnd(3, bad, bad), 0, bad),
        first_reported=FirstReported(0, bad, AT, bad),
        headline=bad,
        summary=bad,
        confidence_rule=bad,
        why=(Finding(bad, (Source(bad, bad),), (bad,)),),
        ruled_out=(RuledOut("gpu", bad),),
        next_steps=(bad, bad),
        evidence=(Finding(bad, (Source(bad),), (bad,)),),
        gaps=(Gap(bad, bad, 1, bad, Source(bad)),),
        nodes={r: f"node{bad}{r}" for r in range(4)},
        versions={"torch": bad},
        inputs=(bad,),
    )


def large(ranks: int, per_node: int = 8, culprits: tuple[int, ...] = (4099,), *, named: bool = True) -> Diagnosis:
    """Data parallel over every `per_node`-th rank; whoever shares a node with a waiting rank waits behind it."""
    root = culprits[0]
    members = tuple(range(root % per_node, ranks, per_node))
    direct = sorted(set(members) - set(culprits))
    behind = sorted(set(range(ranks)) - set(members) - set(culprits))
    return small(
        "absent",
        culprits=tuple(Culprit(r, f"node-{r // per_node:04d}", r % per_node, None, None, "") for r in culprits),
        victims=tuple(Victim(r, culprits, "DATA_PARALLEL", "reduce_scatter #900", (r, root)) for r in direct)
        + tuple(
            Victim(r, (r - r % per_node + root % per_node,), "TENSOR", "all_gather #77", (r, root)) for r in behind
        ),
        operation=OperationInFlight(
            "DATA_PARALLEL",
            members,
            900,
            "reduce_scatter",
            1 << 30,
            ("BFloat16",),
            {r: "not launched" if r in culprits else "started" for r in members},
        ),
        headline=f"rank {root} never launched reduce_scatter #900",
        summary=f"The job hangs because rank {root} never launched reduce_scatter #900.",
        waiting_s=601.0,
        nodes={r: f"node-{r // per_node:04d}" for r in range(ranks)} if named else {},
        completeness=Completeness(ranks, ranks, 0, ranks, 0),
    )


BY_NAME = {
    "absent": absent,
    "dead": dead,
    "frozen": frozen,
    "gpu": gpu,
    "mismatch": mismatch,
    "silent-mismatch": silent_mismatch,
    "deadlock": deadlock,
    "network": network,
    "unknown": unknown,
    "slow": slow,
    "none": none,
    "hostile": hostile,
    "large": lambda: large(8192),
}
