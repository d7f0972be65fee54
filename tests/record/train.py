"""The training program behind the recorded cases: one scenario a run, one process a rank, all ranks on one GPU.

    train.py SCENARIO

The rank at fault notes what goes wrong, in which operation and on which line, just before it happens. That is the
truth of the case; nothing of it is read back from a dump. A comment such as `# <uneven_data.op>` marks a line that a
note refers to.
"""

from __future__ import annotations

import ctypes
import io
import sys
import time
import traceback
from typing import IO, Any, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from train_tools import (
    DEVICE,
    FOREVER,
    ON_GPU,
    RANK,
    TIMEOUT,
    WORLD,
    barrier,
    cut_link,
    end_step,
    injected,
    line_of,
    mesh_groups,
    new_group,
    note,
    play,
    say,
    sync,
    zeros,
)  # fmt: skip


def mesh_absent() -> None:
    """Two data-parallel replicas of four tensor-parallel ranks; rank 6 never gets its batch."""
    dp, tp = mesh_groups(dp=2, tp=4)
    hidden, grads = zeros(16384), zeros(65536)
    for step in range(6):
        mesh_next_batch(step, tp)
        for _ in range(2):
            dist.all_reduce(hidden, group=tp)  # <mesh_absent.op>
        dist.all_reduce(grads, group=dp)
        end_step(step)


def mesh_next_batch(step: int, tp: Any) -> None:
    if RANK == 6 and step == 3:
        injected("mesh_absent", "all_reduce", tp)
        read_shard("shard-00417.tar")


def read_shard(name: str) -> None:
    while name:
        time.sleep(FOREVER)  # <mesh_absent.culprit>


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + self.out(torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v)
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Transformer(torch.nn.Module):
    def __init__(self, vocabulary: int = 256, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(depth))
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def fsdp_checkpoint() -> None:
    """FSDP2 on a small transformer; rank 0 writes its checkpoint to a disk that has stopped."""
    from torch.distributed.fsdp import fully_shard

    tokens = torch.randint(0, 256, (2, 32), device=DEVICE)
    plain = Transformer().to(DEVICE)  # a first pass without collectives loads every kernel
    plain(tokens).mean().backward()
    torch.optim.AdamW(plain.parameters()).step()
    sync()
    mesh = init_device_mesh(DEVICE.type, (WORLD,), mesh_dim_names=("dp",))
    model = Transformer().to(DEVICE)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    distributed_c10d._set_pg_timeout(TIMEOUT, mesh.get_group())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(5):
        loss = model(tokens).float().logsumexp(-1).mean()  # <fsdp_checkpoint.op>
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        end_step(step, loss)
        if RANK == 0 and step == 2:
            save_checkpoint(step, mesh.get_group())


def save_checkpoint(step: int, group: Any) -> None:
    torch.save({"step": step, "loader": torch.zeros(1 << 16)}, cast(IO[bytes], StoppedDisk(group)))


class StoppedDisk(io.RawIOBase):
    def __init__(self, group: Any) -> None:
        self.group = group

    def write(self, data: Any) -> int:
        injected("fsdp_checkpoint", "_all_gather_base", self.group)
        while data:
            time.sleep(FOREVER)  # <fsdp_checkpoint.culprit>
        return len(data)


def uneven_data() -> None:
    """Rank 2 has one batch less than its peers, leaves the loop and goes on to the metrics."""
    grads, loss, losses = zeros(65536), zeros(1), zeros(WORLD)
    for step in range(5 if RANK == 2 else 6):
        dist.all_reduce(grads)  # <uneven_data.op>
        dist.all_gather_into_tensor(losses, loss)
        end_step(step)
    if RANK == 2:
        injected("uneven_data", "all_reduce")
    say("epoch 0 done")
    metrics = zeros(3, torch.float64)
    dist.all_reduce(metrics)  # <uneven_data.culprit>
    barrier()


