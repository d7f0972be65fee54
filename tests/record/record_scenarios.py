"""What is recorded: the shape of each job, what goes wrong in it, and who is to blame. train.py makes it happen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Scenario:
    """One job. `nodes` are host names with the number of ranks on each, in rank order."""

    name: str
    nodes: tuple[tuple[str, int], ...]
    kind: str
    culprits: tuple[int, ...]
    injected: str
    accept: tuple[tuple[int, ...], ...] = ()
    accept_kinds: tuple[str, ...] = ()
    """Other kinds that an honest reader of the evidence may arrive at."""
    hangs: bool = True
    untouched: tuple[int, ...] = ()
    """Ranks that are asked for no stack, because they must look as if they answered nothing."""
    env: Mapping[str, str] = field(default_factory=dict)
    deadline_s: float = 110.0

    @property
    def hosts(self) -> list[str]:
        """The node of every rank."""
        return [node for node, ranks in self.nodes for _ in range(ranks)]

    @property
    def world(self) -> int:
        return len(self.hosts)


def _nodes(first: int, *ranks: int) -> tuple[tuple[str, int], ...]:
    return tuple((f"gpu-worker-{first + index}", count) for index, count in enumerate(ranks))


# Large jobs first and small ones to fill the gaps; what is wanted most comes early, in case time runs out.
SCENARIOS = (
    Scenario(
        "mesh_absent", _nodes(10, 2, 2, 2, 2), "absent", (6,),
        "dp 2 x tp 4 from init_device_mesh; rank 6 sleeps in its data loader before a tp all_reduce",
    ),
    Scenario(
        "two_culprits", _nodes(20, 4, 4), "absent", (1, 6),
        "two halves of four ranks that train on their own; ranks 1 and 6 stall in the same step",
    ),
    Scenario(
        "fsdp_checkpoint", _nodes(30, 2, 2), "absent", (0,),
        "FSDP2 on a small transformer; rank 0 is stuck in torch.save between two steps",
    ),
    Scenario(
        "oom_caught", _nodes(32, 2, 2), "mismatch", (1,),
        "rank 1 catches torch.OutOfMemoryError in forward and goes on to the next step, past two all_reduce",
    ),
    Scenario(
        "uneven_data", _nodes(34, 1, 3), "mismatch", (2,),
        "rank 2 has one batch less, leaves the loop and calls the metrics' all_reduce where the rest reduce gradients",
    ),
    Scenario(
        "pipeline", _nodes(36, 1, 1, 1, 1), "absent", (2,),
        "four pipeline stages with send, recv and batch_isend_irecv; stage 2 stalls before a recv",
    ),
    Scenario(
        "link_stall8", _nodes(40, 4, 4), "network", (),
        "nothing from one rank reaches the next in the ring any more, during a series of all_reduce; all have started",
    ),
    Scenario(
        "sigkill8", _nodes(44, 2, 2, 2, 2), "dead", (5,),
        "dp 4 x tp 2; rank 5 gets SIGKILL while it decodes a batch",
    ),
    Scenario(
        "deadlock3", _nodes(50, 3, 3), "deadlock", (3,),
        "groups 0-4 and 1-5 of six ranks; rank 3 alone uses them in the other order, waiting on the CPU in between",
    ),
    Scenario(
        "broadcast_link6", _nodes(52, 2, 2, 2), "network", (5,),
        "the link into rank 5 stops before a ring broadcast from rank 2: three ranks complete it and wait at the "
        "barrier, three are stuck in it",
    ),
    Scenario(
        "gil", _nodes(60, 2, 2), "frozen", (3,),
        "rank 3 deadlocks in C code that holds the GIL",
        accept_kinds=("absent",), untouched=(3,), env={"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "9000"}, deadline_s=125.0,
    ),
    Scenario(
        "healthy8_mesh", _nodes(70, 4, 4), "none", (),
        "nothing; dp 4 x tp 2 whose communicators are split off the first one",
        hangs=False, env={"RECORD_JSON": "1"},
    ),
    Scenario(
        "straggler8", _nodes(72, 4, 4), "slow", (5,),
        "rank 5 is 0.3 s late in every step; no hang",
        hangs=False,
    ),
    Scenario(
        "broadcast_root", _nodes(62, 3, 3), "mismatch", (2,),
        "rank 2 passes src=3 to a broadcast, the rest src=0; it completes, and rank 3 is stuck in the next all_reduce",
        accept=((2, 3), (3,)), accept_kinds=("network",),
    ),
    Scenario(
        "clean_exit", _nodes(66, 2, 2), "dead", (2,),
        "rank 2 ends with status 0 in the middle of training",
    ),
)  # fmt: skip
