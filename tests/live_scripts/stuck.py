"""Training that gets stuck where no collective is recorded: at start-up, in stores, point-to-point and pipelines.

`stuck.py FAULT [--rank R] [--fork N] [--seconds S]`: every fault waits in a function of its own name at rank R.
"""

import argparse
import datetime
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

FOREVER_S = 1000.0


def say(text):
    os.write(1, f"{text}\n".encode())


def culprit(given):
    return int(os.environ.get("RANK", "0")) == given.rank


def wait_for_storage():
    """Where the rank at fault stands."""
    say(f"fault at {time.time():.3f}")
    time.sleep(FOREVER_S)


def steps(count, pause=0.05):
    tensor = torch.ones(64)
    for _ in range(count):
        dist.all_reduce(tensor)
        tensor.fill_(1.0)
        time.sleep(pause)


def init(given):
    """One rank never calls init_process_group."""
    if culprit(given):
        wait_for_storage()
    join(given)


def join(given):
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=given.timeout))


def store(given):
    """All but one wait for a key that only that one sets."""
    join(given)
    steps(5)
    shared = dist.distributed_c10d._get_default_store()
    if culprit(given):
        wait_for_storage()
        shared.set("tokenizer", "ready")
    shared.wait(["tokenizer"], datetime.timedelta(seconds=FOREVER_S))


def groups(given):
    """One rank does not come to new_group."""
    join(given)
    if culprit(given):
        wait_for_storage()
    again = dist.new_group(list(range(dist.get_world_size())))
    dist.barrier(group=again)


def mesh(given):
    """One rank does not come to the first collective of a mesh."""
    join(given)
    from torch.distributed.device_mesh import init_device_mesh

    if culprit(given):
        wait_for_storage()
    rows = 2 if dist.get_world_size() % 2 == 0 else 1
    grid = init_device_mesh("cpu", (rows, dist.get_world_size() // rows), mesh_dim_names=("dp", "tp"))
    dist.all_reduce(torch.ones(4), group=grid["tp"].get_group())
    dist.barrier()


def ring(given, after=False):
    """Neighbours exchange with batch_isend_irecv; one stops doing so. With `after`, an all_reduce follows each time."""
    join(given)
    rank, size = dist.get_rank(), dist.get_world_size()
    out, into = torch.ones(16), torch.zeros(16)
    for step in range(1000):
        if step == 20 and culprit(given):
            wait_for_storage()
        work = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, out, (rank + 1) % size),
                dist.P2POp(dist.irecv, into, (rank - 1) % size),
            ]
        )
        for w in work:
            w.wait()
        if after:
            dist.all_reduce(out)
            out.fill_(1.0)
        time.sleep(0.05)


def ring_reduce(given):
    ring(given, after=True)


def pipeline(given):
    """Schedule1F1B over all ranks, in which one stage does not come back from its forward."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    join(given)
    rank, size = dist.get_rank(), dist.get_world_size()

    class Stage(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 40 and culprit(given):
                wait_for_storage()
            return self.linear(x)

    stage = PipelineStage(Stage(), rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    for _ in range(1000):
        if rank == 0:
            schedule.step(torch.ones(8, 8))
        elif rank == size - 1:
            schedule.step(target=torch.ones(8, 8))
        else:
            schedule.step()
        time.sleep(0.05)


def monitored(given):
    """A monitored barrier names the rank that did not come."""
    join(given)
    steps(5)
    if culprit(given):
        wait_for_storage()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=given.timeout))


def collective(given):
    """One rank does not come to an all_reduce: the group's timeout may be shorter than any threshold."""
    join(given)
    steps(40)
    if culprit(given):
        wait_for_storage()
    steps(1000)


def raises(given):
    """A rank raises at once and the launcher kills the others."""
    join(given)
    steps(10)
    if culprit(given):
        say(f"fault at {time.time():.3f}")
        raise ValueError("loss is NaN")
    steps(1000)


def nan_branch(given):
    """A rank takes a branch of its own: it skips one all_reduce, and its next one has another shape."""
    join(given)
    steps(10)
    if culprit(given):
        say(f"fault at {time.time():.3f}")
        dist.broadcast(torch.ones(1000), src=dist.get_rank())
    steps(1000)


def wrong_shape(given):
    join(given)
    steps(10)
    if culprit(given):
        say(f"fault at {time.time():.3f}")
    dist.all_reduce(torch.ones(65 if culprit(given) else 64))
    steps(1000)


def restarted(given):
    """Fails in its first attempt and hangs in its second."""
    join(given)
    steps(10)
    if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" and culprit(given):
        sys.exit(3)
    if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "1" and dist.get_rank() == 0:
        wait_for_storage()
    steps(1000)


def healthy(given):
    join(given)
    steps(int(given.seconds / 0.05))
    dist.destroy_process_group()


def jitter(given):
    """Healthy: every step takes another time on every rank."""
    import random

    join(given)
    end = torch.tensor([time.time() + given.seconds])
    dist.broadcast(end, src=0)
    go = torch.ones(1)
    while go.item() > 0:
        time.sleep(random.uniform(0.02, 0.6))
        go = torch.tensor([1.0 if time.time() < end.item() else 0.0])
        dist.all_reduce(go, op=dist.ReduceOp.MIN)
    dist.destroy_process_group()


def slow(given):
    """One rank takes three times as long as the others, every step."""
    join(given)
    for _ in range(int(given.seconds / 0.3)):
        time.sleep(0.3 if culprit(given) else 0.1)
        steps(1, 0.0)
    dist.destroy_process_group()


def quiet(given):
    """Healthy: long compute without any collective, then one; before that a download outside torch.distributed."""
    time.sleep(given.seconds / 3)
    join(given)
    value = 0
    end = time.time() + given.seconds / 3
    while time.time() < end:
        value += sum(range(1000))
    time.sleep(given.seconds / 3)
    dist.barrier()
    dist.destroy_process_group()


def forked(index, given):
    os.environ.update(RANK=str(index), LOCAL_RANK=str(index), WORLD_SIZE=str(given.fork))
    FAULTS[given.fault](given)


FAULTS = {
    each.__name__: each
    for each in (
        *(init, store, groups, mesh, ring, ring_reduce, pipeline, monitored, collective),
        *(raises, nan_branch, wrong_shape, restarted, healthy, jitter, slow, quiet),
    )
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--rank", type=int, default=2)
    parser.add_argument("--fork", type=int, default=0)
    parser.add_argument("--port", default="29555")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--timeout", type=float, default=600)
    given = parser.parse_args()
    if given.fork:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=given.port)
        mp.start_processes(forked, (given,), nprocs=given.fork, start_method="fork")
    else:
        FAULTS[given.fault](given)
