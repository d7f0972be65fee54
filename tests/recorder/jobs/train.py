"""A training script that tests start: steps of all_reduce, in which one rank goes wrong as asked."""

import argparse
import ctypes
import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def say(text):
    """One write a line: ranks share a pipe, and print() makes two writes under `python -u`."""
    os.write(1, f"{text}\n".encode())


def stuck_in_loader():
    time.sleep(1000)


def go_wrong(fault):
    if fault == "sleep":
        stuck_in_loader()
    elif fault == "pause":
        time.sleep(5)
    elif fault == "raise":
        raise ValueError("a batch that cannot be read")
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "exit":
        sys.exit(0)
    elif fault == "gil":
        ctypes.PyDLL(None).sleep(1000)
    elif fault == "gpu":
        torch.cuda._sleep(1 << 62)  # a kernel that does not end, in front of the next all_reduce


def use_one_gpu():
    """Several ranks on one GPU: NCCL must take each for a node of its own."""
    os.environ.update(
        NCCL_HOSTID=f"rank{os.environ['RANK']}",
        NCCL_NET="Socket",
        NCCL_IB_DISABLE="1",
        NCCL_SOCKET_IFNAME="lo",
        NCCL_MAX_CTAS="1",
    )
    torch.cuda.set_device(0)


def train(arguments, rank=None, world_size=None, store=None):
    device = "cpu"
    if arguments.backend == "nccl":
        use_one_gpu()
        device = "cuda"
    extra = {"init_method": store, "rank": rank, "world_size": world_size} if rank is not None else {}
    dist.init_process_group(arguments.backend, timeout=datetime.timedelta(seconds=arguments.timeout), **extra)
    tensor = torch.ones(1 << 22 if device == "cuda" else 1024, device=device)
    for step in range(arguments.steps):
        due = os.path.exists(arguments.when) if arguments.when else step == arguments.at
        wrong = due and dist.get_rank() == arguments.rank
        if wrong:
            say(f"fault at {time.time():.3f}")
            go_wrong(arguments.fault)
        if wrong and arguments.fault == "mismatch":
            dist.broadcast(tensor, src=dist.get_rank())
        else:
            dist.all_reduce(tensor)
        if device == "cuda":
            torch.cuda.synchronize()
        tensor.fill_(1.0)
        say(f"rank {dist.get_rank()} step {step}")
        time.sleep(arguments.pause)
    dist.destroy_process_group()
    sys.exit(arguments.status)


def spawned(index, arguments, world_size, store):
    train(arguments, index, world_size, store)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--when", default="", help="a file: go wrong once it is there, in place of --at")
    parser.add_argument("--at", type=int, default=40)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0.1)
    parser.add_argument("--status", type=int, default=0)
    parser.add_argument("--spawn", type=int, default=0)
    parser.add_argument("--store", default="")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--timeout", type=float, default=600)
    given = parser.parse_args()
    if given.spawn:
        mp.spawn(spawned, (given, given.spawn, given.store), nprocs=given.spawn)
    else:
        train(given)
