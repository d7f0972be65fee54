"""A healthy job that pauses: rank 0 saves, evaluates, compiles or loads for long, again and again; the others wait.

`pauses.py KIND --lengths 4,9`: so many seconds each.
"""

import argparse
import os
import re
import tempfile
import time

import torch
import torch.distributed as dist
from common import join, steps


def saves(seconds):
    state = {"weights": torch.randn(256, 1024)}
    end = time.monotonic() + seconds
    with tempfile.NamedTemporaryFile() as file:
        while time.monotonic() < end:
            file.seek(0)
            torch.save(state, file)
            os.fsync(file.fileno())


def evaluates(seconds):
    model = torch.nn.Linear(256, 256)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with torch.no_grad():
            model(torch.randn(64, 256))


def compiles(seconds):
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        number += 1
        compile("\n".join(f"def f{number}_{n}(x): return x * {n}" for n in range(200)), "made", "exec")


def loads(seconds):
    end = time.monotonic() + seconds
    text = "a long line of words and 12 numbers " * 200
    while time.monotonic() < end:
        re.findall(r"\w+", text)
        time.sleep(0.001)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--lengths", required=True)
    parser.add_argument("--timeout", type=float, default=1800.0)
    given = parser.parse_args()
    join(given)
    for length in given.lengths.split(","):
        steps(20)
        if dist.get_rank() == 0:
            globals()[given.kind](float(length))
        dist.barrier()
    steps(20)
