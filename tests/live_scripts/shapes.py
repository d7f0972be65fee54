"""More ways in which training hangs: accumulation, evaluation, checkpoints, meshes, splits, exits, start-up.

`shapes.py FAULT [--rank R]`: the rank at fault says when it goes wrong, and does what its peers do not.
"""

import argparse
import atexit
import contextlib
import fcntl
import os
import signal
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from common import FOREVER_S, culprit, join, say_fault, steps
from torch.nn.parallel import DistributedDataParallel

FOREVER = 10_000
PAUSE_S = 12.0


def wait_for_storage():
    time.sleep(FOREVER_S)


# ---- training loops --------------------------------------------------------------------------------------------------


def no_sync(given):
    """One rank accumulates gradients for a step more than the others, and has none to reduce in the last one."""
    join(given)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    for step in range(FOREVER):
        late = step == 15 and culprit(given)
        if late:
            say_fault()
        with model.no_sync() if step % 4 != 3 or late else contextlib.nullcontext():
            model(torch.ones(4, 8)).sum().backward()
        if step % 4 == 3:
            dist.barrier()
        time.sleep(0.05)


def early_return(given):
    """Early stopping by the rank's own loss: it returns, and its process ends with 0."""
    join(given)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    for step in range(FOREVER):
        if step == 30 and culprit(given):
            say_fault()
            return
        model(torch.ones(4, 8)).sum().backward()
        time.sleep(0.05)


def uneven_stream(given):
    """An IterableDataset that ends earlier on one rank, which goes on to the evaluation."""

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            for _ in range(30 if culprit(given) else FOREVER):
                yield torch.ones(8)

    join(given)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    for batch in torch.utils.data.DataLoader(Stream(), batch_size=1):
        model(batch).sum().backward()
        time.sleep(0.05)
    say_fault()
    evaluate()


def evaluate():
    total = torch.zeros(3)
    dist.all_reduce(total)
    return total


def compile_long(given):
    """One rank compiles anew, for ever, in Python."""
    join(given)
    steps(20)
    if culprit(given):
        say_fault()
        compile_graph()
    steps(FOREVER)


def compile_graph():
    end = time.time() + FOREVER_S
    while time.time() < end:
        sum(range(10_000))


def own_exit(given):
    """One rank calls sys.exit(0) in the middle."""
    join(given)
    steps(30)
    if culprit(given):
        say_fault()
        sys.exit(0)
    steps(FOREVER)


def hook_exit(given):
    """A hook calls os._exit on one rank: no traceback, no cleaning up."""
    join(given)
    layer = torch.nn.Linear(8, 8)
    layer.register_forward_hook(lambda *_: os._exit(7) if given.now else None)
    given.now = False
    for step in range(FOREVER):
        if step == 30 and culprit(given):
            say_fault()
            given.now = True
        layer(torch.ones(2, 8))
        steps(1)


def oom(given, number=signal.SIGKILL):
    """A rank gets the signal of the kernel's out-of-memory killer."""
    join(given)
    steps(30)
    if culprit(given):
        say_fault()
        os.kill(os.getpid(), number)
    steps(FOREVER)


def stopped_for_ever(given):
    oom(given, signal.SIGSTOP)


_state_lock = threading.Lock()


def preempted(given):
    """A signal handler wants a lock that the main thread holds."""
    join(given)
    signal.signal(signal.SIGUSR1, save_on_signal)
    steps(30)
    if culprit(given):
        with _state_lock:
            say_fault()
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.1)
    steps(FOREVER)


def save_on_signal(number, frame):
    with _state_lock:
        pass


# ---- checkpoints, downloads ------------------------------------------------------------------------------------------


def zero_barrier(given):
    """Rank 0 alone saves, and its save has a barrier."""
    join(given)
    for step in range(FOREVER):
        steps(1)
        if step == 30 and dist.get_rank() == 0:
            say_fault()
            save()


def save():
    time.sleep(0.2)
    dist.barrier()


