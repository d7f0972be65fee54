"""FSDP2 x TP and its neighbours on NCCL, four ranks on one GPU: healthy, or wrong at one rank.

`nccl.py FAULT [--rank R] [--backend gloo]`: the rank at fault says when it goes wrong, and stands in a function named
for it, or calls what its peers do not. Gloo on CPU is there to try the program without a GPU.
"""

import argparse
import datetime
import os
import re
import signal
import sys
import tempfile
import time

import one_gpu

os.environ.update(one_gpu.settings("live"))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

FOREVER_S = 1000.0
WIDTH = 128
SICK_STEP = 25


def say_fault():
    os.write(1, f"fault at {time.time():.3f}\n".encode())


def culprit(given):
    return int(os.environ["RANK"]) == given.rank


def device(given):
    return "cuda" if given.backend == "nccl" else "cpu"


def join(given):
    if given.backend == "nccl":
        torch.cuda.set_device(0)
    dist.init_process_group(given.backend, timeout=datetime.timedelta(seconds=given.timeout))


def mesh_of(given):
    return init_device_mesh(device(given), (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))


def steps(given, count):
    tensor = torch.ones(4096, device=device(given))
    for _ in range(count):
        dist.all_reduce(tensor)
        tensor.fill_(1.0)
        time.sleep(0.05)


def wait_for_storage():
    say_fault()
    time.sleep(FOREVER_S)


# ---- FSDP2 over pairs of tensor-parallel ranks -----------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


def sharded(given):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = mesh_of(given)
    model = nn.Sequential(*(Block() for _ in range(4))).to(device(given))
    for block in model:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def train(given, wrong=lambda given, model: None, count=4000, clip=lambda given, step: True):
    """Steps as people write them; `wrong` is called once, at one rank, between two of them."""
    join(given)
    torch.manual_seed(7)
    model = sharded(given)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(count):
        if step == SICK_STEP and culprit(given):
            wrong(given, model)
        loss = model(torch.randn(16, WIDTH, device=device(given))).square().mean()
        loss.backward()
        if clip(given, step):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            loss.item()
        time.sleep(0.02)
    dist.destroy_process_group()


def healthy(given):
    train(given, count=120)


def fsdp_tp(given):
    train(given, lambda *_: wait_for_storage())


def clean_text(text):
    return re.match(r"(a+)+$", text)


def regex(given):
    """Python code that holds the GIL."""

    def wrong(*_):
        say_fault()
        clean_text("a" * 80 + "b")

    train(given, wrong)


def save_checkpoint(model):
    """A pipe that nobody reads, in the place of a file."""
    path = os.path.join(tempfile.mkdtemp(), "model.pt")
    os.mkfifo(path)
    say_fault()
    torch.save(dict.fromkeys(model.state_dict()), path)


def fifo(given):
    train(given, lambda _, model: save_checkpoint(model))


def kernel(given):
    def wrong(*_):
        say_fault()
        for _ in range(4):
            torch.cuda._sleep(1 << 62)

    train(given, wrong)


def raises(given):
    def wrong(*_):
        say_fault()
        raise ValueError("loss is NaN")

    train(given, wrong)


def out_of_memory(given):
    """CUDA has no memory left at one rank."""

    def wrong(given, _):
        say_fault()
        torch.empty(1 << 50, device=device(given))

    train(given, wrong)


def killed(given):
    def wrong(*_):
        say_fault()
        os.kill(os.getpid(), signal.SIGKILL)

    train(given, wrong)


def stopped(given):
    def wrong(*_):
        say_fault()
        os.kill(os.getpid(), signal.SIGSTOP)

    train(given, wrong)


def left_early(given):
    """One rank thinks that it has done all its steps."""

    def wrong(*_):
        say_fault()
        os._exit(0)

    train(given, wrong)


def no_clip(given):
    """One rank skips the clipping of its gradients: two collectives fewer."""

    def clip(given, step):
        odd = step == SICK_STEP and culprit(given)
        if odd:
            say_fault()
        return not odd

    train(given, clip=clip)


def lone_norm(given):
    """One rank alone logs the norm of a weight, which takes a collective of its tensor-parallel group."""

    def log_norm(given, model):
        say_fault()
        model[0].up.weight.full_tensor().norm().item()

    train(given, log_norm)


def evaluate(given, model):
    """Rank 0 evaluates for 15 s."""
    say_fault()
    end = time.time() + 15
    while time.time() < end:
        time.sleep(0.1)


def evaluates(given):
    given.rank = 0
    train(given, evaluate, count=60)


class Shards(torch.utils.data.IterableDataset):
    def __init__(self, stuck):
        self.stuck = stuck

    def __iter__(self):
        for index in range(4000):
            if self.stuck and index == 60:
                wait_for_storage()
            yield torch.ones(WIDTH) * index


def loader(given):
    """A worker of a DataLoader never answers."""
    join(given)
    model = nn.parallel.DistributedDataParallel(Block().to(device(given)))
    for batch in torch.utils.data.DataLoader(Shards(culprit(given)), batch_size=4, num_workers=1):
        model(batch.to(device(given))).square().mean().backward()


# ---- no unfinished operation -----------------------------------------------------------------------------------------


