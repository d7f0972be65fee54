"""The second training program behind the recorded cases: deeper meshes, DistributedDataParallel, experts, odd groups.

    pretrain.py SCENARIO

As in train.py, the rank at fault notes what goes wrong just before it happens. A comment such as `# <ddp_skip.op>`
marks a line that a note refers to.
"""

from __future__ import annotations

import math
import os
import queue
import sys
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from train import Transformer
from train_tools import (
    DEVICE,
    FOREVER,
    ON_GPU,
    RANK,
    TIMEOUT,
    WORLD,
    barrier,
    end_step,
    injected,
    line_of,
    mesh_groups,
    new_group,
    play,
    say,
    sync,
    zeros,
)  # fmt: skip

SCENARIO = sys.argv[1]


# -------------------------------------------------------------------------------------- dp 2 x pp 2 x tp 2, eight ranks


def train_3d(mask_size: int = 4096) -> None:
    """Two replicas of two pipeline stages of two tensor-parallel ranks. A stage gets activations, then their mask."""
    dp, pp, tp = mesh_groups(dp=2, pp=2, tp=2)
    first = RANK % 4 < 2
    acts, mask, hidden, grads = zeros(1 << 18), zeros(mask_size), zeros(16384), zeros(65536)
    for step in range(7):
        if first:
            next_batch(step, tp)
        for micro in range(2):
            if not first:
                dist.recv(acts, src=RANK - 2, group=pp)
                unpack(step, micro, pp)
                dist.recv(mask, src=RANK - 2, group=pp)  # <mesh3d_stage.op>
                if micro == 1:
                    compute_loss(step, tp)
            dist.all_reduce(hidden, group=tp)  # <mesh3d_loader.op> <mesh3d_kill.op>
            if first:
                dist.send(acts, dst=RANK + 2, group=pp)
                dist.send(mask, dst=RANK + 2, group=pp)
        if first:
            dist.recv(hidden, src=RANK + 2, group=pp)
        else:
            dist.send(hidden, dst=RANK - 2, group=pp)
        dist.all_reduce(grads, group=dp)
        end_step(step)


def next_batch(step: int, tp: Any) -> None:
    if SCENARIO == "mesh3d_loader" and RANK == 4 and step == 2:
        injected("mesh3d_loader", "all_reduce", tp)
        batches: queue.Queue[int] = queue.Queue()
        batches.get()  # <mesh3d_loader.culprit>


def unpack(step: int, micro: int, pp: Any) -> None:
    if SCENARIO == "mesh3d_stage" and RANK == 3 and (step, micro) == (5, 1):
        injected("mesh3d_stage", "recv 3<-1", pp, seq=None)
        threading.Event().wait()  # <mesh3d_stage.culprit>


def compute_loss(step: int, tp: Any) -> None:
    if SCENARIO == "mesh3d_kill" and RANK == 2 and step == 3:
        injected("mesh3d_kill", "all_reduce", tp, signal="SIGKILL")
        time.sleep(FOREVER)  # <mesh3d_kill.culprit>


def mesh3d_loader() -> None:
    """Rank 4 waits for a batch in vain; its tensor pair, its second stage and the other replica wait for it."""
    train_3d()


def mesh3d_stage() -> None:
    """Rank 3, of the last stage, stalls between the two receives of a micro-batch."""
    train_3d(mask_size=8 << 20)  # larger than every buffer on the way: that send cannot finish without its receive


def mesh3d_kill() -> None:
    """Rank 2, of the last stage, is killed while it computes the loss."""
    train_3d()


# ----------------------------------------------------------------------------------------------- data parallel and FSDP


