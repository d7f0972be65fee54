"""Tests that hang, for `test_hung_tests.py` to run. The ranks are at work before the time of a test begins: how long it
takes to import torch is not what is tried here."""

import subprocess
import threading
import time
from pathlib import Path

import pytest


def stuck_in_loader():
    time.sleep(1000)


def train(rank, world, meets, here):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=meets, rank=rank, world_size=world)
    tensor = torch.ones(4)
    for _ in range(3):
        dist.all_reduce(tensor)
    Path(here, f"at-work-{rank}").touch()
    if rank == 1:
        stuck_in_loader()
    dist.all_reduce(tensor)


def await_ranks(here):
    while len(list(Path(here).glob("at-work-*"))) < 2:
        time.sleep(0.1)


@pytest.fixture
def spawned(tmp_path):
    import torch.multiprocessing as mp

    context = mp.spawn(train, args=(2, f"file://{tmp_path}/store", str(tmp_path)), nprocs=2, join=False)
    await_ranks(tmp_path)
    yield context
    for process in context.processes:
        process.kill()


def test_spawned_ranks(spawned):
    while not spawned.join():
        pass


@pytest.fixture
def group():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4))
    return dist


def test_as_a_rank(group):
    import torch

    if group.get_rank() == 1:
        stuck_in_loader()
    group.all_reduce(torch.ones(4))


def test_no_ranks():
    child = subprocess.Popen(["sleep", "1000"])
    waits_for_nobody()
    child.wait()


def waits_for_nobody():
    threading.Event().wait(1000)


def test_that_is_quick():
    assert True
