"""What the scripts beside this one share: who goes wrong, when that is said, and steps that do nothing but all_reduce.

stuck.py and frameworks.py do without it: they are also started by `python -I`, which finds no neighbour.
"""

import datetime
import os
import time

import torch
import torch.distributed as dist

FOREVER_S = 1000.0


def say_fault():
    os.write(1, f"fault at {time.time():.3f}\n".encode())


def culprit(given):
    return int(os.environ.get("RANK", "0")) == given.rank


def join(given, **more):
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=given.timeout), **more)


def steps(count, pause=0.05):
    tensor = torch.ones(64)
    for _ in range(count):
        dist.all_reduce(tensor)
        tensor.fill_(1.0)
        time.sleep(pause)