def data_parallel(norm: bool) -> tuple[Any, Any]:
    """A model in DistributedDataParallel with several buckets, and its optimizer. With `norm` it also has buffers."""

    def build() -> Any:
        between = torch.nn.BatchNorm1d(128) if norm else torch.nn.ReLU()
        return torch.nn.Sequential(torch.nn.Linear(64, 128), between, torch.nn.Linear(128, 64)).to(DEVICE)

    plain = build()  # a first pass without collectives loads every kernel
    plain(torch.randn(8, 64, device=DEVICE)).square().mean().backward()
    torch.optim.SGD(plain.parameters(), lr=0.01).step()
    sync()
    model = torch.nn.parallel.DistributedDataParallel(build(), bucket_cap_mb=0.02)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def ddp_skip() -> None:
    """Rank 7 leaves backward out for a batch whose loss is not finite, and goes on to the next forward."""
    model, optimizer = data_parallel(norm=True)
    for step in range(5):
        batch = torch.randn(8, 64, device=DEVICE)
        if RANK == 7 and step == 3:
            batch *= math.nan
        loss = model(batch).square().mean()  # <ddp_skip.culprit>
        if not math.isfinite(float(loss)):
            say(f"WARNING: loss is {float(loss)} in step {step}, batch skipped")
            injected("ddp_skip", "all_reduce", line=None)  # on a GPU backward has a thread without Python frames
            continue
        loss.backward()  # <ddp_skip.op>
        optimizer.step()
        optimizer.zero_grad()
        end_step(step, loss)


def ddp_barrier() -> None:
    """Rank 11 alone reports its memory, which ends in a barrier that nobody else calls."""
    model, optimizer = data_parallel(norm=False)
    for step in range(5):
        loss = model(torch.randn(8, 64, device=DEVICE)).square().mean()
        if RANK == 11 and step == 2:
            report_memory()
        loss.backward()  # <ddp_barrier.op>
        optimizer.step()
        optimizer.zero_grad()
        end_step(step, loss)


def report_memory() -> None:
    say(f"rank {RANK}: {torch.cuda.memory_allocated() if ON_GPU else 0} bytes in use")
    injected("ddp_barrier", "all_reduce", line=None)
    barrier()  # <ddp_barrier.culprit>


def sharded(depth: int) -> tuple[Any, Any, Any]:
    """FSDP2 on a small transformer: the model, its optimizer and its group."""
    from torch.distributed.fsdp import fully_shard

    plain = Transformer(depth=depth).to(DEVICE)
    plain(torch.randint(0, 256, (2, 32), device=DEVICE)).mean().backward()
    torch.optim.AdamW(plain.parameters()).step()
    sync()
    mesh = init_device_mesh(DEVICE.type, (WORLD,), mesh_dim_names=("fsdp",))
    model = Transformer(depth=depth).to(DEVICE)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    distributed_c10d._set_pg_timeout(TIMEOUT, mesh.get_group())
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), mesh.get_group()


def train_sharded(steps: int, fault: tuple[int, int] | None = None) -> None:
    """Train for some steps. `fault` is (rank, step) in which the forward of the second of three blocks raises."""
    model, optimizer, group = sharded(depth=3)
    step = 0

    def check(*_: object) -> None:
        if (RANK, step) == fault:
            injected("fsdp_raise", "_all_gather_base", group)
            raise FloatingPointError("activations of block 1 are not finite")  # <fsdp_raise.culprit>

    model.blocks[1].norm.register_forward_pre_hook(check)
    for step in range(steps):
        tokens = torch.randint(0, 256, (2, 32), device=DEVICE)
        loss = model(tokens).float().logsumexp(-1).mean()  # <fsdp_raise.op>
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        end_step(step, loss)


def fsdp_raise() -> None:
    """An exception that nobody catches ends rank 4 in the forward of a sharded block."""
    train_sharded(4, fault=(4, 2))


def healthy6_fsdp() -> None:
    """Nothing is wrong."""
    train_sharded(6)


# ------------------------------------------------------------------------------------------------------ sizes and types


def moe_split() -> None:
    """Experts on six ranks: rank 4 sends rank 1 fewer tokens than rank 1 was told to expect."""
    width, grads = 4096, zeros(65536)
    for step in range(5):
        sends = [tokens_for(step, RANK, expert) for expert in range(WORLD)]
        gets = [tokens_for(step, token, RANK) for token in range(WORLD)]
        if RANK == 4 and step == 3:
            injected("moe_split", "all_to_all")
            sends[1] -= 48
        routed = zeros(sum(gets) * width)
        splits = [count * width for count in gets], [count * width for count in sends]
        dist.all_to_all_single(routed, zeros(sum(sends) * width), *splits)  # <moe_split.op> <moe_split.culprit>
        dist.all_reduce(grads)
        end_step(step)


def tokens_for(step: int, sender: int, expert: int) -> int:
    return 64 + 16 * ((sender + 2 * expert + step) % 5)


