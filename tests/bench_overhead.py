"""What `hangscope run` costs a training step: two copies of one job, one with it and one without, measured in turns.

    python tests/bench_overhead.py                       2 ranks, Gloo, CPU
    python tests/bench_overhead.py --backend nccl --ranks 4

Both jobs live all the time and take turns of a fraction of a second, so that whatever else the machine does hits both
alike. A step is ten small all_reduce and nothing else: the worst case, for a real step also computes. The answer is the
median over all pairs of turns of (with / without), with the interval that holds it in 95 of 100 resamples.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
OPERATIONS = 10


def worker(arguments: argparse.Namespace) -> None:
    rank = int(os.environ["RANK"])
    if arguments.backend == "nccl":
        # Several ranks on one GPU: NCCL must take each for a node of its own (see tests/record/README.md).
        os.environ.update(
            NCCL_HOSTID=f"bench{rank}",
            NCCL_NET="Socket",
            NCCL_IB_DISABLE="1",
            NCCL_SOCKET_IFNAME="lo",
            NCCL_MAX_CTAS="1",
        )
    import torch
    import torch.distributed as dist

    device = "cpu"
    if arguments.backend == "nccl":
        torch.cuda.set_device(0)
        device = "cuda"
    dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl")
    control = socket.socket(socket.AF_UNIX)
    if rank == 0:
        control.connect(arguments.control)
    tensor = torch.ones(256, device=device)
    while True:
        order = torch.tensor([int(control.recv(16) or b"0") if rank == 0 else 0])
        dist.broadcast(order, 0)
        steps = int(order)
        if steps == 0:
            break
        begun = time.perf_counter()
        for _ in range(steps):
            for _ in range(OPERATIONS):
                dist.all_reduce(tensor)
            if device == "cuda":
                torch.cuda.synchronize()
        if rank == 0:
            control.send(json.dumps((time.perf_counter() - begun) / steps).encode())
        tensor.fill_(1.0)
    dist.destroy_process_group()


class Job:
    def __init__(self, scratch: Path, arguments: argparse.Namespace, *, watched: bool) -> None:
        name = "with" if watched else "without"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(scratch / name))
        listener.listen()
        head = [sys.executable, "-m", "hangscope", "run", "--dir", str(scratch / "incident"), "--"] if watched else []
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={arguments.ranks}"]
        own = [__file__, "--worker", "--control", str(scratch / name), "--backend", arguments.backend]
        path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
        environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen([*head, *launch, *own], env=environ, stdout=subprocess.DEVNULL)
        listener.settimeout(120)
        self.control, _ = listener.accept()
        self.control.settimeout(120)

    def turn(self, steps: int) -> float:
        """Seconds a step."""
        self.control.send(str(steps).encode())
        return float(json.loads(self.control.recv(64)))

    def end(self) -> None:
        self.control.close()
        self.process.wait(60)


def interval(ratios: list[float], draws: int = 2000) -> tuple[float, float]:
    medians = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--turn", type=float, default=0.25, help="seconds that one turn should take")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--control", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments)
        return 0
    with tempfile.TemporaryDirectory(prefix="bench.") as name:
        jobs = [Job(Path(name), arguments, watched=watched) for watched in (False, True)]
        try:
            for job in jobs:
                job.turn(20)
            steps = max(1, int(arguments.turn / min(job.turn(20) for job in jobs)))
            pairs = []
            for number in range(arguments.rounds):
                order = (0, 1) if number % 2 else (1, 0)
                times = {index: jobs[index].turn(steps) for index in order}
                pairs.append((times[0], times[1]))
        finally:
            for job in jobs:
                job.end()
    ratios = [with_it / without for without, with_it in pairs]
    low, high = interval(ratios)
    without, with_it = (1e6 * statistics.median(side) for side in zip(*pairs, strict=True))
    work = f"{arguments.rounds} rounds of {steps} steps of {OPERATIONS} all_reduce"
    print(f"{arguments.backend}, {arguments.ranks} ranks, {work}")
    print(f"without  {without:9.1f} us a step (median)")
    print(f"with     {with_it:9.1f} us a step (median)")
    middle, low, high = (100 * (ratio - 1) for ratio in (statistics.median(ratios), low, high))
    print(f"overhead {middle:+.2f} %  (95 %: {low:+.2f} to {high:+.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
