"""What is recorded: the shape of each job, what goes wrong in it, and who is to blame. Its program makes it happen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


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
    env: Mapping[str, str | None] = field(default_factory=dict)
    """What differs from the usual settings; None unsets."""
    program: str = "train.py"
    deadline_s: float = 110.0

    @property
    def hosts(self) -> list[str]:
        """The node of every rank."""
        return [node for node, ranks in self.nodes for _ in range(ranks)]

    @property
    def world(self) -> int:
        return len(self.hosts)

    @property
    def has_ras(self) -> bool:
        return self.env.get("NCCL_RAS_ENABLE") != "0"


def _nodes(first: int, *ranks: int) -> tuple[tuple[str, int], ...]:
    return tuple((f"gpu-worker-{first + index}", count) for index, count in enumerate(ranks))


Env = dict[str, str | None]
NO_TIMING: Env = {"TORCH_NCCL_ENABLE_TIMING": None}
NO_NCCL_LOG: Env = {"NCCL_DEBUG": None, "NCCL_DEBUG_SUBSYS": None, "NCCL_DEBUG_FILE": None}
WARNINGS: Env = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": None}
NO_RAS: Env = {"NCCL_RAS_ENABLE": "0"}
SMALL_RING: Env = {"TORCH_FR_BUFFER_SIZE": "30"}
OLD_SMALL_RING: Env = {"TORCH_FR_BUFFER_SIZE": None, "TORCH_NCCL_TRACE_BUFFER_SIZE": "30"}

# Large jobs first and small ones to fill the gaps; what is wanted most comes early, in case time runs out.
TRAIN = (
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

PRETRAIN = (
    Scenario(
        "ddp_barrier", _nodes(80, 8, 8), "mismatch", (11,),
        "DistributedDataParallel on sixteen ranks; rank 11 calls a barrier of its own between forward and backward",
        env=NO_TIMING | WARNINGS,
    ),
    Scenario(
        "pair_absent", _nodes(82, 1, 1), "absent", (0,),
        "two ranks; rank 0 validates for ever; no timing, no NCCL log, no RAS, no stacks",
        untouched=(0, 1), env=NO_TIMING | NO_NCCL_LOG | NO_RAS,
    ),
    Scenario(
        "pair_frozen", _nodes(84, 2), "frozen", (1,),
        "two ranks on one node; rank 1 gets SIGSTOP; no NCCL log, no RAS",
        untouched=(1,), env=NO_NCCL_LOG | NO_RAS,
    ),
    Scenario(
        "ddp_skip", _nodes(86, 4, 4, 4), "mismatch", (7,),
        "DistributedDataParallel on twelve ranks; rank 7 skips backward of a batch whose loss is not finite, and meets "
        "the gradients' all_reduce with the next forward's broadcast of buffers",
    ),
    Scenario(
        "mesh3d_loader", _nodes(90, 2, 2, 2, 2), "absent", (4,),
        "dp 2 x pp 2 x tp 2; rank 4 waits in its data loader: its tensor pair, its second stage and the other replica "
        "wait for it, each in another group",
    ),
    Scenario(
        "mesh3d_stage", _nodes(94, 4, 4), "absent", (3,),
        "the same mesh; rank 3, of the last stage, stalls between the two receives of a micro-batch; no timing, and a "
        "ring of 30 entries that has wrapped",
        env=NO_TIMING | SMALL_RING | WARNINGS,
    ),
    Scenario(
        "mesh3d_kill", _nodes(96, 8), "dead", (2,),
        "the same mesh; rank 2, of the last stage, gets SIGKILL; no timing, no NCCL log, no RAS",
        env=NO_TIMING | NO_NCCL_LOG | NO_RAS,
    ),
    Scenario(
        "deadlock2", _nodes(100, 4, 4), "deadlock", (2, 5),
        "a group of all eight ranks and one of 0, 2, 3, 5, 7; ranks 2 and 5 use them in the other order; no timing",
        env=NO_TIMING | WARNINGS,
    ),
    Scenario(
        "async_late", _nodes(102, 2, 6), "absent", (1,),
        "dp 4 x tp 2 with asynchronous collectives of three groups from two streams; rank 1 stalls after the first",
    ),
    Scenario(
        "frozen2", _nodes(104, 4, 4), "frozen", (2, 5),
        "ranks 2 and 5 of eight get SIGSTOP in the same step",
        untouched=(2, 5), env=NO_TIMING | WARNINGS,
    ),
    Scenario(
        "kill_and_sleep", _nodes(106, 2, 2, 2, 2), "dead", (4, 7),
        "even and odd ranks train on their own; rank 4 gets SIGKILL, and rank 7 stalls for a reason of its own",
        accept_kinds=("absent",), env=WARNINGS,
    ),
    Scenario(
        "hsdp_size", _nodes(110, 4, 4), "mismatch", (5,),
        "replicate 2 x shard 4; rank 5 reduces and scatters half as many elements",
        env=NO_TIMING | WARNINGS,
    ),
    Scenario(
        "odd_group", _nodes(112, 3, 4), "absent", (6,),
        "new_group([1, 3, 6]) beside the default group of seven; rank 6 waits for a process that is gone; no timing, "
        "and a ring of 30 entries that has wrapped",
        env=NO_TIMING | OLD_SMALL_RING | WARNINGS,
    ),
    Scenario(
        "fsdp_raise", _nodes(114, 3, 3), "dead", (4,),
        "FSDP2 on six ranks; an exception that nobody catches ends rank 4 in the forward of a block",
    ),
    Scenario(
        "moe_split", _nodes(116, 2, 2, 2), "mismatch", (4,),
        "uneven all_to_all_single on six ranks; rank 4 sends rank 1 fewer tokens than it expects",
        accept=((1, 4), (1,), ()),
    ),
    Scenario(
        "gpu_tp", _nodes(120, 2, 4), "gpu", (3,),
        "dp 3 x tp 2; the GPU of rank 3 is busy with a kernel that does not end, before a tp all_reduce",
    ),
    Scenario(
        "dtype_first", _nodes(122, 2, 3), "mismatch", (0,),
        "rank 0 of five gathers bfloat16 where the rest gather float32",
        env=NO_NCCL_LOG | NO_RAS,
    ),
    Scenario(
        "slow_first_stage", _nodes(124, 1, 1, 1, 1), "slow", (0,),
        "four pipeline stages, of which the first is 0.3 s late with every micro-batch; no hang",
        accept=((),), accept_kinds=("none",), hangs=False, env=NO_NCCL_LOG,
    ),
    Scenario(
        "slow_gpu", _nodes(128, 2, 3), "slow", (3,),
        "the GPU of rank 3 needs 0.25 s more in every step, its process is on time; no hang",
        hangs=False, env=NO_NCCL_LOG,
    ),
    Scenario(
        "healthy6_fsdp", _nodes(130, 3, 3), "none", (),
        "nothing; FSDP2 on six ranks without timing, with a ring of 30 entries that has wrapped",
        hangs=False, env=NO_TIMING | SMALL_RING | NO_NCCL_LOG | NO_RAS,
    ),
)  # fmt: skip

FINETUNE = (
    Scenario(
        "ddp_shift", _nodes(140, 5, 5), "mismatch", (3,),
        "DistributedDataParallel on ten ranks; rank 3 skips one backward, its later ones meet its peers' of the step "
        "before, and its last barrier meets their gradients",
        env=NO_TIMING | WARNINGS,
    ),
    Scenario(
        "frozen_inside", _nodes(142, 3, 3), "frozen", (2,),
        "rank 2 gets SIGSTOP inside a series of all_reduce that it has launched like everybody else",
        untouched=(2,), env=WARNINGS,
    ),
    Scenario(
        "hsdp_hook", _nodes(144, 3, 3), "absent", (5,),
        "HSDP, replicate 2 x shard 3, communicators split off the first one; rank 5 stalls in a hook of backward, on "
        "the thread that runs backward",
    ),
    Scenario(
        "odd_broadcast", _nodes(146, 4, 2), "absent", (0,),
        "new_group([0, 2, 5]) beside the default group; 5 broadcasts and goes on, rank 0 never comes",
        env=NO_NCCL_LOG,
    ),
    Scenario(
        "kill_inside", _nodes(148, 1, 4), "dead", (0,),
        "rank 0 gets SIGKILL inside a series of all_reduce that it has launched like everybody else; no RAS",
        env=NO_TIMING | NO_RAS,
    ),
    Scenario(
        "batch_peer", _nodes(150, 2, 3), "mismatch", (3,),
        "five ranks pass data on in a ring, in batches; rank 3 sends to the next but one",
    ),
    Scenario(
        "device_assert", _nodes(152, 2, 2), "dead", (2,),
        "a token outside the vocabulary: an assertion on rank 2's GPU, whose process ends with its exception",
        accept_kinds=("gpu",),
    ),
    Scenario(
        "ring_lost", _nodes(154, 2, 2), "absent", (2,),
        "nobody waits for the GPU between steps: while rank 2 stalls, its peers queue more calls than their ring of 16 "
        "holds, and what they wait in is no longer in it",
        env=WARNINGS | {"TORCH_FR_BUFFER_SIZE": "16"},
    ),
    Scenario(
        "gpu_stage", _nodes(156, 1, 1, 1), "gpu", (1,),
        "three pipeline stages; the GPU of the middle one is busy with a kernel that does not end",
    ),
    Scenario(
        "deadlock_ring", _nodes(160, 2, 1), "deadlock", (0,),
        "three ranks and their three pairs; rank 0 uses its two in the other order, and the waits close a circle",
        env=NO_TIMING | NO_NCCL_LOG | NO_RAS,
    ),
    Scenario(
        "slow_node", _nodes(162, 2, 2, 2), "slow", (2, 3),
        "both ranks of the second node are 0.3 s late in every step; no hang",
        hangs=False, env=NO_NCCL_LOG,
    ),
)  # fmt: skip

STARTUP = (
    Scenario(
        "join_default", _nodes(170, 2, 3), "absent", (3,),
        "rank 3 is busy before its first collective; the others make the communicator of all five ranks",
        deadline_s=50.0,
    ),
    Scenario(
        "join_group", _nodes(172, 3, 3), "absent", (3,),
        "ranks 1, 3 and 4 use their group for the first time in the fourth step; rank 3 does not come",
    ),
    Scenario(
        "join_killed", _nodes(174, 2, 2), "dead", (1,),
        "rank 1 gets SIGKILL before its first collective, while the others make the communicator of all four ranks",
        deadline_s=50.0,
    ),
    Scenario(
        "join_split", _nodes(176, 1, 3), "absent", (2,),
        "groups are split off the first communicator; rank 2 does not come to new_group, which takes all four ranks",
        deadline_s=60.0,
    ),
)  # fmt: skip

EVALUATE = (
    Scenario(
        "ring_both", _nodes(180, 3, 3, 2), "absent", (6,),
        "eight ranks swap data with both neighbours in one batch_isend_irecv; rank 6 does not come",
    ),
    Scenario(
        "gather_leaf", _nodes(184, 2, 3), "absent", (4,),
        "rank 4 does not come to a gather at rank 1; the other leaves have sent their part and wait one call further",
        env=WARNINGS,
    ),
    Scenario(
        "dtensor_skip", _nodes(186, 3, 3), "mismatch", (4,),
        "dp 2 x tp 3 with DTensor; rank 4 leaves one redistribution out and goes on to the next all_reduce",
    ),
    Scenario(
        "two_faults", _nodes(188, 2, 2, 2), "gpu", (1, 5),
        "two groups of three that train on their own; the GPU of rank 1 is busy for ever, and rank 5 stays away",
        accept_kinds=("absent",),
    ),
    Scenario(
        "log_only", _nodes(192, 3, 2), "absent", (4,),
        "rank 4 of five sleeps; no flight recorder, no NCCL log, no RAS, no stacks: the watchdogs' lines alone",
        untouched=(0, 1, 2, 3, 4), env=NO_NCCL_LOG | NO_RAS | {"TORCH_FR_BUFFER_SIZE": "0"},
    ),
    Scenario(
        "object_pickle", _nodes(194, 1, 3), "absent", (1,),
        "rank 1 is stuck in pickling its object, inside all_gather_object; no timing",
        env=NO_TIMING | WARNINGS,
    ),
    Scenario(
        "store_wait", _nodes(196, 1, 2), "absent", (0,),
        "rank 0 waits for a key of the TCPStore that nobody sets, and with that its dump thread waits for the store",
        env=NO_NCCL_LOG,
    ),
    Scenario(
        "gather_link", _nodes(198, 2, 3), "network", (),
        "nothing from its predecessor in the ring reaches rank 1 any more, in a series of all_gather",
        accept=((1,),),
    ),
    Scenario(
        "left_early", _nodes(200, 2, 2), "absent", (1,),
        "rank 1 destroys its process group in the middle of training and goes on to something else",
    ),
    Scenario(
        "zero_layers", _nodes(202, 2, 2), "mismatch", (3,),
        "layers gathered forward and reduced backward; rank 3 has one layer less in one step, and reduces where the "
        "rest gather",
        env=NO_TIMING | WARNINGS,
    ),
    Scenario(
        "ddp_oom", _nodes(204, 3, 1), "dead", (1,),
        "torch.OutOfMemoryError that nobody catches ends rank 1 in backward of DistributedDataParallel",
    ),
    Scenario(
        "scatter_root", _nodes(206, 1, 1, 2), "absent", (2,),
        "rank 2, the root of a scatter, does not come; no timing, no RAS",
        env=NO_TIMING | NO_RAS,
    ),
    Scenario(
        "kill_no_dump", _nodes(210, 1, 3), "dead", (2,),
        "rank 2 gets SIGKILL; dumps are switched off",
        env=WARNINGS | {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"},
    ),
    Scenario(
        "checkpoint_wait", _nodes(212, 2, 2), "none", (),
        "nothing; rank 0 saves for six seconds once while the others wait at a barrier",
        hangs=False,
    ),
)  # fmt: skip

SCENARIOS = (
    *TRAIN,
    *(replace(scenario, program="pretrain.py") for scenario in PRETRAIN),
    *(replace(scenario, program="finetune.py") for scenario in FINETUNE),
    *(replace(scenario, program="startup.py") for scenario in STARTUP),
    *(replace(scenario, program="evaluate.py") for scenario in EVALUATE),
)