def zero_state_dict(given):
    """FSDP2's full state dict, gathered by rank 0 alone."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    join(given)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 16))
    for layer in model:
        fully_shard(layer, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
    for step in range(FOREVER):
        model(torch.ones(4, 16)).sum().backward()
        if step == 20 and dist.get_rank() == 0:
            say_fault()
            get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        time.sleep(0.05)


def first_downloads(given):
    """Rank 0 downloads while the others wait at a barrier; a lock that a dead download left is never released."""
    join(given)
    steps(10)
    path = os.path.join(tempfile.gettempdir(), f"hub-{os.environ['MASTER_PORT']}.lock")
    if dist.get_rank() == 0:
        held = os.open(path, os.O_CREAT | os.O_RDWR)
        fcntl.flock(held, fcntl.LOCK_EX)
        say_fault()
        download(path)
    dist.barrier()
    steps(FOREVER)


def download(path):
    lock = os.open(path, os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)


# ---- meshes, groups, pipelines ---------------------------------------------------------------------------------------


def lone_redistribute(given):
    """One rank alone redistributes a DTensor."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    join(given)
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    weight = distribute_tensor(torch.ones(12, 4), mesh, [Shard(0)])
    for step in range(FOREVER):
        if step == 20 and culprit(given):
            say_fault()
            weight.redistribute(mesh, [Replicate()]).to_local().sum().item()
        steps(1)


def other_dimension(given):
    """Four ranks, 2 by 2: one of them reduces over the other dimension of the mesh."""
    join(given)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    value = torch.ones(32)
    for step in range(FOREVER):
        wrong = step == 20 and culprit(given)
        if wrong:
            say_fault()
        dist.all_reduce(value, group=mesh["dp" if wrong else "tp"].get_group())
        dist.all_reduce(value, group=mesh["dp"].get_group())
        value.fill_(1.0)
        time.sleep(0.05)


def two_orders(given):
    """One rank takes two groups of all ranks in the other order."""
    join(given)
    world = list(range(dist.get_world_size()))
    first, second = dist.new_group(world), dist.new_group(world)
    value = torch.ones(8)
    for step in range(FOREVER):
        order = (first, second)
        if step == 20 and culprit(given):
            say_fault()
            order = (second, first)
        for group in order:
            dist.all_reduce(value, group=group)
        value.fill_(1.0)
        time.sleep(0.05)


def group_order(given):
    """One rank makes two groups in the other order."""
    join(given)
    steps(5)
    sets = [[0, 1, 2], [1, 2]]
    if culprit(given):
        say_fault()
        sets.reverse()
    groups = {len(members): dist.new_group(members) for members in sets}
    dist.all_reduce(torch.ones(4), group=groups[3])
    steps(FOREVER)