def hsdp_size() -> None:
    """Two replicas of four shards; rank 5 has half a layer and reduces half as much."""
    replicate, shard = mesh_groups(replicate=2, shard=4)
    part = zeros(4096)
    for step in range(6):
        full, mine = zeros(16384), part
        if RANK == 5 and step == 3:
            injected("hsdp_size", "_reduce_scatter_base", shard)
            full, mine = zeros(8192), zeros(2048)
        dist.reduce_scatter_tensor(mine, full, group=shard)  # <hsdp_size.op> <hsdp_size.culprit>
        dist.all_reduce(part, group=replicate)
        end_step(step)


def dtype_first() -> None:
    """Rank 0 gathers bfloat16 where the rest gather float32."""
    grads = zeros(65536)
    for step in range(5):
        dtype = torch.float32
        if RANK == 0 and step == 2:
            injected("dtype_first", "_all_gather_base")
            dtype = torch.bfloat16
        stats = zeros(16384, dtype)
        everywhere = zeros(16384 * WORLD, dtype)
        dist.all_gather_into_tensor(everywhere, stats)  # <dtype_first.op> <dtype_first.culprit>
        dist.all_reduce(grads)
        end_step(step)


# -------------------------------------------------------------------------------------------- ranks that do not come


def gpu_tp() -> None:
    """Three data-parallel pairs; the GPU of rank 3 is busy with a kernel that does not end."""
    dp, tp = mesh_groups(dp=3, tp=2)
    hidden, grads = zeros(16384), zeros(65536)
    for step in range(5):
        dist.all_reduce(grads, group=dp)
        if RANK == 3 and step == 3:
            injected("gpu_tp", "all_reduce", tp)
            occupy_gpu(90)
        dist.all_reduce(hidden, group=tp)  # <gpu_tp.op>
        end_step(step)


def occupy_gpu(seconds: float) -> None:
    if ON_GPU:
        torch.cuda._sleep(int(seconds * 1.9e9))  # cycles of the GPU's clock
    else:
        time.sleep(seconds)


def odd_group() -> None:
    """Ranks 1, 3 and 6 share a group for evaluation, and rank 6 waits for a line from a process that is gone."""
    evaluation = new_group([1, 3, 6], "evaluation")
    grads, loss, score, scores = zeros(65536), zeros(1), zeros(64), zeros(64 * 3)
    for step in range(16):
        dist.all_reduce(grads)
        if RANK in (1, 3, 6):
            if RANK == 6 and step == 14:
                ask_judge(evaluation)
            dist.all_gather_into_tensor(scores, score, group=evaluation)  # <odd_group.op>
        dist.all_reduce(loss)
        end_step(step)


def ask_judge(group: Any) -> None:
    injected("odd_group", "_all_gather_base", group)
    answers, _ = os.pipe()
    os.read(answers, 1)  # <odd_group.culprit>


def pair_absent() -> None:
    """Two ranks; rank 0 validates and validates."""
    grads, loss = zeros(65536), zeros(1)
    for step in range(6):
        dist.all_reduce(grads)
        if RANK == 0 and step == 4:
            injected("pair_absent", "all_reduce")
            while True:
                time.sleep(FOREVER)  # <pair_absent.culprit>
        dist.all_reduce(loss)  # <pair_absent.op>
        end_step(step)


def pair_frozen() -> None:
    """Two ranks; rank 1 is stopped."""
    grads, losses = zeros(65536), zeros(WORLD)
    for step in range(6):
        dist.all_gather_into_tensor(losses, zeros(1))
        if RANK == 1 and step == 3:
            injected("pair_frozen", "all_reduce", signal="SIGSTOP")
            time.sleep(FOREVER)  # <pair_frozen.culprit>
        dist.all_reduce(grads)  # <pair_frozen.op>
        end_step(step)


def frozen2() -> None:
    """Ranks 2 and 5 of eight are stopped in the same step."""
    grads, part = zeros(65536), zeros(8192)
    for step in range(5):
        if RANK in (2, 5) and step == 2:
            injected("frozen2", "_reduce_scatter_base", signal="SIGSTOP")
            time.sleep(FOREVER)  # <frozen2.culprit>
        dist.reduce_scatter_tensor(part, grads)  # <frozen2.op>
        dist.all_gather_into_tensor(grads, part)
        end_step(step)


