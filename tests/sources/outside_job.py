"""A Gloo job that is read from outside: it records, writes torch's own dump of it, and then does what it is asked.

    RANK=0 WORLD_SIZE=2 python outside_job.py --dir DIR --steps 20 --then hang|run|gil|stop

Into DIR goes `ready_<rank>` when the rank has recorded all, and `torch_<rank>`, torch's own dump, when `ask` appears
there. It ends when `end` does.
"""

import argparse
import ctypes
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

asked = argparse.ArgumentParser()
asked.add_argument("--dir", type=Path, required=True)
asked.add_argument("--steps", type=int, default=20)
asked.add_argument("--then", default="hang")
given = asked.parse_args()


def own_dump():
    try:
        from torch._C._distributed_c10d import _dump_fr_trace
    except ImportError:  # torch without it: NCCL's has the same form, of another recorder
        return b""
    return _dump_fr_trace()


def answer():
    rank = dist.get_rank()
    while not (given.dir / "end").exists():
        if (given.dir / "ask").exists() and not (given.dir / f"torch_{rank}").exists():
            time.sleep(0.2)
            part = given.dir / f"torch_{rank}.part"
            part.write_bytes(own_dump())
            part.rename(given.dir / f"torch_{rank}")
        time.sleep(0.05)
    os._exit(0)


def step(number, group):
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(4, 3 + number % 5))
    dist.all_reduce(torch.ones(2, dtype=torch.int64), group=group)
    row = torch.ones(3, dtype=torch.float16)
    dist.all_gather([torch.zeros_like(row) for _ in range(dist.get_world_size())], row)
    if rank == 0:
        dist.send(torch.ones(5), 1)
    elif rank == 1:
        dist.recv(torch.zeros(5), 0)
    if rank < 2:
        both = [dist.P2POp(dist.isend, torch.ones(2), 1 - rank), dist.P2POp(dist.irecv, torch.zeros(2), 1 - rank)]
        for work in dist.batch_isend_irecv(both):
            work.wait()


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{given.dir}/store", rank=rank, world_size=size)
    halves = [dist.new_group([each for each in range(dist.get_world_size()) if each % 2 == half]) for half in (0, 1)]
    threading.Thread(target=answer, daemon=True).start()
    for number in range(given.steps):
        step(number, halves[rank % 2])
    (given.dir / f"ready_{rank}").touch()
    if given.then == "run":
        number = 0
        while True:
            step(number, halves[rank % 2])
            number += 1
    last = rank == dist.get_world_size() - 1
    if last and given.then == "gil":
        ctypes.PyDLL(None).sleep(1000)
    elif last or given.then == "stop":
        time.sleep(1000)
    dist.all_reduce(torch.ones(7))


main()
