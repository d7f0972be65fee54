"""The third training program behind the recorded cases: faults inside a collective, a hook or a kernel, odd waits.

    finetune.py SCENARIO

As in train.py, the rank at fault notes what goes wrong just before it happens. A comment such as `# <gpu_stage.op>`
marks a line that a note refers to.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from pretrain import data_parallel, occupy_gpu
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from train import Transformer
from train_tools import (
    DEVICE,
    FOREVER,
    RANK,
    TIMEOUT,
    WORLD,
    barrier,
    end_step,
    injected,
    new_group,
    play,
    say,
    sync,
    zeros,
)  # fmt: skip

# ------------------------------------------------------------------------------------------------- inside a collective


def reduce_many(culprit: int, tag: str, signal: str) -> None:
    """All ranks queue many all_reduce; one of them gets a signal while they run, in one that nobody can foresee."""
    grads = zeros(1 << 20)
    for step in range(2):
        dist.all_reduce(grads)
        end_step(step)
    if culprit == RANK:
        injected(tag, "all_reduce", seq=None, signal=signal)
    for _ in range(60):
        dist.all_reduce(grads)  # <frozen_inside.op> <kill_inside.op>
    sync()


def frozen_inside() -> None:
    """Rank 2 is stopped in the middle of a series of all_reduce that it has launched like everybody else."""
    reduce_many(2, "frozen_inside", "SIGSTOP")


def kill_inside() -> None:
    """Rank 0 is killed in the middle of a series of all_reduce that it has launched like everybody else."""
    reduce_many(0, "kill_inside", "SIGKILL")


# ----------------------------------------------------------------------------------------- inside a kernel or a hook


def device_assert() -> None:
    """A token outside the vocabulary: an assertion on rank 2's GPU, seen by its process at the next synchronisation."""
    table, grads = zeros(256 * 16).view(256, 16), zeros(65536)
    for step in range(5):
        tokens = torch.tensor([10_000 if RANK == 2 and step == 3 else 7], device=DEVICE)
        if RANK == 2 and step == 3:
            injected("device_assert", "all_reduce")
        hidden = torch.nn.functional.embedding(tokens, table)
        say(f"mean {float(hidden.mean()):.2f}")  # <device_assert.culprit>
        dist.all_reduce(grads)  # <device_assert.op>
        end_step(step)


def gpu_stage() -> None:
    """Three pipeline stages; the GPU of the middle one is busy with a kernel that does not end."""
    acts, grads = zeros(4 << 20), zeros(4096)
    for step in range(5):
        if RANK == 1 and step == 3:
            injected("gpu_stage", "recv 1<-0", seq=None)
            occupy_gpu(90)
        if RANK > 0:
            dist.recv(acts, src=RANK - 1)  # <gpu_stage.op>
        if RANK < WORLD - 1:
            dist.send(acts, dst=RANK + 1)
            dist.recv(grads, src=RANK + 1)
        if RANK > 0:
            dist.send(grads, dst=RANK - 1)
        end_step(step)


