"""Four ranks that train a small model on the CPU, until one of them does what the command line says.

Started by `hangscope demo` under torchrun; also a training script to try `hangscope run` with.
"""

from __future__ import annotations

import argparse
import os
import signal
import time

import torch
import torch.distributed as dist

FAULTY_RANK = 2
FAULTY_STEP = 12


def load_batch(step: int, fault: str) -> torch.Tensor:
    """The data loader. One rank's storage does not answer any more."""
    if fault == "absent" and step == FAULTY_STEP and dist.get_rank() == FAULTY_RANK:
        wait_for_storage()
    return torch.full((64, 32), float(step))


def wait_for_storage() -> None:
    while True:
        time.sleep(3600)


def misbehave(fault: str) -> None:
    if fault == "dead":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "frozen":
        os.kill(os.getpid(), signal.SIGSTOP)


def average_gradients(gradients: torch.Tensor, *, wrong: bool) -> None:
    if wrong:
        dist.broadcast(gradients, src=FAULTY_RANK)  # where everybody else averages
    else:
        dist.all_reduce(gradients)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=("none", "absent", "dead", "frozen", "mismatch"))
    parser.add_argument("--steps", type=int, default=24)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.zeros(32)
    for step in range(1, arguments.steps + 1):
        batch = load_batch(step, arguments.fault)
        gradients = batch.mean(dim=0) - weights
        here = rank == FAULTY_RANK and step == FAULTY_STEP
        if here:
            misbehave(arguments.fault)
        average_gradients(gradients, wrong=here and arguments.fault == "mismatch")
        weights += 0.1 * gradients / dist.get_world_size()
        if rank == 0:
            print(f"step {step}", flush=True)  # noqa: T201 -- a training script prints
        time.sleep(0.25)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
