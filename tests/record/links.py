"""One rank of a job whose links are stopped and let go again, one trial after another; record_links.py starts it."""

from __future__ import annotations

import faulthandler
import json
import os
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ROOM = Path(os.environ["RECORD_ROOM"])
TRIALS = json.loads((ROOM / "trials.json").read_text()) if (ROOM / "trials.json").exists() else []
DEVICE = "cuda" if os.environ.get("RECORD_BACKEND", "nccl") == "nccl" else "cpu"  # Gloo: to try the program alone
GPU_CYCLES = int(float(os.environ.get("RECORD_GPU_S", "9")) * 1.9e9)


def note(what: str, trial: int) -> None:
    (ROOM / f"{what}.{trial}.{RANK}").touch()


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def wait_for(name: str) -> None:
    while not (ROOM / name).exists():
        time.sleep(0.02)


def witness() -> None:
    """Beside the main thread: write dump and stacks whenever the launcher asks."""
    for trial in range(len(TRIALS)):
        wait_for(f"collect.{trial}")
        folder = ROOM / "taken" / str(trial)
        folder.mkdir(parents=True, exist_ok=True)
        if DEVICE == "cuda":
            (folder / f"nccl_trace_rank_{RANK}").write_bytes(torch._C._distributed_c10d._dump_nccl_trace())
        with (folder / f"stacks_{RANK}.txt").open("w") as stream:
            faulthandler.dump_traceback(stream, all_threads=True)
        note("collected", trial)


class Operations:
    """What a trial can run; each takes a few steps on every link that it uses."""

    def __init__(self) -> None:
        self.large = torch.ones(1 << 20, device=DEVICE)  # 4 MiB
        self.small = torch.ones(256, device=DEVICE)
        self.gathered = torch.empty(WORLD << 18, device=DEVICE)
        half = WORLD // 2
        groups = [dist.new_group(list(range(half))), dist.new_group(list(range(half, WORLD)))]
        self.half = groups[RANK // half]
        self.first_of_half = RANK // half * half

    def run(self, name: str) -> None:
        getattr(self, name)()

    def all_reduce(self) -> None:
        dist.all_reduce(self.large)

    def all_reduce_small(self) -> None:
        dist.all_reduce(self.small)

    def broadcast(self) -> None:
        dist.broadcast(self.large, src=1)

    def all_gather(self) -> None:
        dist.all_gather_into_tensor(self.gathered, self.large[: 1 << 18])

    def reduce_scatter(self) -> None:
        dist.reduce_scatter_tensor(self.large[: 1 << 18], self.gathered)

    def all_to_all(self) -> None:
        dist.all_to_all_single(torch.empty_like(self.large), self.large)

    def half_all_reduce(self) -> None:
        dist.all_reduce(self.large, group=self.half)

    def pipeline(self) -> None:
        """Each rank receives from the one before and sends to the one behind, as stages do."""
        if RANK > 0:
            dist.recv(self.large, RANK - 1)
        if RANK < WORLD - 1:
            dist.send(self.large, RANK + 1)

    def exchange(self) -> None:
        """A batch of sends and receives with both neighbours of a ring."""
        there = torch.empty_like(self.large)
        batch = [
            dist.P2POp(dist.isend, self.large, (RANK + 1) % WORLD),
            dist.P2POp(dist.irecv, there, (RANK - 1) % WORLD),
        ]
        for work in dist.batch_isend_irecv(batch):
            work.wait()


def play(operations: Operations, number: int, trial: dict[str, object]) -> None:
    wait_for(f"start.{number}")  # whoever got through before others must not run into the link of the last trial
    operations.run(str(trial["operation"]))
    synchronize()
    note("warm", number)
    wait_for(f"go.{number}")
    victim = trial.get("victim") == RANK
    if victim and trial["fault"] in ("absent", "killed"):
        note("launched", number)
        wait_for(f"release.{number}")
    if victim and trial["fault"] in ("gpu", "frozen"):
        torch.cuda._sleep(GPU_CYCLES) if DEVICE == "cuda" else time.sleep(9)
    operations.run(str(trial["operation"]))
    if trial.get("then"):
        operations.run(str(trial["then"]))
    note("launched", number)
    synchronize()
    note("done", number)


def main() -> None:
    began = time.monotonic()
    if DEVICE == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", timeout=timedelta(minutes=15))
    if os.environ.get("RECORD_STARTUP"):
        dist.all_reduce(torch.ones(256, device=DEVICE))
        synchronize()
        (ROOM / f"startup.{RANK}").write_text(str(time.monotonic() - began))
        os._exit(0)
    operations = Operations()
    dist.all_reduce(operations.small)
    synchronize()
    print(f"rank {RANK} of {WORLD}: ready", flush=True)
    threading.Thread(target=witness, daemon=True).start()
    for number, trial in enumerate(TRIALS):
        play(operations, number, trial)
    note("finished", 0)
    wait_for("end")
    os._exit(0)


if __name__ == "__main__":
    main()
