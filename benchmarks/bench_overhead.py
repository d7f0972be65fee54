"""What `hangscope run` costs a training step: two copies of one job, one with it and one without, measured in turns.

    python benchmarks/bench_overhead.py                       2 ranks, Gloo, CPU
    python benchmarks/bench_overhead.py --backend nccl --ranks 4
    python benchmarks/bench_overhead.py --nothing             both copies without: what chance alone does
    python benchmarks/bench_overhead.py --backend nccl --ranks 4 --plugin FILE [--step layers]
                                                         NCCL's black box alone: one copy with the plugin, one without
    python benchmarks/bench_overhead.py --backend nccl --ranks 4 --plugin FILE --timing --step fsdp --rounds 12
                                                         four copies: start events on and off, the plugin on and off
    python benchmarks/bench_overhead.py --backend nccl --ranks 4 --variable NAME=VALUE --variable …
                                                         these variables alone: one copy with them, one without; {}
                                                         in a value stands for a folder of the job

Both jobs live at the same time and take turns of a fraction of a second, so that whatever else the machine does hits
both alike; then both are started anew, because two copies of one job differ by some per cent for as long as they live
(where their memory and threads happen to lie). A step is ten small all_reduce and nothing else: the worst case, for a
real step also computes (`--step layers`: matrix products with an all_reduce of 2 MiB behind each; `--step fsdp`: FSDP2
over pairs of tensor-parallel ranks, forward, backward and optimizer, overlapped as FSDP2 does). The answer is the mean
over the starts of the median ratio of each, with its standard error.
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
from collections.abc import Callable, Mapping
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
    step = {"tiny": tiny, "layers": layers, "fsdp": fsdp}[arguments.step](device, arguments.ranks)
    while True:
        order = torch.tensor([int(control.recv(16) or b"0") if rank == 0 else 0])
        dist.broadcast(order, 0)
        steps = int(order)
        if steps == 0:
            break
        begun = time.perf_counter()
        for _ in range(steps):
            step()
            if device == "cuda":
                torch.cuda.synchronize()
        if rank == 0:
            control.send(json.dumps((time.perf_counter() - begun) / steps).encode())
    dist.destroy_process_group()


def tiny(device: str, ranks: int) -> Callable[[], None]:
    import torch
    import torch.distributed as dist

    tensor = torch.zeros(256, device=device)

    def step() -> None:
        for _ in range(OPERATIONS):
            dist.all_reduce(tensor)

    return step


def layers(device: str, ranks: int) -> Callable[[], None]:
    import torch
    import torch.distributed as dist

    weight = torch.ones(2048, 2048, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    gradients = [torch.zeros(1 << 19, device=device) for _ in range(OPERATIONS)]

    def step() -> None:
        work = []
        for gradient in gradients:
            for _ in range(4):
                weight @ weight
            work.append(dist.all_reduce(gradient, async_op=True))
        for each in work:
            each.wait()

    return step


def fsdp(device: str, ranks: int) -> Callable[[], None]:
    """A small transformer's feed-forward blocks: each tensor-parallel over two ranks, sharded over the others."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(device, (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    kind = {"device": device, "dtype": torch.bfloat16 if device == "cuda" else torch.float32}
    width = 1024 if device == "cuda" else 64
    model = torch.nn.Sequential(
        *(
            torch.nn.Sequential(
                torch.nn.Linear(width, 4 * width, **kind), torch.nn.GELU(), torch.nn.Linear(4 * width, width, **kind)
            )
            for _ in range(6)
        )
    )
    for block in model:
        parallelize_module(block, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batch = torch.randn(512, width, **kind)

    def step() -> None:
        model(batch).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Job:
    def __init__(
        self,
        scratch: Path,
        arguments: argparse.Namespace,
        name: str,
        *,
        watched: bool,
        more: Mapping[str, str] | None = None,
    ) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(scratch / name))
        listener.listen()
        run = [sys.executable, "-m", "hangscope", "run", "--dir", str(scratch / "incident"), "--"]
        head = run if watched and not arguments.plugin and not arguments.variable else []
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
            boxes = str(scratch / f"boxes.{name}")
            environ |= {"NCCL_PROFILER_PLUGIN": arguments.plugin, "HANGSCOPE_BLACKBOX_DIR": boxes}
        if watched:
            given = (setting.partition("=") for setting in arguments.variable)
            environ |= {setting: value.replace("{}", str(scratch)) for setting, _, value in given}
        environ |= more or {}
        self.process = subprocess.Popen([*head, *launch, *own], env=environ, stdout=subprocess.DEVNULL)
        self._listener = listener
        self._listener.settimeout(120)

    def join(self) -> None:
        """Wait until its ranks are there: several jobs start at the same time."""
        self.control, _ = self._listener.accept()
        self.control.settimeout(120)

    def turn(self, steps: int) -> float:
        """Seconds a step."""
        self.control.send(str(steps).encode())
        return float(json.loads(self.control.recv(64)))

    def stop(self) -> None:
        """Have it end, and do not wait for that."""
        self.control.close()

    def end(self) -> None:
        self.process.wait(60)


