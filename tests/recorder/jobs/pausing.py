"""A training script that tests start: rank 0 evaluates now and then, announced or not; the first start may hang."""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
import types

import torch
import torch.distributed as dist

from hangscope import expect_pause


def evaluate(seconds):
    time.sleep(seconds)


def wait_for_evaluation(step):
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        store.set(f"evaluated/{step}", "yes")
    store.wait([f"evaluated/{step}"])


def work(how, seconds):
    """Saves in large pieces, computes in a process of its own, or reads."""
    code = f"import time; end = time.time() + {seconds}\nwhile time.time() < end: pass"
    if how == "computes":
        subprocess.run([sys.executable, "-c", code], check=True)
        return
    end = time.time() + seconds
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * (1 << 20))
        while time.time() < end:
            file.seek(0)
            if how == "reads":
                file.read(1 << 20)
            else:
                file.write(b"x" * (1 << 20))
            time.sleep(0.3)


def stand_in_for_wandb(file):
    """As `import wandb; wandb.init()` leaves it, but for where an alert goes."""

    class Run:
        def alert(self, **given):
            with open(file, "a") as stream:
                stream.write(json.dumps(given) + "\n")

    sys.modules["wandb"] = types.ModuleType("wandb")
    sys.modules["wandb"].run = Run()


def hang():
    time.sleep(1000)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--pause-at", type=int, nargs="*", default=[])
    parser.add_argument("--announce-at", type=int, nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--hang-at", type=int, default=-1)
    parser.add_argument("--work-at", type=int, default=-1)
    parser.add_argument("--work", default="writes")
    parser.add_argument("--store", default="")
    parser.add_argument("--by-key", action="store_true", help="the others wait for a key, not in an operation")
    parser.add_argument("--wandb", default="", help="rank 0 has a W&B run, whose alerts go to this file")
    given = parser.parse_args()
    if given.wandb and os.environ["RANK"] == "0":
        stand_in_for_wandb(given.wandb)
    # A file for each start: after a restart by torchrun, Gloo (torch 2.13) now and then looks for a peer that is gone.
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    where = {"init_method": f"file://{given.store}.{restart}"} if given.store else {}
    numbers = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])} if given.store else {}
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600), **where, **numbers)
    total = torch.zeros(1)
    first = restart == "0"
    for step in range(given.steps):
        if dist.get_rank() == 0 and step in given.pause_at:
            evaluate(given.seconds)
        if dist.get_rank() == 0 and step == given.work_at:
            work(given.work, given.seconds)
        if given.by_key and step in given.pause_at:
            wait_for_evaluation(step)
        if dist.get_rank() == 0 and step in given.announce_at:
            with expect_pause("evaluation", at_most_s=60):
                evaluate(given.seconds)
        if dist.get_rank() == 1 and step == given.hang_at and first:
            hang()
        batch = torch.tensor([float(step)])
        dist.all_reduce(batch)
        total += batch
        time.sleep(0.05)
    if dist.get_rank() == 0:
        print(f"result {total.item():.0f}", flush=True)
    dist.destroy_process_group()