def hsdp_hook() -> None:
    """HSDP, two replicas of three shards; rank 5 stalls in a hook of backward, on the thread that runs backward."""
    from torch.distributed.fsdp import fully_shard

    tokens = torch.randint(0, 256, (2, 32), device=DEVICE)
    plain = Transformer().to(DEVICE)  # a first pass without collectives loads every kernel
    plain(tokens).mean().backward()
    torch.optim.AdamW(plain.parameters()).step()
    sync()
    mesh = init_device_mesh(DEVICE.type, (2, 3), mesh_dim_names=("replicate", "shard"))
    model = Transformer().to(DEVICE)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    shard = mesh.get_group("shard")
    for group in (shard, mesh.get_group("replicate")):
        distributed_c10d._set_pg_timeout(TIMEOUT, group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0

    def log_gradient(gradient: torch.Tensor) -> None:
        if RANK == 5 and step == 2:
            injected("hsdp_hook", "_reduce_scatter_base", shard, line=None)  # FSDP calls it, on backward's thread
            time.sleep(FOREVER)  # <hsdp_hook.culprit>

    model.blocks[0].norm.register_forward_hook(lambda *call: call[-1].register_hook(log_gradient) and None)
    for step in range(4):
        loss = model(tokens).float().logsumexp(-1).mean()
        loss.backward()  # <hsdp_hook.op>
        optimizer.step()
        optimizer.zero_grad()
        end_step(step, loss)


# ------------------------------------------------------------------------------------------------ calls that do not fit


def ddp_shift() -> None:
    """Rank 3 skips one backward. Every later one meets its peers' of the step before, until the last barrier."""
    model, optimizer = data_parallel(norm=False)
    for step in range(6):
        loss = model(torch.randn(8, 64, device=DEVICE)).square().mean()
        if RANK == 3 and step == 3:
            say("WARNING: empty batch")
            continue
        loss.backward()  # <ddp_shift.op>
        optimizer.step()
        optimizer.zero_grad()
        end_step(step, loss)
    if RANK == 3:
        injected("ddp_shift", "all_reduce", line=None)  # on a GPU backward has a thread without Python frames
    barrier()  # <ddp_shift.culprit>


def batch_peer() -> None:
    """Five ranks pass data on in a ring, in batches; rank 3 sends to the next but one."""
    block, received = zeros(4 << 20), zeros(4 << 20)
    for step in range(5):
        target = (RANK + 1) % WORLD
        if RANK == 3 and step == 3:
            injected("batch_peer", "send 3->4", seq=None)
            target = (RANK + 2) % WORLD
        swaps = [
            dist.P2POp(dist.isend, block, target),
            dist.P2POp(dist.irecv, received, (RANK - 1) % WORLD),
        ]
        for work in dist.batch_isend_irecv(swaps):  # <batch_peer.op> <batch_peer.culprit>
            work.wait()
        end_step(step)


def deadlock_ring() -> None:
    """Three ranks and their three pairs; rank 0 uses its two pairs in the other order, and the waits close a circle."""
    pairs = [new_group(pair, f"pair_{pair[0]}{pair[1]}") for pair in ([0, 1], [1, 2], [0, 2])]
    weights = zeros(16384)
    for step in range(6):
        order = [0, 1, 2]
        if RANK == 0 and step == 4:
            injected("deadlock_ring", "all_reduce", pairs[0])
            order = [2, 1, 0]
        for index in order:
            if index in ((0, 2), (0, 1), (1, 2))[RANK]:
                dist.all_reduce(weights, group=pairs[index])  # <deadlock_ring.op> <deadlock_ring.culprit>
                sync()
        end_step(step)


# ------------------------------------------------------------------------------------------------------- odd waits


def odd_broadcast() -> None:
    """Ranks 0, 2 and 5 share a group; 5 sends and goes on, 0 never comes, and perhaps nobody is left waiting there."""
    some = new_group([0, 2, 5], "teachers")
    grads, state = zeros(65536), zeros(1024)
    for step in range(6):
        dist.all_reduce(grads)
        if RANK in (0, 2, 5):
            if RANK == 0 and step == 3:
                injected("odd_broadcast", "broadcast", some)
                time.sleep(FOREVER)  # <odd_broadcast.culprit>
            dist.broadcast(state, src=5, group=some)  # <odd_broadcast.op>
        end_step(step)


def ring_lost() -> None:
    """Nobody waits for the GPU between steps: while rank 2 stalls, its peers queue more calls than their ring holds."""
    grads = zeros(16384)
    for step in range(9):
        if RANK == 2 and step == 3:
            injected("ring_lost", "all_reduce")
            time.sleep(FOREVER)  # <ring_lost.culprit>
        for _ in range(6):
            dist.all_reduce(grads)  # <ring_lost.op>
        say(f"step {step} queued")
    sync()


def slow_node() -> None:
    """Both ranks of the second node are 0.3 s late in every step. Nothing hangs."""
    grads, part = zeros(65536), zeros(65536 // 4)
    for step in range(14):
        if RANK in (2, 3):
            time.sleep(0.3)
        dist.all_reduce(grads)
        dist.broadcast(part, src=0)
        end_step(step)
    barrier()


SCENARIOS: dict[str, Any] = {
    scenario.__name__: scenario
    for scenario in (
        frozen_inside, kill_inside, device_assert, gpu_stage, hsdp_hook, ddp_shift, batch_peer, deadlock_ring,
        odd_broadcast, ring_lost, slow_node,
    )
}  # fmt: skip


if __name__ == "__main__":
    play(SCENARIOS, split=("hsdp_hook",))
