"""The fifth program behind the recorded cases: little evidence, rooted and object collectives, odd ways to be away.

    evaluate.py SCENARIO

As in train.py, the rank at fault notes what goes wrong just before it happens.
"""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from pretrain import data_parallel, occupy_gpu
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
    new_group,
    play,
    say,
    sync,
    zeros,
)  # fmt: skip

# ------------------------------------------------------------------------------------------------------ little evidence


def log_only() -> None:
    """Rank 4 sleeps; no dump, no stack, no RAS and no NCCL log: the watchdogs' lines are all there is."""
    part, whole = zeros(8192), zeros(8192 * WORLD)
    for step in range(6):
        if RANK == 4 and step == 3:
            injected("log_only", "_all_gather_base", line=None)  # nothing that is left shows a line
            time.sleep(FOREVER)  # <log_only.culprit>
        dist.all_gather_into_tensor(whole, part)  # <log_only.op>
        end_step(step)


def kill_no_dump() -> None:
    """Rank 2 is killed; nobody writes a dump."""
    grads = zeros(65536)
    for step in range(6):
        if RANK == 2 and step == 3:
            injected("kill_no_dump", "all_reduce")
            time.sleep(2)
            os.kill(os.getpid(), signal.SIGKILL)  # <kill_no_dump.culprit>
        dist.all_reduce(grads)  # <kill_no_dump.op>
        end_step(step)


# ----------------------------------------------------------------------------------------------- rooted, objects, rings


def gather_leaf() -> None:
    """Rank 4 does not come to a gather at rank 1; the other leaves have sent their part and wait one call further."""
    part, grads = zeros(1024), zeros(65536)
    parts = [zeros(1024) for _ in range(WORLD)] if RANK == 1 else None
    for step in range(6):
        if RANK == 4 and step == 3:
            injected("gather_leaf", "gather")
            time.sleep(FOREVER)  # <gather_leaf.culprit>
        dist.gather(part, parts, dst=1)  # <gather_leaf.op>
        dist.all_reduce(grads)
        end_step(step)


def scatter_root() -> None:
    """Rank 2 has the batches that all ranks wait for in a scatter, and does not hand them out."""
    part, grads = zeros(1024), zeros(65536)
    parts = [zeros(1024) for _ in range(WORLD)] if RANK == 2 else None
    for step in range(6):
        if RANK == 2 and step == 4:
            injected("scatter_root", "scatter")
            time.sleep(FOREVER)  # <scatter_root.culprit>
        dist.scatter(part, parts, src=2)  # <scatter_root.op>
        dist.all_reduce(grads)
        end_step(step)


class Report:
    """Metrics of one rank; rank 1 never ends reading them out, in the middle of pickling."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __getstate__(self) -> dict[str, Any]:
        if RANK == 1 and self.step == 2:
            injected("object_pickle", "all_gather")
            time.sleep(FOREVER)  # <object_pickle.culprit>
        return {"step": self.step}


def object_pickle() -> None:
    """All ranks gather objects; rank 1 is stuck in pickling its own, inside all_gather_object."""
    grads, reports = zeros(65536), [None] * WORLD
    for step in range(5):
        dist.all_reduce(grads)
        dist.all_gather_object(reports, Report(step))  # <object_pickle.op>
        end_step(step)


def dtensor_skip() -> None:
    """dp 2 x tp 3 with DTensor; rank 4 leaves one redistribution out and goes on to the next sum."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = init_device_mesh(DEVICE.type, (2, 3), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh.get_group("dp"), mesh.get_group("tp")
    for group in (dp, tp):
        distributed_c10d._set_pg_timeout(TIMEOUT, group)
    weight = DTensor.from_local(zeros(1 << 18), mesh["tp"], [Shard(0)])
    hidden, grads = zeros(4096), zeros(65536)
    for step in range(6):
        if RANK == 4 and step == 3:
            injected("dtensor_skip", "all_gather_into_tensor_coalesced", tp)
        else:
            full = weight.redistribute(placements=[Replicate()]).to_local()  # <dtensor_skip.op>
            say(f"weight {float(full[0]):.1f}")
        dist.all_reduce(hidden, group=tp)  # <dtensor_skip.culprit>
        dist.all_reduce(grads, group=dp)
        end_step(step)


def ring_both() -> None:
    """Eight ranks swap data with both neighbours in one batch; rank 6 does not come."""
    out, left, right = zeros(1 << 20), zeros(1 << 20), zeros(1 << 20)
    before, after = (RANK - 1) % WORLD, (RANK + 1) % WORLD
    for step in range(5):
        if RANK == 6 and step == 3:
            injected("ring_both", "coalesced", seq=None)
            time.sleep(FOREVER)  # <ring_both.culprit>
        swaps = [
            dist.P2POp(dist.isend, out, after),
            dist.P2POp(dist.irecv, left, before),
            dist.P2POp(dist.isend, out, before),
            dist.P2POp(dist.irecv, right, after),
        ]
        for work in dist.batch_isend_irecv(swaps):  # <ring_both.op>
            work.wait()
        end_step(step)


