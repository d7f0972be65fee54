"""A training script for the tests of code lines: each fault has a line of its own that the verdict must name."""

import os
import re
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


def save_checkpoint(path):
    torch.save({"weights": torch.ones(4)}, path)  # nobody reads the FIFO: open() waits in C++, with the GIL


def clean_text(text):
    return re.match(r"(a+)+$", text)


def read_sample(path):
    with open(path) as stream:
        return stream.read()


def average(tensor, group=None):
    dist.all_reduce(tensor, group=group)


def announce(tensor):
    dist.broadcast(tensor, src=1)


def first_then_second(groups):
    average(torch.ones(3), groups[0])
    average(torch.ones(3), groups[1])


def second_then_first(groups):
    average(torch.ones(3), groups[1])
    average(torch.ones(3), groups[0])


class Samples(Dataset):
    def __init__(self, stuck_at, fifo):
        self.stuck_at = stuck_at
        self.fifo = fifo

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return read_sample(self.fifo) if index == self.stuck_at else torch.ones(2)


def go_wrong(fault, fifo):
    if fault == "fifo":
        save_checkpoint(fifo)
    elif fault == "regex":
        clean_text("a" * 60 + "b")
    elif fault == "mismatch":
        announce(torch.ones(8))


def train(fault, at):
    rank = dist.get_rank()
    fifo = f"{sys.argv[2]}.{rank}"
    os.mkfifo(fifo)
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)  # imports what a dump with stacks needs
    stuck_at = at if fault == "loader" and rank == 1 else -1
    batches = iter(DataLoader(Samples(stuck_at, fifo), batch_size=1, num_workers=1)) if fault == "loader" else None
    for step in range(10_000):
        if batches is not None:
            next(batches)
        if step == at and rank == 1:
            go_wrong(fault, fifo)
        if step == at and fault == "deadlock":
            (first_then_second if rank == 0 else second_then_first)(groups)
        average(torch.ones(8))
        time.sleep(0.1)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    work = threading.Thread(target=train, args=(sys.argv[1], int(sys.argv[3])))
    if sys.argv[1] == "loader":
        train(sys.argv[1], int(sys.argv[3]))  # a DataLoader forks, which threads do not like
    else:
        work.start()  # as in Ray Train: the main thread only waits
        work.join()