def kill_and_sleep() -> None:
    """Even and odd ranks train on their own; rank 4 is killed, and rank 7 stalls for a reason of its own."""
    halves = new_group([0, 2, 4, 6], "policy"), new_group([1, 3, 5, 7], "reward")
    mine = halves[RANK % 2]
    grads = zeros(65536)
    for step in range(6):
        dist.broadcast(grads, src=RANK % 2, group=mine)
        if RANK == 4 and step == 3:
            injected("kill_and_sleep", "all_reduce", mine, signal="SIGKILL")
            time.sleep(FOREVER)  # <kill_and_sleep.culprit>
        if RANK == 7 and step == 3:
            injected("kill_and_sleep", "all_reduce", mine, culprit_line=line_of("kill_and_sleep.other"))
            time.sleep(FOREVER)  # <kill_and_sleep.other>
        dist.all_reduce(grads, group=mine)  # <kill_and_sleep.op>
        end_step(step)


def async_late() -> None:
    """Asynchronous collectives of three groups from two streams; rank 1 has begun the first of them and stalls."""
    dp, tp = mesh_groups(dp=4, tp=2)
    side = torch.cuda.Stream() if ON_GPU else None
    hidden, part, whole, grads = zeros(16384), zeros(4096), zeros(4096 * 4), zeros(65536)
    for step in range(6):
        works = [dist.all_reduce(hidden, group=tp, async_op=True)]
        if RANK == 1 and step == 3:
            offload(dp)
        with torch.cuda.stream(side):
            works.append(dist.all_gather_into_tensor(whole, part, group=dp, async_op=True))  # <async_late.op>
        works.append(dist.all_reduce(grads, async_op=True))
        for work in works:
            work.wait()
        end_step(step)


def offload(group: Any) -> None:
    injected("async_late", "_all_gather_base", group)
    worker = threading.Thread(target=time.sleep, args=(FOREVER,), daemon=True)
    worker.start()
    worker.join()  # <async_late.culprit>


def deadlock2() -> None:
    """Two groups, one of all eight ranks and one of five; ranks 2 and 5 use them in the other order."""
    everyone, some = new_group(list(range(8)), "everyone"), new_group([0, 2, 3, 5, 7], "some")
    weights = zeros(16384)
    for step in range(5):
        if RANK in (2, 5) and step == 3:
            injected("deadlock2", "all_reduce", everyone)
            average_some(weights, some)
            average_all(weights, everyone)
        else:
            average_all(weights, everyone)
            if RANK in (0, 2, 3, 5, 7):
                average_some(weights, some)
        end_step(step)


def average_all(weights: torch.Tensor, group: Any) -> None:
    dist.all_reduce(weights, group=group)  # <deadlock2.op>
    sync()


def average_some(weights: torch.Tensor, group: Any) -> None:
    dist.all_reduce(weights, group=group)  # <deadlock2.culprit>
    sync()


# ---------------------------------------------------------------------------------------------- slow, and nothing hangs


def slow_first_stage() -> None:
    """Four pipeline stages, of which the first is 0.3 s late with every micro-batch."""
    acts, norm = zeros(65536), zeros(1)
    for step in range(8):
        for _ in range(2):
            if RANK == 0:
                time.sleep(0.3)
            if RANK > 0:
                dist.recv(acts, src=RANK - 1)
            if RANK < WORLD - 1:
                dist.send(acts, dst=RANK + 1)
        dist.all_reduce(norm)
        end_step(step)


def slow_gpu() -> None:
    """The GPU of rank 3 needs 0.25 s more in every step; its process is on time."""
    grads, part = zeros(65536), zeros(65536 // 4)
    for step in range(14):
        if RANK == 3:
            occupy_gpu(0.25)
        dist.all_reduce(grads)
        dist.broadcast(part, src=0)
        end_step(step)
    barrier()


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        mesh3d_loader, mesh3d_stage, mesh3d_kill, ddp_skip, ddp_barrier, fsdp_raise, healthy6_fsdp, moe_split,
        hsdp_size, dtype_first, gpu_tp, odd_group, pair_absent, pair_frozen, frozen2, kill_and_sleep, async_late,
        deadlock2, slow_first_stage, slow_gpu,
    )
}  # fmt: skip


if __name__ == "__main__":
    play(SCENARIOS)
