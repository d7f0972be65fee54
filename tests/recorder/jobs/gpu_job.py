"""A job whose ranks look as if they had a CUDA context: the driver's pipe, a core on request, and an error after it.

gpu_job.py CORES        rank 1 hangs; CORES/<rank>.core is what each rank's GPU says
"""

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))

from kits import fake_cuda


def play_the_driver(handle, core):
    os.read(handle, 1)
    fake_cuda.write(fake_cuda.expanded(os.environ["CUDA_COREDUMP_FILE"]), core, 3, 0.02)
    print("terminate called: CUDA error: unspecified launch failure", file=sys.stderr, flush=True)
    os._exit(1)


def fetch_prompts():
    time.sleep(1000)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if "CUDA_COREDUMP_PIPE" in os.environ:
        core = Path(sys.argv[1], f"{rank}.core").read_bytes()
        handle = fake_cuda.listen("whole", "")
        threading.Thread(target=play_the_driver, args=(handle, core), daemon=True).start()
    value = torch.ones(4)
    for step in range(1000):
        if step == 20 and rank == 1:
            fetch_prompts()
        dist.all_reduce(value)


main()