def oom_caught() -> None:
    """Rank 1 runs out of memory in forward, catches it and goes on to the next step, past its gradients."""
    stats, all_stats = zeros(64), zeros(64 * WORLD)
    grads, head = zeros(65536), zeros(4096)
    for step in range(6):
        dist.all_gather_into_tensor(all_stats, stats)  # <oom_caught.culprit>
        sync()
        try:
            forward(step)
        except RuntimeError:  # torch.OutOfMemoryError is one
            traceback.print_exc()
            say(f"WARNING: rank {RANK} ran out of memory in step {step}, batch skipped")
            injected("oom_caught", "all_reduce")
            continue
        dist.all_reduce(grads)  # <oom_caught.op>
        dist.all_reduce(head)
        end_step(step)


def forward(step: int) -> torch.Tensor | None:
    if RANK == 1 and step == 3:
        size = torch.cuda.mem_get_info()[1] * 3 // 2 if ON_GPU else 1 << 50
        return torch.empty(size, dtype=torch.uint8, device=DEVICE)
    return None


def two_culprits() -> None:
    """Two halves that train on their own; rank 1 and rank 6 stall at once, for different reasons."""
    halves = new_group([0, 1, 2, 3], "replica_a"), new_group([4, 5, 6, 7], "replica_b")
    half = halves[RANK // 4]
    grads = zeros(65536)
    for step in range(6):
        if step == 3 and RANK == 1:
            evaluate(half)
        if step == 3 and RANK == 6:
            build_index(half)
        dist.all_reduce(grads, group=half)  # <two_culprits.op>
        end_step(step)


def evaluate(group: Any) -> None:
    injected("two_culprits", "all_reduce", group)
    while True:
        time.sleep(FOREVER)  # <two_culprits.culprit>


def build_index(group: Any) -> None:
    injected("two_culprits", "all_reduce", group, culprit_line=line_of("two_culprits.other"))
    while True:
        time.sleep(FOREVER)  # <two_culprits.other>


def pipeline() -> None:
    """Four pipeline stages: activations by send and recv, gradients by a batch; stage 2 stalls before a recv."""
    # Larger than every buffer between two ranks together, so that a send cannot finish without its recv.
    acts, grads_in, grads_out = zeros(8 << 20), zeros(4096), zeros(4096)
    for micro in range(4):
        if RANK == 2 and micro == 2:
            recompute()
        if RANK > 0:
            dist.recv(acts, src=RANK - 1)  # <pipeline.op>
        if RANK < WORLD - 1:
            dist.send(acts, dst=RANK + 1)
        sync()
        swaps = []
        if RANK < WORLD - 1:
            swaps.append(dist.P2POp(dist.irecv, grads_in, RANK + 1))
        if RANK > 0:
            swaps.append(dist.P2POp(dist.isend, grads_out, RANK - 1))
        for work in dist.batch_isend_irecv(swaps):
            work.wait()
        end_step(micro)


def recompute() -> None:
    injected("pipeline", "recv 2<-1", seq=None)
    while True:
        time.sleep(FOREVER)  # <pipeline.culprit>


def deadlock3() -> None:
    """Two groups that share four of six ranks; rank 3 alone uses them in the other order."""
    experts, router = new_group([0, 1, 2, 3, 4], "experts"), new_group([1, 2, 3, 4, 5], "router")
    weights = zeros(16384)
    for step in range(5):
        if RANK == 3 and step == 3:
            injected("deadlock3", "all_reduce", experts)
            sync_router(weights, router)
            sync_experts(weights, experts)
        else:
            if RANK != 5:
                sync_experts(weights, experts)
            if RANK != 0:
                sync_router(weights, router)
        end_step(step)


def sync_experts(weights: torch.Tensor, group: Any) -> None:
    dist.all_reduce(weights, group=group)  # <deadlock3.op>
    sync()


def sync_router(weights: torch.Tensor, group: Any) -> None:
    dist.all_reduce(weights, group=group)  # <deadlock3.culprit>
    sync()


def sigkill8() -> None:
    """Four data-parallel pairs; rank 5 is killed while it decodes its batch."""
    dp, tp = mesh_groups(dp=4, tp=2)
    hidden, grads = zeros(16384), zeros(65536)
    for step in range(6):
        if RANK == 5 and step == 3:
            decode(tp)
        dist.all_reduce(hidden, group=tp)  # <sigkill8.op>
        dist.all_reduce(grads, group=dp)
        end_step(step)


def decode(group: Any) -> None:
    injected("sigkill8", "all_reduce", group, signal="SIGKILL")
    while True:
        time.sleep(FOREVER)  # <sigkill8.culprit>


def gil() -> None:
    """Rank 3 waits in C for a lock that it holds itself, and keeps the interpreter's lock meanwhile."""
    grads = zeros(65536)
    for step in range(6):
        if RANK == 3 and step == 3:
            tokenize()
        dist.all_reduce(grads)  # <gil.op>
        end_step(step)


def tokenize() -> None:
    injected("gil", "all_reduce")
    native = ctypes.PyDLL(None)  # PyDLL keeps the GIL during the call
    lock = ctypes.create_string_buffer(64)  # all zero bytes are an unlocked mutex
    native.pthread_mutex_lock(lock)
    native.pthread_mutex_lock(lock)  # <gil.culprit>


def broadcast_root() -> None:
    """All take the newest state from rank 0, rank 2 believes that rank 3 holds it."""
    state, grads = zeros(4096), zeros(65536)
    for step in range(3):
        dist.all_reduce(grads)
        end_step(step)
    if RANK == 2:
        injected("broadcast_root", "broadcast")
        dist.broadcast(state, src=3)  # <broadcast_root.culprit>
    else:
        dist.broadcast(state, src=0)  # <broadcast_root.op>
    dist.all_reduce(grads)
    sync()


def link_stall8() -> None:
    """Nothing that rank 4 sends reaches rank 5 any more, in the middle of a series of all_reduce."""
    grads = zeros(1 << 20)
    for step in range(3):
        dist.all_reduce(grads)
        end_step(step)
    cut_link(5, "link_stall8", "all_reduce")
    for _ in range(4):
        dist.all_reduce(grads)  # <link_stall8.op>
    sync()


def broadcast_link6() -> None:
    """Nothing that rank 4 sends reaches rank 5 any more; then a broadcast from rank 2 and a barrier."""
    grads, state = zeros(1 << 20), zeros(16384)
    for step in range(3):
        dist.all_reduce(grads)
        end_step(step)
    cut_link(5, "broadcast_link6", "broadcast")
    dist.broadcast(state, src=2)  # <broadcast_link6.op>
    barrier()
    sync()


def straggler8() -> None:
    """Rank 5 is 0.3 s late in every step. Nothing hangs."""
    grads, loss, losses = zeros(65536), zeros(1), zeros(WORLD)
    for step in range(14):
        if RANK == 5:
            augment()
        dist.all_reduce(grads)
        dist.all_gather_into_tensor(losses, loss)
        end_step(step)
        if step == 7 and RANK == 0:
            note("ask_ras")
    barrier()


def augment() -> None:
    time.sleep(0.3)


def healthy8_mesh() -> None:
    """A mesh of four by two whose communicators are split off the first one. Nothing is wrong."""
    dp, tp = mesh_groups(dp=4, tp=2)
    hidden, grads = zeros(16384), zeros(65536)
    for step in range(8):
        for _ in range(2):
            dist.all_reduce(hidden, group=tp)
        dist.all_reduce(grads, group=dp)
        end_step(step)
        if step == 5 and RANK == 0:
            note("ask_ras")
    barrier()


def clean_exit() -> None:
    """Rank 2 thinks that training is over and ends with status 0."""
    grads = zeros(65536)
    for step in range(6):
        if RANK == 2 and step == 3:
            injected("clean_exit", "all_reduce")
            say("early stopping: no improvement for 3 evaluations")
            sys.exit(0)  # <clean_exit.culprit>
        dist.all_reduce(grads)  # <clean_exit.op>
        end_step(step)


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        mesh_absent, fsdp_checkpoint, uneven_data, oom_caught, two_culprits, pipeline, deadlock3, sigkill8, gil,
        broadcast_root, link_stall8, broadcast_link6, straggler8, healthy8_mesh, clean_exit,
    )
}  # fmt: skip


if __name__ == "__main__":
    play(SCENARIOS, split=("healthy8_mesh",))