def microbatches(given):
    """One stage of a pipeline was told of twice as many microbatches."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    join(given)
    rank, size = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(torch.nn.Linear(8, 8), rank, size, torch.device("cpu"))
    count = 8 if culprit(given) else 4
    schedule = ScheduleGPipe(stage, n_microbatches=count, loss_fn=torch.nn.functional.mse_loss)
    say_fault()
    for _ in range(1000):
        if rank == 0:
            schedule.step(torch.ones(8, 8))
        elif rank == size - 1:
            schedule.step(target=torch.ones(8, 8))
        else:
            schedule.step()
        time.sleep(0.05)


def other_tag(given):
    """One rank sends with another tag than its neighbour receives."""
    join(given)
    rank, size = dist.get_rank(), dist.get_world_size()
    out, into = torch.ones(16), torch.zeros(16)
    for step in range(1000):
        wrong = step == 20 and culprit(given)
        if wrong:
            say_fault()
        sent = dist.isend(out, (rank + 1) % size, tag=7 if wrong else 0)
        dist.recv(into, (rank - 1) % size)
        sent.wait()
        time.sleep(0.05)


def all_receive(given):
    """Everybody receives before sending."""
    join(given)
    rank, size = dist.get_rank(), dist.get_world_size()
    steps(10)
    say_fault()
    dist.recv(torch.zeros(16), (rank - 1) % size)
    dist.send(torch.ones(16), (rank + 1) % size)


def wrong_splits(given):
    """One rank sends other parts of an all_to_all than its peers expect."""
    join(given)
    size = dist.get_world_size()
    for step in range(FOREVER):
        parts = [4] * size
        if step == 20 and culprit(given):
            say_fault()
            parts = [8, 0, 4]
        dist.all_to_all_single(torch.zeros(4 * size), torch.ones(4 * size), [4] * size, parts)
        time.sleep(0.05)


def lone_gather(given):
    """One rank skips the gather of metrics."""
    join(given)
    for step in range(FOREVER):
        if step == 20 and culprit(given):
            say_fault()
        else:
            dist.all_gather_object([None] * dist.get_world_size(), {"loss": 1.0})
        steps(1)


def missing_key(given):
    """One rank forgets to set the key that the others get, and goes on to the barrier."""
    join(given)
    steps(10)
    store = dist.distributed_c10d._get_default_store()
    if culprit(given):
        say_fault()
    else:
        store.get("tokenizer")
    dist.barrier()
    steps(FOREVER)


def leaves_early(given):
    """One rank destroys its process group a step early, and uploads for ever."""
    join(given)
    steps(30)
    if culprit(given):
        say_fault()
        dist.destroy_process_group()
        wait_for_storage()
    steps(FOREVER)


# ---- the end of a job ------------------------------------------------------------------------------------------------


def thread_at_exit(given):
    """A thread of a logger that nobody told to end: the process never ends."""
    join(given)
    steps(30)
    dist.destroy_process_group()
    if culprit(given):
        say_fault()
        threading.Thread(target=flush_metrics).start()


def flush_metrics():
    threading.Event().wait(FOREVER_S)


def handler_at_exit(given):
    """A handler of atexit waits for ever."""
    join(given)
    if culprit(given):
        atexit.register(finish_upload)
    steps(30)
    dist.destroy_process_group()
    say_fault()


def finish_upload():
    time.sleep(FOREVER_S)


# ---- start-up --------------------------------------------------------------------------------------------------------


def other_file(given):
    """file:// as the meeting point, and one rank was given another file."""
    path = os.path.join(tempfile.gettempdir(), f"rendezvous-{os.environ['MASTER_PORT']}")
    if culprit(given):
        say_fault()
        time.sleep(1)
        path += "-other"
    join(given, init_method=f"file://{path}", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    steps(FOREVER)


def start(given):
    """Joins, and trains: for jobs that cannot come together."""
    say_fault()
    join(given)
    steps(FOREVER)


# ---- healthy ---------------------------------------------------------------------------------------------------------


def long_first_step(given):
    """Healthy: every rank compiles before its first collective, some for longer."""
    join(given)
    end = time.time() + PAUSE_S * (1 + 0.1 * dist.get_rank())
    while time.time() < end:
        sum(range(10_000))
    steps(60)
    dist.destroy_process_group()


def announced(given):
    """Healthy: rank 0 evaluates for long, and says so."""
    from hangscope import expect_pause

    join(given)
    steps(30)
    if dist.get_rank() == 0:
        with expect_pause("evaluation", at_most_s=60):
            time.sleep(PAUSE_S)
    steps(60)
    dist.destroy_process_group()


def ends_apart(given):
    """Healthy: after training, rank 0 alone exports the model, for longer than any threshold."""
    join(given)
    steps(30)
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank == 0:
        end = time.time() + PAUSE_S
        while time.time() < end:
            sum(range(10_000))


FAULTS = {
    each.__name__: each
    for each in (
        *(no_sync, early_return, uneven_stream, compile_long, own_exit, hook_exit, oom, stopped_for_ever, preempted),
        *(zero_barrier, zero_state_dict, first_downloads, lone_redistribute, other_dimension, two_orders, group_order),
        *(microbatches, other_tag, all_receive, wrong_splits, lone_gather, missing_key, leaves_early),
        *(thread_at_exit, handler_at_exit, other_file, start, long_first_step, announced, ends_apart),
    )
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--rank", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=600)
    FAULTS[(arguments := parser.parse_args()).fault](arguments)
