"""Training jobs in which one rank leaves something out and nothing hangs: its later collectives meet the wrong ones.

    torchrun --nproc-per-node 4 shifted.py ddp nan [--backend nccl]

A step updates an actor and a critic of the same size (of another under DDP on a GPU, where autograd's thread calls and
no line is recorded: two alike cannot be told apart there), and every fifth step refreshes the actor once more. FAULT:
`none`; `nan`: from the critic's update of one step, which has no number, one rank goes on to the next step; `batch`: it
skips one whole step; `retry`: it makes one update twice; `sizes`: its critic is wider from then on, which NCCL reduces
without a word and Gloo does not. `plain` leaves a whole step out where all steps are alike, and makes one more at the
end: nothing can tell that.
"""

import argparse
import os
import time

import one_gpu

os.environ.update(one_gpu.settings("shifted"))

import torch
import torch.distributed as dist
from common import culprit, say_fault
from torch import nn

WIDTH = 64


def actor_update(job):
    job.update(job.actor)


def critic_update(job, batch):
    loss = batch * job.scale
    if not torch.isfinite(loss):
        return  # on this rank alone
    job.update(job.critic)


def refresh_actor(job):
    job.update(job.actor)


class Job:
    def __init__(self, kind, device):
        self.device = device
        self.scale = torch.ones((), device=device)
        self.actor = _model(kind, device)
        self.critic = _model(kind, device, WIDTH + 32 if (kind, device.type) == ("ddp", "cuda") else WIDTH)

    def update(self, model):
        model(torch.ones(4, WIDTH, device=self.device)).float().sum().backward()
        model.zero_grad()


def _model(kind, device, inner=WIDTH):
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(WIDTH, inner, bias=False), nn.ReLU(), nn.Linear(inner, WIDTH, bias=False))
    model = model.to(device)
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def train(job, given):
    mine = culprit(given)
    begun = time.monotonic()
    wrong = False
    steps = int(given.seconds / given.pause)
    if mine and given.fault == "plain":
        steps += 1  # so that all ranks end together
    for step in range(steps):
        now = mine and given.fault != "none" and not wrong and time.monotonic() - begun > given.after
        if now:
            say_fault()
            wrong = True
            if given.fault in ("batch", "plain"):
                continue
        actor_update(job)
        batch = torch.tensor(float("nan") if now and given.fault == "nan" else 1.0, device=job.device)
        critic_update(job, batch)
        if now and given.fault == "retry":
            critic_update(job, batch)
        if given.fault == "sizes":
            pad = torch.ones(WIDTH * (2 if wrong else 1), device=job.device)
            dist.all_reduce(pad)
        if step % 5 == 4 and given.fault != "plain":
            refresh_actor(job)
        time.sleep(given.pause)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("ddp", "fsdp2", "tp"))
    parser.add_argument("fault", choices=("none", "nan", "batch", "retry", "sizes", "plain"))
    parser.add_argument("--backend", default="gloo", choices=("gloo", "nccl"))
    parser.add_argument("--rank", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--after", type=float, default=6.0)
    parser.add_argument("--pause", type=float, default=0.05)
    given = parser.parse_args()
    dist.init_process_group(given.backend)
    device = torch.device("cuda", 0) if given.backend == "nccl" else torch.device("cpu")
    train(Job(given.kind, device), given)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