def compare(arguments: argparse.Namespace, number: int) -> tuple[float, float, int]:
    """The median seconds a step without and with it, of one start of both jobs, and the steps of a turn."""
    with tempfile.TemporaryDirectory(prefix="bench.") as name:
        order = (False, True) if number % 2 else (True, False)
        jobs = {
            which: Job(Path(name), arguments, str(which), watched=which and not arguments.nothing) for which in order
        }
        try:
            for job in jobs.values():
                job.join()
            for job in jobs.values():
                job.turn(20)
            steps = max(1, int(arguments.turn / min(job.turn(20) for job in jobs.values())))
            times: dict[bool, list[float]] = {False: [], True: []}
            if arguments.plugin:
                _loaded(Path(name, "boxes.True"), arguments.ranks)
            for round_number in range(arguments.rounds):
                for which in (False, True) if round_number % 2 else (True, False):
                    times[which].append(jobs[which].turn(steps))
        finally:
            for job in jobs.values():
                job.stop()
            for job in jobs.values():
                job.end()
    ratio = statistics.median(with_it / without for without, with_it in zip(times[False], times[True], strict=True))
    print(f"start {number + 1}: {100 * (ratio - 1):+.2f} %", flush=True)  # each at once: a start takes a minute
    return statistics.median(times[False]), ratio, steps


def _loaded(boxes: Path, ranks: int) -> None:
    if len(list(boxes.glob("*.ncclbb"))) != ranks:
        raise RuntimeError("the plugin was not loaded in every rank: there is nothing to compare")


def compare_four(arguments: argparse.Namespace, number: int) -> dict[tuple[bool, bool], list[float]]:
    """Seconds a step of every round, by (start events, plugin), of one start of four jobs that take turns."""
    kinds = [(timing, plugin) for timing in (False, True) for plugin in (False, True)]
    kinds = kinds[number % 4 :] + kinds[: number % 4]
    jobs: dict[tuple[bool, bool], Job] = {}
    with tempfile.TemporaryDirectory(prefix="bench.") as name:
        try:
            for timing, plugin in kinds:
                label = f"{timing:d}{plugin:d}"
                more = {"TORCH_NCCL_ENABLE_TIMING": f"{timing:d}", "TORCH_FR_BUFFER_SIZE": "2000"}
                jobs[timing, plugin] = Job(Path(name), arguments, label, watched=plugin, more=more)
            for job in jobs.values():
                job.join()
            slowest = max(job.turn(4) for job in jobs.values())
            for timing, plugin in kinds:
                if plugin and arguments.plugin != "none":
                    _loaded(Path(name, f"boxes.{timing:d}{plugin:d}"), arguments.ranks)
            steps = max(1, int(arguments.turn / slowest))
            times: dict[tuple[bool, bool], list[float]] = {kind: [] for kind in kinds}
            for turn in range(arguments.rounds):
                for kind in kinds[turn % 4 :] + kinds[: turn % 4]:
                    times[kind].append(jobs[kind].turn(steps))
        finally:
            for job in jobs.values():
                job.stop()
            for job in jobs.values():
                job.end()
    return times


def report_four(found: list[dict[tuple[bool, bool], list[float]]]) -> None:
    """Medians, and each against neither start events nor plugin, round by round."""
    for timing in (False, True):
        for plugin in (False, True):
            medians = [statistics.median(times[timing, plugin]) for times in found]
            ratios = [
                100 * (one / none - 1)
                for times in found
                for one, none in zip(times[timing, plugin], times[False, False], strict=True)
            ]
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(
                f"timing {timing:d} plugin {plugin:d}  {1e3 * statistics.median(medians):9.2f} ms a step (median)  "
                f"{middle:+.2f} % (quartiles {low:+.2f} to {high:+.2f}, {len(ratios)} rounds)"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--starts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--turn", type=float, default=0.1, help="seconds that one turn should take")
    parser.add_argument("--nothing", action="store_true", help="run both without hangscope")
    parser.add_argument("--plugin", default="", help="measure this NCCL profiler plugin and nothing else")
    parser.add_argument("--variable", action="append", default=[], help="measure this NAME=VALUE and nothing else")
    parser.add_argument("--step", choices=("tiny", "layers", "fsdp"), default="tiny")
    parser.add_argument("--timing", action="store_true", help="with --plugin: four copies, start events on and off too")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--control", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments)
        return 0
    if arguments.timing:
        print(f"{arguments.backend}, {arguments.ranks} ranks, {arguments.starts} starts, step {arguments.step}")
        report_four([compare_four(arguments, number) for number in range(arguments.starts)])
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
