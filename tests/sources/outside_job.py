"""A job that is read from outside: it records, writes torch's own dump of it, and then does what it is asked.

    RANK=0 WORLD_SIZE=2 python outside_job.py --dir DIR --steps 20 --then hang|run|gil|stop [--backend nccl]

Into DIR goes `ready_<rank>` when the rank has recorded all, and `torch_<rank>_<number>`, torch's own dump, when
`ask_<number>` appears there. It ends when `end` does.
"""

import argparse
import ctypes
import os
import pickle
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

asked = argparse.ArgumentParser()
asked.add_argument("--dir", type=Path, required=True)
asked.add_argument("--steps", type=int, default=20)
asked.add_argument("--fill", type=int, default=0, help="so many operations are recorded at the end of the steps")
asked.add_argument("--then", default="hang")
asked.add_argument("--backend", default="gloo", choices=("gloo", "nccl"))
given = asked.parse_args()
device = "cuda" if given.backend == "nccl" else "cpu"


def own_dump():
    if given.backend == "nccl":
        from torch._C._distributed_c10d import _dump_nccl_trace

        return _dump_nccl_trace()
    try:
        from torch._C._distributed_c10d import _dump_fr_trace
    except ImportError:  # torch without it: NCCL's has the same form, of another recorder
        return b""
    return _dump_fr_trace()


def answer():
    rank = dist.get_rank()
    number = 0
    while not (given.dir / "end").exists():
        if (given.dir / f"ask_{number}").exists():
            part = given.dir / f"torch_{rank}.part"
            part.write_bytes(own_dump())
            part.rename(given.dir / f"torch_{rank}_{number}")
            number += 1
        time.sleep(0.02)
    os._exit(0)


def step(number, group):
    dist.all_reduce(torch.ones(4, 3 + number % 5, device=device))
    dist.all_reduce(torch.ones(2, dtype=torch.int64, device=device), group=group)
    row = torch.ones(3, dtype=torch.float16, device=device)
    dist.all_gather([torch.zeros_like(row) for _ in range(dist.get_world_size())], row)
    if given.backend == "gloo" or given.then != "run":
        point_to_point()


def point_to_point():
    """Gloo records none of it; NCCL does, so a job that runs on leaves it out: its entries can be foretold then."""
    rank = dist.get_rank()
    if rank == 0:
        dist.send(torch.ones(5, device=device), 1)
    elif rank == 1:
        dist.recv(torch.zeros(5, device=device), 0)
    if rank < 2:
        sent, got = torch.ones(2, device=device), torch.zeros(2, device=device)
        both = [dist.P2POp(dist.isend, sent, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
        for work in dist.batch_isend_irecv(both):
            work.wait()


def fill(rank, size):
    """Operations of a group of this rank alone: fast, whatever the others do."""
    alone = [dist.new_group([each]) for each in range(size)][rank]
    entries = pickle.loads(own_dump() or b"}.").get("entries", [])
    recorded = entries[-1]["record_id"] + 1 if entries else 0
    for _ in range(given.fill - recorded):
        dist.all_reduce(torch.ones(3, device=device), group=alone)


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if given.backend == "nccl":
        torch.cuda.set_device(0)
    dist.init_process_group(given.backend, init_method=f"file://{given.dir}/store", rank=rank, world_size=size)
    halves = [dist.new_group([each for each in range(dist.get_world_size()) if each % 2 == half]) for half in (0, 1)]
    threading.Thread(target=answer, daemon=True).start()
    for number in range(given.steps):
        step(number, halves[rank % 2])
    if given.fill:
        fill(rank, size)
    if given.backend == "nccl":
        torch.cuda.synchronize()
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
    dist.all_reduce(torch.ones(7, device=device))
    if given.backend == "nccl":
        torch.cuda.synchronize()


main()