def zero_layers() -> None:
    """Layers gathered forward, reduced backward; in step 2 rank 3 has one layer less than the rest."""
    part, whole = zeros(16384), zeros(16384 * WORLD)
    for step in range(5):
        layers = 4
        if RANK == 3 and step == 2:
            layers = 3
        for layer in range(layers):
            dist.all_gather_into_tensor(whole, part)  # <zero_layers.op>
            if RANK == 3 and step == 2 and layer == layers - 1:
                injected("zero_layers", "_all_gather_base")
        for _ in range(layers):
            dist.reduce_scatter_tensor(part, whole)  # <zero_layers.culprit>
        end_step(step)


# ------------------------------------------------------------------------------------------------------ ways to be away


def ddp_oom() -> None:
    """Rank 1 of four runs out of memory in backward of DistributedDataParallel, and nobody catches it."""
    model, optimizer = data_parallel(norm=False)
    for step in range(5):
        loss = model(torch.randn(8, 64, device=DEVICE)).square().mean()
        if RANK == 1 and step == 3:
            loss.register_hook(recompute)
        loss.backward()  # <ddp_oom.op>
        optimizer.step()
        optimizer.zero_grad()
        end_step(step, loss)


def recompute(_gradient: torch.Tensor) -> None:
    injected("ddp_oom", "all_reduce", line=None)  # backward's thread has no Python frames
    if not ON_GPU:
        raise MemoryError
    torch.empty(1 << 41, device=DEVICE)  # <ddp_oom.culprit>


def left_early() -> None:
    """Rank 1 takes itself for finished: it destroys its process group and exports, while the rest train on."""
    grads = zeros(65536)
    for step in range(6):
        if RANK == 1 and step == 3:
            injected("left_early", "all_reduce")
            dist.destroy_process_group()
            time.sleep(FOREVER)  # <left_early.culprit>
        dist.all_reduce(grads)  # <left_early.op>
        end_step(step)


def store_wait() -> None:
    """Rank 0 waits for a key in the store that nobody sets, the others for rank 0 in an all_reduce."""
    grads = zeros(65536)
    store = distributed_c10d._get_default_store()
    for step in range(6):
        if RANK == 0 and step == 3:
            injected("store_wait", "all_reduce")
            store.set_timeout(timedelta(seconds=FOREVER))
            store.get("manifest")  # <store_wait.culprit>
        dist.all_reduce(grads)  # <store_wait.op>
        end_step(step)


def gather_link() -> None:
    """Nothing reaches rank 1 from its predecessor any more, in a series of all_gather."""
    part, whole = zeros(1 << 19), zeros((1 << 19) * WORLD)
    for step in range(3):
        dist.all_gather_into_tensor(whole, part)
        end_step(step)
    cut_link(1, "gather_link", "_all_gather_base")
    for step in range(3, 6):
        dist.all_gather_into_tensor(whole, part)  # <gather_link.op>
        end_step(step)


def two_faults() -> None:
    """Two groups of three that train on their own: a GPU that does not end in one, a rank that stays away in other."""
    halves = [new_group([0, 1, 2], "first"), new_group([3, 4, 5], "second")]
    mine = halves[RANK // 3]
    grads = zeros(65536)
    for step in range(6):
        if RANK == 1 and step == 3:
            injected("two_faults", "all_reduce", mine, culprit_line=None)
            occupy_gpu(90)
        if RANK == 5 and step == 3:
            injected("two_faults", "all_reduce", mine)
            time.sleep(FOREVER)  # <two_faults.culprit>
        dist.all_reduce(grads, group=mine)  # <two_faults.op>
        end_step(step)


def checkpoint_wait() -> None:
    """Rank 0 saves for six seconds while the others wait at a barrier; then all go on. Nothing hangs."""
    grads = zeros(65536)
    for step in range(8):
        dist.all_reduce(grads)
        end_step(step)
        if step == 5:
            if RANK == 0:
                time.sleep(6)
            barrier()
    sync()


SCENARIOS: dict[str, Any] = {
    scenario.__name__: scenario
    for scenario in (
        log_only, kill_no_dump, gather_leaf, scatter_root, object_pickle, dtensor_skip, ring_both, zero_layers,
        ddp_oom, left_early, store_wait, gather_link, two_faults, checkpoint_wait,
    )
}  # fmt: skip


if __name__ == "__main__":
    play(SCENARIOS)
