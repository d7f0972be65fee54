"""What every rank does in one training step: its operations in order, with the computation between them.

All ranks of one pipeline stage run the same program on different groups. The schedule between stages is 1F1B with
batched point-to-point calls, as Megatron-LM does it, or all forward and then all backward passes with plain
ones.
"""

from __future__ import annotations

from dataclasses import replace

from hangscope.simulate.program.step_operations import CHECKPOINT, Model, Op, OpPart
from hangscope.simulate.program.training_sites import ELEMENT_BYTES, Shape, count, site
from hangscope.simulate.spec.job_layout import DP, EP, PP, TP, WORLD, Layout


class _Step:
    """Collects the operations of one step of one stage."""

    def __init__(self, layout: Layout, stage: int, model: Model) -> None:
        self.layout = layout
        self.stage = stage
        self.model = model
        self.ops: list[Op] = []
        self.layers = model.layers // layout.pp + (stage < model.layers % layout.pp)
        self.work_us = 0.0
        """Computation since the last operation."""

    def call(
        self,
        name: str,
        api: str,
        caller: str,
        role: int,
        inputs: Shape,
        outputs: Shape | None = None,
        dtype: str = "BFloat16",
        *,
        gap_us: float = 0.0,
        root: int = 0,
        cpu_us: float = 80.0,
        fence: bool = False,
        background: bool = False,
        join: bool = False,
    ) -> None:
        shapes = (outputs,) if outputs is not None else None
        call = site(name, api, caller, (inputs,), shapes, dtype)
        algorithm = "all_reduce" if name == "all_reduce_barrier" else name.strip("_").removesuffix("_base")
        self.add(Op(call, role, algorithm, call.size_bytes, (), root, gap_us, cpu_us, fence, background, join))

    def add(self, op: Op) -> None:
        self.ops.append(replace(op, gap_us=op.gap_us + self.work_us))
        self.work_us = 0.0

    # ---- one layer ---------------------------------------------------------------------------------------------------

    def parameters(self) -> tuple[int, int]:
        """Elements of one layer on this rank, whole and as the shard of one data-parallel rank."""
        shard = -(-12 * self.model.hidden * self.model.hidden // self.layout.tp // self.layout.dp)
        return shard * self.layout.dp, shard

    def gather(self, caller: str) -> None:
        if self.layout.dp == 1 or self.model.data_parallel == "ddp":
            return
        whole, shard = self.parameters()
        if self.model.data_parallel == "coalesced":
            self.coalesced("_all_gather_base", "all_gather_into_tensor", "ALLGATHER_coalesced", caller, shard, whole)
        else:
            self.call("_all_gather_base", "all_gather_into_tensor", caller, DP, (shard,), (whole,), gap_us=30)

    def scatter(self) -> None:
        if self.layout.dp == 1:
            return
        whole, shard = self.parameters()
        later = self.model.overlap
        if self.model.data_parallel == "ddp":
            self.call("all_reduce", "all_reduce", "reduce bucket", DP, (whole,), None, "Float", background=later)
        elif self.model.data_parallel == "coalesced":
            self.coalesced(
                "_reduce_scatter_base",
                "reduce_scatter_tensor",
                "REDUCE_SCATTER_coalesced",
                "scatter gradients",
                whole,
                shard,
            )
        else:
            self.call(
                "_reduce_scatter_base",
                "reduce_scatter_tensor",
                "scatter gradients",
                DP,
                (whole,),
                (shard,),
                "Float",
                background=later,
            )

    def coalesced(self, name: str, api: str, closing: str, caller: str, inputs: int, outputs: int) -> None:
        """Attention's and the MLP's weights in one batch: a third and two thirds of the layer."""
        parts = tuple(
            OpPart(site(name, api, caller, ((inputs * share // 3,),), ((outputs * share // 3,),))) for share in (1, 2)
        )
        end = site(closing, "coalesced end", caller, (), (), closing=True)
        size = max(inputs, outputs) * ELEMENT_BYTES["BFloat16"]
        self.add(Op(end, DP, name.strip("_").removesuffix("_base"), size, parts, gap_us=30))

    def layer(self, number: int, direction: str) -> None:
        backward = direction == "backward"
        work = 2.0 if backward else 1.0
        tokens = self.model.tokens
        hidden = self.model.hidden
        self.work_us += 900 * work
        if self.layout.tp > 1:
            self.call("all_reduce", "all_reduce", f"attention {direction}", TP, (tokens, hidden))
        if self.layout.ep > 1 and number % 2:
            routed = (-(-tokens // self.layout.ep) * self.layout.ep, hidden)
            first = "combine" if backward else "dispatch"
            second = "dispatch" if backward else "combine"
            self.call("all_to_all", "all_to_all_single", f"{first} {direction}", EP, routed, gap_us=400 * work)
            self.call("all_to_all", "all_to_all_single", f"{second} {direction}", EP, routed, gap_us=1100 * work)
        self.work_us += 1300 * work
        if self.layout.tp > 1:
            self.call("all_reduce", "all_reduce", f"mlp {direction}", TP, (tokens, hidden))

    def forward(self, microbatch: int) -> None:
        for number in range(self.layers):
            if microbatch == 0:
                self.gather("gather forward")
            self.layer(number, "forward")
        if self.stage == self.layout.pp - 1 and self.layout.tp > 1:
            self.call("all_reduce", "all_reduce", "loss parallel", TP, (self.model.tokens,), None, "Float", gap_us=300)

    def backward(self, microbatch: int) -> None:
        last = microbatch == self.model.microbatches - 1
        for number in reversed(range(self.layers)):
            if last:
                self.gather("gather backward")
            self.layer(number, "backward")
            if last:
                self.scatter()

    # ---- the pipeline ------------------------------------------------------------------------------------------------

    def transfer(self, caller: str, *moves: tuple[str, int]) -> None:
        """`moves`: ("send" | "recv", stage), those to stages that do not exist are left out."""
        moves = tuple((way, peer) for way, peer in moves if 0 <= peer < self.layout.pp)
        shape = ((self.model.tokens, self.model.hidden),)
        size = count(shape) * ELEMENT_BYTES["BFloat16"]
        if not moves:
            return
        if self.model.plain_p2p:
            for way, peer in moves:
                call = site(way, way, caller, shape, direction=way)
                self.add(Op(call, PP, "p2p", size, (OpPart(call, peer),), gap_us=100))
            return
        parts = tuple(OpPart(site(way, f"batch {way}", caller, shape, direction=way), peer) for way, peer in moves)
        end = site("coalesced", "batch end", caller, (), (), closing=True)
        self.add(Op(end, PP, "p2p", size, parts, gap_us=100))

    def all_forward_all_backward(self) -> None:
        before = self.stage - 1
        after = self.stage + 1
        for microbatch in range(self.model.microbatches):
            self.transfer("recv_forward", ("recv", before))
            self.forward(microbatch)
            self.transfer("send_forward", ("send", after))
        for microbatch in range(self.model.microbatches):
            self.transfer("recv_backward", ("recv", after))
            self.backward(microbatch)
            self.transfer("send_backward", ("send", before))

    def one_forward_one_backward(self) -> None:
        before = self.stage - 1
        after = self.stage + 1
        total = self.model.microbatches
        warm = min(self.layout.pp - self.stage - 1, total)
        for microbatch in range(warm):
            self.transfer("recv_forward", ("recv", before))
            self.forward(microbatch)
            self.transfer("send_forward", ("send", after))
        if warm < total:
            self.transfer("recv_forward", ("recv", before))
        for microbatch in range(warm, total):
            self.forward(microbatch)
            self.transfer("send_forward_recv_backward", ("send", after), ("recv", after))
            self.backward(microbatch - warm)
            if microbatch < total - 1:
                self.transfer("send_backward_recv_forward", ("send", before), ("recv", before))
            else:
                self.transfer("send_backward", ("send", before))
        for microbatch in range(total - warm, total):
            self.transfer("recv_backward", ("recv", after))
            self.backward(microbatch)
            self.transfer("send_backward", ("send", before))

    # ---- the whole step ----------------------------------------------------------------------------------------------

    def build(self, kind: str) -> tuple[Op, ...]:
        if self.layout.tp > 1:
            self.call("broadcast", "broadcast", "data", TP, (self.model.tokens + 1,), None, "Long")
        if self.layout.pp > 1 and not self.model.plain_p2p:
            self.one_forward_one_backward()
        else:
            self.all_forward_all_backward()
        if self.layout.ep > 1:
            self.call("all_reduce", "all_reduce", "expert norm", EP, (1,), None, "Float", gap_us=60, join=True)
        self.call("all_reduce", "all_reduce", "gradient norm", WORLD, (1,), None, "Float", gap_us=200, join=True)
        self.call("all_reduce", "all_reduce", "loss", WORLD, (1,), None, "Float", gap_us=2500, fence=True)
        if kind == CHECKPOINT:
            self.call("all_reduce_barrier", "barrier", "before checkpoint", WORLD, (1,), None, "Float", cpu_us=2000)
            self.call("broadcast", "broadcast", "checkpoint step", WORLD, (2,), None, "Long")
            self.call(
                "all_reduce_barrier", "barrier", "after checkpoint", WORLD, (1,), None, "Float", cpu_us=9000, fence=True
            )
        first = self.ops[0]
        self.ops[0] = replace(first, cpu_us=first.cpu_us + 1500)  # the next batch comes out of the data loader
        return tuple(self.ops)


def training_step(layout: Layout, stage: int, model: Model, kind: str) -> tuple[Op, ...]:
    """The operations of every rank of one pipeline stage in one step."""
    return _Step(layout, stage, model).build(kind)
