"""What `hangscope run` costs a training step: two copies of one job, one with it and one without, measured in turns.

    python tests/bench_overhead.py                       2 ranks, Gloo, CPU
    python tests/bench_overhead.py --backend nccl --ranks 4
    python tests/bench_overhead.py --nothing             both copies without: what chance alone does
    python tests/bench_overhead.py --backend nccl --ranks 4 --plugin FILE [--step layers]
                                                         NCCL's black box alone: one copy with the plugin, one without

Both jobs live at the same time and take turns of a fraction of a second, so that whatever else the machine does hits
both alike; then both are started anew, because two copies of one job differ by some per cent for as long as they live
(where their memory and threads happen to lie). A step is ten small all_reduce and nothing else: the worst case, for a
real step also computes (`--step layers`: matrix products with an all_reduce of 2 MiB behind each). The answer is the
mean over the starts of the median ratio of each, with its standard error.
"""

from __future__ import annotations

import argparse
import json
import os
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
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // arguments.ranks)
    if share > 1:
        os.sched_setaffinity(0, cores[rank * share : (rank + 1) * share])
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
    layers = arguments.step == "layers"
    weight = torch.ones(2048, 2048, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    gradients = [torch.ones(1 << 19, device=device) for _ in range(OPERATIONS)]
    while True:
        order = torch.tensor([int(control.recv(16) or b"0") if rank == 0 else 0])
        dist.broadcast(order, 0)
        steps = int(order)
        if steps == 0:
            break
        begun = time.perf_counter()
        for _ in range(steps):
            work = []
            for number in range(OPERATIONS):
                if layers:
                    for _ in range(4):
                        weight @ weight
                    work.append(dist.all_reduce(gradients[number], async_op=True))
                else:
                    dist.all_reduce(tensor)
            for each in work:
                each.wait()
            if device == "cuda":
                torch.cuda.synchronize()
        if rank == 0:
            control.send(json.dumps((time.perf_counter() - begun) / steps).encode())
        tensor.fill_(1.0)
    dist.destroy_process_group()


class Job:
    def __init__(self, scratch: Path, arguments: argparse.Namespace, which: bool, *, watched: bool) -> None:
        name = "second" if which else "first"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(scratch / name))
        listener.listen()
        run = [sys.executable, "-m", "hangscope", "run", "--dir", str(scratch / "incident"), "--"]
        head = run if watched and not arguments.plugin else []
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={arguments.ranks}"]
        own = [
            __file__,
            "--worker",
            "--control",
            str(scratch / name),
            "--backend",
            arguments.backend,
            "--ranks",
            str(arguments.ranks),
            "--step",
            arguments.step,
        ]
        path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
        environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        if watched and arguments.plugin:
            environ |= {"NCCL_PROFILER_PLUGIN": arguments.plugin, "HANGSCOPE_BLACKBOX_DIR": str(scratch / "boxes")}
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


def compare(arguments: argparse.Namespace, number: int) -> tuple[float, float, int]:
    """The median seconds a step without and with it, of one start of both jobs, and the steps of a turn."""
    with tempfile.TemporaryDirectory(prefix="bench.") as name:
        order = (False, True) if number % 2 else (True, False)
        jobs = {which: Job(Path(name), arguments, which, watched=which and not arguments.nothing) for which in order}
        try:
            for job in jobs.values():
                job.turn(20)
            steps = max(1, int(arguments.turn / min(job.turn(20) for job in jobs.values())))
            times: dict[bool, list[float]] = {False: [], True: []}
            if arguments.plugin and len(list(Path(name, "boxes").glob("*.ncclbb"))) != arguments.ranks:
                raise RuntimeError("the plugin was not loaded in every rank: there is nothing to compare")
            for round_number in range(arguments.rounds):
                for which in (False, True) if round_number % 2 else (True, False):
                    times[which].append(jobs[which].turn(steps))
        finally:
            for job in jobs.values():
                job.end()
    ratio = statistics.median(with_it / without for without, with_it in zip(times[False], times[True], strict=True))
    return statistics.median(times[False]), ratio, steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--starts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--turn", type=float, default=0.1, help="seconds that one turn should take")
    parser.add_argument("--nothing", action="store_true", help="run both without hangscope")
    parser.add_argument("--plugin", default="", help="measure this NCCL profiler plugin and nothing else")
    parser.add_argument("--step", choices=("tiny", "layers"), default="tiny")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--control", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments)
        return 0
    found = [compare(arguments, number) for number in range(arguments.starts)]
    ratios = [100 * (ratio - 1) for _, ratio, _ in found]
    work = f"{arguments.rounds} rounds of {found[0][2]} steps of {OPERATIONS} all_reduce ({arguments.step})"
    print(f"{arguments.backend}, {arguments.ranks} ranks, {arguments.starts} starts of {work}")
    print(f"without  {1e6 * statistics.median(without for without, _, _ in found):9.1f} us a step (median)")
    print(f"with     {1e6 * statistics.median(without * ratio for without, ratio, _ in found):9.1f} us")
    print("each     " + " ".join(f"{ratio:+.2f}" for ratio in ratios) + " %")
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")
    print(f"overhead {statistics.mean(ratios):+.2f} % ± {error:.2f} (standard error)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
