"""Bugs of a person's first hour, as they are written: a branch on the rank, a loader, an evaluation, a save, a thread.

`everyday.py FAULT [--rank R]`. Each is a small training loop; the rank at fault says when it goes wrong. What a person
sees live was read by eye from these, sentence by sentence.
"""

import argparse
import os
import queue
import socket
import sys
import tempfile
import threading
import time
import traceback

import torch
import torch.distributed as dist
from common import FOREVER_S, culprit, join, say_fault
from torch.nn.parallel import DistributedDataParallel


def setup(given):
    join(given)
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(model, optimizer, batch=None):
    loss = model(torch.randn(8, 16) if batch is None else batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.05)
    return loss.detach()


# ---- a branch on the rank --------------------------------------------------------------------------------------------


def log_loss(loss):
    dist.all_reduce(loss)
    print(f"loss {loss.item() / dist.get_world_size():.3f}", flush=True)


def logs_on_one(given):
    """`if rank == 0: all_reduce(loss)`: Gloo sees another size than it expects, and aborts."""
    model, optimizer = setup(given)
    for step in range(60):
        loss = train_step(model, optimizer)
        if step == 40 and culprit(given):
            say_fault()
            log_loss(loss)


def evaluate(model):
    total = torch.zeros(1)
    for _ in range(5):
        total += model(torch.randn(8, 16)).square().mean().detach()
    dist.all_reduce(total)
    return total / 5


def eval_on_one(given):
    """One rank alone evaluates, and averages the result over all."""
    model, optimizer = setup(given)
    for step in range(60):
        train_step(model, optimizer)
        if step == 40 and culprit(given):
            say_fault()
            evaluate(model)
        if step % 20 == 0:
            dist.barrier()


def evaluate_all(model, batches):
    correct = 0
    for _ in range(batches):
        with torch.no_grad():
            correct += int(model(torch.randn(512, 16)).argmax(1).eq(0).sum())
    return correct


def eval_for_long(given):
    """One rank evaluates for longer than anyone waits; the others have gone on to the next step."""
    model, optimizer = setup(given)
    for step in range(60):
        train_step(model, optimizer)
        if step == 40 and culprit(given):
            say_fault()
            evaluate_all(model.module, 100_000_000)


def no_barrier(given):
    """One rank `continue`s past the barrier at the end of the epoch."""
    model, optimizer = setup(given)
    for epoch in range(5):
        for _ in range(10):
            train_step(model, optimizer)
        if epoch == 3 and culprit(given):
            say_fault()
            continue
        dist.barrier()


# ---- data ------------------------------------------------------------------------------------------------------------


class Remote(torch.utils.data.Dataset):
    """One sample comes from a server that accepts and never answers."""

    def __init__(self, stuck):
        self.stuck = stuck

    def __len__(self):
        return 320

    def __getitem__(self, index):
        if self.stuck and index == 160:
            return read_remote()
        return torch.randn(16)


def read_remote():
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    say_fault()
    return client.recv(64)


def loader_blocks(given):
    model, optimizer = setup(given)
    for batch in torch.utils.data.DataLoader(Remote(culprit(given)), batch_size=8):
        train_step(model, optimizer, batch)


def uneven_batches(given):
    """One rank has a batch less, and leaves for the barrier at the end."""
    model, optimizer = setup(given)
    batches = 39 if culprit(given) else 40
    for _ in range(batches):
        train_step(model, optimizer)
    if culprit(given):
        say_fault()
    dist.barrier()
    dist.destroy_process_group()


def odd_last_batch(given):
    """The last batch of one rank is smaller, and the predictions are gathered."""
    model, optimizer = setup(given)
    for step in range(40):
        train_step(model, optimizer)
        rows = 5 if step == 30 and culprit(given) else 8
        if rows == 5:
            say_fault()
        scores = torch.randn(rows, 4)
        dist.all_gather([torch.zeros(rows, 4) for _ in range(dist.get_world_size())], scores)


def slow_loader(given):
    """Nothing hangs: one rank's loading takes twice a step, every step."""
    model, optimizer = setup(given)
    for _ in range(int(given.seconds / 0.25)):
        train_step(model, optimizer, load(given))


def load(given):
    if culprit(given):
        time.sleep(0.2)
    return torch.randn(8, 16)


def thread_dies(given):
    """The thread that fills the queue raised: the loop waits for a batch that nobody makes."""
    model, optimizer = setup(given)
    batches = queue.Queue(maxsize=4)
    threading.Thread(target=fill, args=(batches, given), daemon=True).start()
    for _ in range(60):
        train_step(model, optimizer, batches.get())


