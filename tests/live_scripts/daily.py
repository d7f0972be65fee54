"""Mistakes of everyday training code, each at one rank: loaders, checkpoints, branches, children, hooks, start-up.

`daily.py FAULT [--rank R]`: the rank at fault says when it goes wrong, and stands in a function named for it, or calls
what its peers do not.
"""

import argparse
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from common import FOREVER_S, culprit, join, say_fault, steps
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

PAUSE_S = 14.0


# ---- data ------------------------------------------------------------------------------------------------------------

_cache_lock = threading.Lock()


class Cached(torch.utils.data.Dataset):
    """Its workers are forked while a thread of the parent holds the lock of its cache: nobody ever releases it."""

    def __len__(self):
        return 400

    def __getitem__(self, index):
        with _cache_lock:
            return torch.ones(8)


def loader_lock(given):
    join(given)
    steps(20)
    if culprit(given):
        _cache_lock.acquire()
        say_fault()
    for batch in torch.utils.data.DataLoader(Cached(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
        dist.all_reduce(batch.sum())


class Shards(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        if index == 100 and os.environ["RANK"] == os.environ["CULPRIT"]:
            say_fault()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(8)


def worker_killed(given):
    """The kernel kills a data worker for memory: PyTorch raises in the rank."""
    os.environ["CULPRIT"] = str(given.rank)
    join(given)
    for batch in torch.utils.data.DataLoader(Shards(), batch_size=4, num_workers=1):
        dist.all_reduce(batch.sum())
        time.sleep(0.05)


def prepare_batches(out):
    os.kill(os.getpid(), signal.SIGKILL)
    out.put(1)


def child_killed(given):
    """A helper process of one's own dies for want of memory, and its queue never gets another batch."""
    join(given)
    steps(20)
    if culprit(given):
        batches = mp.get_context("spawn").Queue()
        mp.get_context("spawn").Process(target=prepare_batches, args=(batches,)).start()
        say_fault()
        next_batch(batches)
    steps(FOREVER)


def next_batch(batches):
    return batches.get()


def fewer_batches(given):
    """One rank has fewer batches, leaves the loop and comes to the barrier at its end."""
    join(given)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    for step in range(FOREVER):
        if step == 30 and culprit(given):
            say_fault()
            break
        model(torch.ones(4, 8)).sum().backward()
        time.sleep(0.05)
    dist.barrier()


def fewer_batches_joined(given):
    """Healthy: the same under DDP's own join."""
    join(given)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    with model.join():
        for _ in range(40 if culprit(given) else 120):
            model(torch.ones(4, 8)).sum().backward()
            time.sleep(0.05)
    dist.destroy_process_group()


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def save_by_thread(given):
    """A thread writes the checkpoint to a pipe that nobody reads; the main thread waits for it."""
    join(given)
    steps(20)
    if culprit(given):
        say_fault()
        pipe = os.path.join(tempfile.mkdtemp(), "checkpoint.pt")
        os.mkfifo(pipe)
        saving = threading.Thread(target=save_checkpoint, args=(pipe,))
        saving.start()
        saving.join()
    steps(FOREVER)


def save_checkpoint(path):
    torch.save({"weights": torch.ones(1000)}, path)


def async_save(given):
    """DCP's asynchronous save: the storage of one rank never takes the bytes, all wait for the last save."""
    import torch.distributed.checkpoint as dcp

    class Storage(dcp.FileSystemWriter):
        def write_data(self, plan, planner):
            if culprit(given):
                say_fault()
                wait_for_storage()
            return super().write_data(plan, planner)

    join(given)
    steps(20)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    group = dist.new_group()  # its own: a thread talks over it while training goes on
    saved = dcp.async_save({"weights": torch.ones(1000)}, storage_writer=Storage(folder[0]), process_group=group)
    steps(20)
    saved.result()
    steps(FOREVER)


def wait_for_storage():
    time.sleep(FOREVER_S)


# ---- calls that the others do not make -------------------------------------------------------------------------------


def lone_barrier(given):
    """A barrier in a branch that one rank alone takes."""
    join(given)
    steps(20)
    if culprit(given):
        say_fault()
        log_metrics()
    steps(FOREVER)


def log_metrics():
    dist.barrier()


def lone_group(given):
    """new_group in a branch that one rank alone takes."""
    join(given)
    steps(20)
    if culprit(given):
        say_fault()
        make_debug_group()
    steps(FOREVER)


def make_debug_group():
    dist.new_group(list(range(dist.get_world_size())))


def wrong_source(given):
    """One rank takes itself for the source of a broadcast of objects."""
    join(given)
    steps(20)
    settings = [{"rate": 0.1}]
    if culprit(given):
        say_fault()
    dist.broadcast_object_list(settings, src=given.rank if culprit(given) else 0)
    steps(FOREVER)


def lone_full_tensor(given):
    """One rank alone prints a sharded parameter, which gathers it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    join(given)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    weight = distribute_tensor(torch.ones(12, 4), mesh, [Shard(0)])
    steps(20)
    if culprit(given):
        say_fault()
        print_weight(weight)
    steps(FOREVER)


def print_weight(weight):
    print(weight.full_tensor().sum())


def uneven_gather(given):
    """Accelerate's gather of a last batch that is shorter on one rank."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    for step in range(FOREVER):
        short = step == 30 and culprit(given)
        if short:
            say_fault()
        accelerator.gather(torch.ones(3 if short else 4, 2))
        time.sleep(0.05)


class Normalised(torch.nn.Module):
    """A layer that averages over the ranks, also when it is recomputed."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.skip = False

    def forward(self, x):
        y = self.linear(x)
        if not (self.skip and torch.is_grad_enabled()):
            average(y.detach().mean())
        return y


def average(value):
    dist.all_reduce(value)


def recompute(given):
    """Gradient checkpointing recomputes a layer that calls a collective; one rank's layer skips it then."""
    join(given)
    layer = Normalised()
    for step in range(FOREVER):
        if step == 20 and culprit(given):
            say_fault()
            layer.skip = True
        checkpoint(layer, torch.ones(4, 8, requires_grad=True), use_reentrant=True).sum().backward()
        dist.barrier()
        time.sleep(0.05)


def swallowed(given):
    """A hook raises on one rank before its collective, and the loop logs it and goes on."""
    join(given)
    model = torch.nn.Linear(8, 8)
    model.register_forward_hook(lambda module, inputs, output: synchronise(given, output))
    for step in range(FOREVER):
        given.step = step
        try:
            model(torch.ones(4, 8))
        except ValueError as error:
            print(f"step {step} skipped: {error}", flush=True)
        dist.barrier()
        time.sleep(0.05)


def synchronise(given, output):
    if given.step == 20 and culprit(given):
        say_fault()
        raise ValueError("activations are not finite")
    dist.all_reduce(output.detach())


# ---- objects, children, the world outside ----------------------------------------------------------------------------


class Metrics:
    def __init__(self, slow):
        self.slow = slow

    def __getstate__(self):
        if self.slow:
            say_fault()
            wait_for_storage()
        return {}


def gather_objects(given):
    """all_gather_object of an object whose pickling never ends on one rank."""
    join(given)
    steps(20)
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, Metrics(culprit(given)))


def fetch(given):
    """A request to a server that takes the connection and never answers."""
    join(given)
    steps(20)
    if culprit(given):
        listener = socket.create_server(("127.0.0.1", 0))
        say_fault()
        download(f"http://127.0.0.1:{listener.getsockname()[1]}/tokenizer.json")
    steps(FOREVER)


def download(address):
    return urllib.request.urlopen(address).read()


def child_hangs(given):
    """subprocess.run of a program that never ends."""
    join(given)
    steps(20)
    if culprit(given):
        say_fault()
        upload()
    steps(FOREVER)


def upload():
    subprocess.run(["sleep", str(FOREVER_S)])


_log_lock = threading.Lock()


def tokenize(text):
    with _log_lock:
        return text.split()


def fork_lock(given):
    """A pool that is forked while another thread holds a lock: the pool's children wait for it for ever."""
    join(given)
    steps(20)
    if culprit(given):
        held = threading.Thread(target=hold_lock, daemon=True)
        held.start()
        time.sleep(0.2)
        say_fault()
        tokenize_all()
    steps(FOREVER)


def hold_lock():
    with _log_lock:
        time.sleep(3)


def tokenize_all():
    with mp.get_context("fork").Pool(2) as pool:
        return pool.map(tokenize, ["a b"] * 8)


def nested_pool(given):
    """Ranks of mp.spawn with a pool of their own, one of whose tasks never ends."""
    mp.spawn(_nested, (given,), nprocs=3)


def _nested(rank, given):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="3", MASTER_ADDR="127.0.0.1")
    os.environ["MASTER_PORT"] = given.port
    join(given)
    steps(20)
    pool = mp.get_context("spawn").Pool(1)
    pool.map(augment, [0.0])
    steps(5)
    if culprit(given):
        say_fault()
    augment_all(pool, culprit(given))
    steps(FOREVER)


def augment_all(pool, stuck):
    return pool.map(augment, [FOREVER_S if stuck else 0.0])


def augment(seconds):
    time.sleep(seconds)


def stopped(given):
    """A rank is stopped, as by a cluster's suspend, and goes on later: a pause."""
    join(given)
    steps(40)
    if culprit(given):
        say_fault()
        subprocess.Popen(["sh", "-c", f"kill -STOP {os.getpid()}; sleep {PAUSE_S}; kill -CONT {os.getpid()}"])
    steps(200)
    dist.destroy_process_group()


def full_queue(given):
    """A thread that trains hands results to a bounded queue which nobody empties any more."""
    join(given)
    steps(20)
    results = queue.Queue(maxsize=4)
    training = threading.Thread(target=train_in_thread, args=(given, results))
    training.start()
    training.join()


def train_in_thread(given, results):
    for step in range(FOREVER):
        dist.all_reduce(torch.ones(8))
        if culprit(given):
            if step == 4:
                say_fault()
            hand_over(results, step)
        time.sleep(0.05)


def hand_over(results, step):
    results.put(step)


# ---- start-up --------------------------------------------------------------------------------------------------------


def raises_early(given):
    """An exception before init_process_group, whose lines name no rank."""
    if culprit(given):
        time.sleep(3)
        say_fault()
        read_config("/nowhere/config.yaml")
    join(given)
    steps(FOREVER)


def read_config(path):
    with open(path) as file:
        return file.read()


def another_store(given):
    """One rank looks for the others at another port."""
    if culprit(given):
        say_fault()
        os.environ["MASTER_PORT"] = given.port
    join(given)
    steps(FOREVER)


FOREVER = 10_000
FAULTS = {
    each.__name__: each
    for each in (
        *(loader_lock, worker_killed, child_killed, fewer_batches, fewer_batches_joined),
        *(save_by_thread, async_save),
        *(lone_barrier, lone_group, wrong_source, lone_full_tensor, uneven_gather, recompute, swallowed),
        *(gather_objects, fetch, child_hangs, fork_lock, nested_pool, stopped, full_queue),
        *(raises_early, another_store),
    )
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--rank", type=int, default=2)
    parser.add_argument("--port", default="29556")
    parser.add_argument("--timeout", type=float, default=600)
    arguments = parser.parse_args()
    FAULTS[arguments.fault](arguments)
    sys.exit(0)
