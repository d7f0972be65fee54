"""A training script that tests start: the same weights come out whatever happens around it, or something did harm."""

import argparse
import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--heed", action="store_true", help="hear SIGUSR1, and train on")
    given = parser.parse_args()
    if given.heed:
        signal.signal(signal.SIGUSR1, lambda *_: None)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(given.steps):
        torch.manual_seed(1000 * step + rank)
        model(torch.randn(8, 64)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step}", flush=True)
        print(f"rank {rank} step {step}", file=sys.stderr, flush=True)
        time.sleep(given.pause)
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    path = given.results / f"rank_{rank}"
    path.with_suffix(".part").write_text(f"{step} {hashlib.sha256(weights).hexdigest()}")
    os.replace(path.with_suffix(".part"), path)
    if given.heed:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Python sets its own handlers back before it is gone
    dist.destroy_process_group()