def mesh_first(given):
    """One rank never joins the first collective of a mesh."""
    join(given)
    mesh = mesh_of(given)
    if culprit(given):
        wait_for_storage()
    dist.all_reduce(torch.ones(4, device=device(given)), group=mesh["tp"].get_group())
    dist.all_reduce(torch.ones(4, device=device(given)), group=mesh["dp"].get_group())
    steps(given, 1000)


def first_of_all(given):
    """One rank never joins the first collective of the job."""
    join(given)
    if culprit(given):
        wait_for_storage()
    steps(given, 1000)


def mesh_made(given):
    """One rank does not come to init_device_mesh."""
    join(given)
    steps(given, 10)
    if culprit(given):
        wait_for_storage()
    dist.barrier(mesh_of(given)["dp"].get_group())
    steps(given, 1000)


def store(given):
    join(given)
    steps(given, 10)
    shared = dist.distributed_c10d._get_default_store()
    if culprit(given):
        wait_for_storage()
        shared.set("tokenizer", "ready")
    shared.wait(["tokenizer"], datetime.timedelta(seconds=FOREVER_S))


def lone_group(given):
    """new_group in a branch of one rank, and a collective of it."""
    join(given)
    steps(given, 10)
    if culprit(given):
        say_fault()
        dist.barrier(dist.new_group(list(range(dist.get_world_size()))))
    steps(given, 1000)


def no_destroy(given):
    """Healthy: all come to their end, one 3 s before the others, and nobody calls destroy_process_group."""
    join(given)
    steps(given, 60)
    torch.cuda.synchronize() if given.backend == "nccl" else None
    if not culprit(given):
        time.sleep(3)


def ring(given, after=False):
    join(given)
    rank, size = dist.get_rank(), dist.get_world_size()
    out, into = (torch.ones(4096, device=device(given)) for _ in range(2))
    for step in range(1000):
        if step == SICK_STEP and culprit(given):
            wait_for_storage()
        to, of = (rank + 1) % size, (rank - 1) % size
        for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, into, of)]):
            w.wait()
        if after:
            dist.all_reduce(out)
            out.fill_(1.0)
        time.sleep(0.05)


def ring_reduce(given):
    ring(given, after=True)


def pipeline(given):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    join(given)
    rank, size = dist.get_rank(), dist.get_world_size()

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 40 and culprit(given):
                wait_for_storage()
            return self.linear(x)

    where = torch.device(device(given))
    stage = PipelineStage(Stage().to(where), rank, size, where)
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    data = torch.ones(8, WIDTH, device=where)
    for _ in range(1000):
        if rank == 0:
            schedule.step(data)
        elif rank == size - 1:
            schedule.step(target=data)
        else:
            schedule.step()
        time.sleep(0.05)


# ---- others ----------------------------------------------------------------------------------------------------------


def collective(given):
    join(given)
    steps(given, 40)
    if culprit(given):
        wait_for_storage()
    steps(given, 1000)


def other_branch(given):
    """A rank takes a branch of its own: another collective, and one all_reduce too few."""
    join(given)
    steps(given, 10)
    if culprit(given):
        say_fault()
        dist.broadcast(torch.ones(1000, device=device(given)), src=dist.get_rank())
    else:
        dist.all_reduce(torch.ones(1 << 20, device=device(given)))
    steps(given, 1000)


def backward_hook(given):
    """A hook of DDP's backward waits for storage at one rank."""
    join(given)
    model = nn.parallel.DistributedDataParallel(Block().to(device(given)), bucket_cap_mb=0.1)
    for step in range(4000):
        loss = model(torch.ones(4, WIDTH, device=device(given))).square().mean()
        if step == SICK_STEP and culprit(given):
            loss.register_hook(lambda _: wait_for_storage())
        loss.backward()
        time.sleep(0.02)


def objects(given):
    """Pickling for all_gather_object never ends."""

    class Metrics:
        def __reduce__(self):
            wait_for_storage()
            return (dict, ())

    join(given)
    steps(given, 10)
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, Metrics() if culprit(given) else {})
    steps(given, 1000)


def beside_gloo(given):
    """The group for checkpoints is Gloo's, the one for training NCCL's; one rank does not come to the former."""
    join(given)
    beside = dist.new_group(backend="gloo")
    steps(given, 20)
    if culprit(given):
        wait_for_storage()
    dist.barrier(beside)
    steps(given, 1000)


def restarted(given):
    join(given)
    steps(given, 10)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if attempt == "0" and culprit(given):
        sys.exit(3)
    if attempt == "1" and dist.get_rank() == 0:
        wait_for_storage()
    steps(given, 1000)


def at_the_end(given):
    """All but one are in destroy_process_group or beyond; one still saves."""
    join(given)
    steps(given, 40)
    if culprit(given):
        wait_for_storage()
    dist.barrier()
    dist.destroy_process_group()


FAULTS = {
    each.__name__: each
    for each in (
        *(healthy, fsdp_tp, regex, fifo, kernel, raises, out_of_memory, killed, stopped, left_early, no_clip),
        *(lone_norm, evaluates, loader, mesh_first, first_of_all, mesh_made, store, lone_group, ring, ring_reduce),
        *(pipeline, collective, other_branch, objects, beside_gloo, restarted, at_the_end, no_destroy),
        backward_hook,
    )
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--rank", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    given = parser.parse_args()
    FAULTS[given.fault](given)