def fill(batches, given):
    table = {index: torch.randn(8, 16) for index in range(60)}
    for index in range(60):
        if index == 40 and culprit(given):
            say_fault()
            index = "forty"
        batches.put(table[index])


# ---- errors ----------------------------------------------------------------------------------------------------------


def tokenize(text):
    return torch.tensor([float(word) for word in text.split()])


def raises(given):
    """An exception at one rank, while the others are in a step."""
    model, optimizer = setup(given)
    for step in range(60):
        train_step(model, optimizer)
        if step == 40 and culprit(given):
            say_fault()
            tokenize("1.0 2.0 three")


def error_skipped(given):
    """A bad sample is caught, printed and skipped: from there on one rank is a step ahead."""
    model, optimizer = setup(given)
    for step in range(60):
        try:
            if step == 40 and culprit(given):
                say_fault()
                tokenize("1.0 2.0 three")
            train_step(model, optimizer)
        except ValueError:
            traceback.print_exc()
    time.sleep(0.1)
    save_to(given)
    dist.barrier()


def oom_skipped(given):
    """Out of memory is caught, and the batch skipped."""
    model, optimizer = setup(given)
    for step in range(60):
        try:
            if step == 40 and culprit(given):
                say_fault()
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            train_step(model, optimizer)
        except torch.OutOfMemoryError as error:
            print(f"rank {given.rank}: skipped a batch: {error}", file=sys.stderr, flush=True)
    dist.barrier()


def caught_in_main(given):
    """An exception is printed, and the rank waits for a person to look."""
    try:
        raises(given)
    except ValueError:
        traceback.print_exc()
        wait_for_person()


def wait_for_person():
    while not os.path.exists("/tmp/a-person-looked-at-it"):
        time.sleep(0.5)


def exits(given):
    """`sys.exit(0)` at one rank, because its shard is empty."""
    model, optimizer = setup(given)
    for step in range(60):
        train_step(model, optimizer)
        if step == 40 and culprit(given):
            say_fault()
            sys.exit(0)


# ---- saves and the like ----------------------------------------------------------------------------------------------


def save(seconds):
    state = {"weights": torch.randn(64, 1024)}
    end = time.monotonic() + seconds
    with tempfile.NamedTemporaryFile() as file:
        while time.monotonic() < end:
            file.seek(0)
            torch.save(state, file)
            time.sleep(0.02)


def save_to(given):
    if culprit(given):
        save(0.1)


def long_save(given):
    """Rank 0 saves for long, the others wait in a barrier; then all goes on."""
    model, optimizer = setup(given)
    for step in range(60):
        train_step(model, optimizer)
        if step == 40:
            if culprit(given):
                say_fault()
                save(given.pause)
            dist.barrier()


def last_save(given):
    """As long_save, and the job ends at once after it."""
    model, optimizer = setup(given)
    for _ in range(40):
        train_step(model, optimizer)
    if culprit(given):
        say_fault()
        save(given.pause)
    dist.barrier()


def long_sleep(given):
    """One rank waits for something that comes in the end, doing nothing; then the job ends at once."""
    model, optimizer = setup(given)
    for _ in range(40):
        train_step(model, optimizer)
    if culprit(given):
        say_fault()
        wait_for_quota(given.pause)
    dist.barrier()


def wait_for_quota(seconds):
    time.sleep(seconds)


def wrong_src(given):
    """Each rank broadcasts from what it takes for the first rank of its group."""
    model, optimizer = setup(given)
    for _ in range(40):
        train_step(model, optimizer)
    source = 0
    if culprit(given):
        say_fault()
        source = given.rank
    threshold = torch.zeros(1)
    dist.broadcast(threshold, src=source)
    for _ in range(20):
        train_step(model, optimizer)


def never_converges(given):
    """One rank is caught in a loop of its own."""
    model, optimizer = setup(given)
    for step in range(60):
        train_step(model, optimizer)
        if step == 40 and culprit(given):
            say_fault()
            search_scale()


def search_scale():
    scale = 1.0
    end = time.monotonic() + FOREVER_S
    while scale != 0.3 and time.monotonic() < end:
        scale = (scale * 1.1) % 1.0
    return scale


def healthy(given):
    model, optimizer = setup(given)
    for _ in range(int(given.seconds / 0.06)):
        train_step(model, optimizer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("fault")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=1800.0)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a job that does not hang")
    parser.add_argument("--pause", type=float, default=18.0, help="seconds of a save or the like")
    parsed = parser.parse_args()
    globals()[parsed.fault](parsed)
