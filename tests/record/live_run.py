"""`hangscope run` end to end with NCCL's black box, on one GPU: does the live verdict name what was made to go wrong?

    python3 tests/record/live_run.py --out FOLDER [--seconds 280] [--bench-seconds 170]

Needs one GPU, a C compiler and a PyTorch with NCCL; installs nothing, and builds the plugin into the checkout. Three
jobs of four ranks at once: a link that stops (stop_sends.c) with PyTorch's start events off, as `run` leaves them where
the job has several nodes; the same with them on; and a GPU whose kernel does not end, with them off. Each is started by
`hangscope run`, notices its stall, captures, and writes its verdict; one line a job says what was injected and what the
verdict names. Then step times, under MPS: start events on and off, the plugin on and off, four copies that take turns
(bench_overhead.py --timing --step fsdp).
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
PLUGIN = REPOSITORY / "src" / "hangscope" / "recorder" / "setup" / "libhangscope_blackbox.so"
PAGE_BYTES = struct.calcsize("<iiiiqQ") + 2 * 65536
RANKS, SICK_STEP = 4, 12
SENDER, RECEIVER, STUCK = 1, 2, 2
TRIALS = {"link": ("link", False), "link-timed": ("link", True), "gpu": ("gpu", False)}


def worker() -> None:
    """One rank: an all_reduce of 4 MiB and a small one a step, until something stops."""
    rank = int(os.environ["RANK"])
    fault = os.environ["LIVE_FAULT"]
    nccl = os.environ.get("LIVE_BACKEND", "nccl") == "nccl"  # Gloo: to try the launcher alone
    os.environ.update(
        NCCL_HOSTID=f"live{os.getppid()}-{rank}",
        NCCL_NET="Socket",
        NCCL_IB_DISABLE="1",
        NCCL_SOCKET_IFNAME="lo",
        NCCL_P2P_DISABLE="1",
        NCCL_SHM_DISABLE="1",
        NCCL_ALGO="Ring",
        NCCL_MAX_NCHANNELS="2",
        NCCL_BUFFSIZE="524288",
    )
    import torch
    import torch.distributed as dist

    if nccl:
        torch.cuda.set_device(0)
    dist.init_process_group("nccl" if nccl else "gloo")
    device = "cuda" if nccl else "cpu"
    large, small = torch.zeros(1 << 20, device=device), torch.zeros(256, device=device)
    for step in range(10_000):
        sick = step == SICK_STEP
        if sick and fault == "link" and rank == 0:
            with Path(os.environ["RECORD_LINK"]).open("r+b") as stream:
                page = mmap.mmap(stream.fileno(), PAGE_BYTES)
            struct.pack_into("<iiiqQ", page, 4, SENDER, RECEIVER, 0, 150_000, 0)
            struct.pack_into("<i", page, 0, 1)
        if sick and fault == "gpu" and rank == STUCK:
            torch.cuda._sleep(1 << 40) if nccl else time.sleep(600)
        dist.all_reduce(large)
        dist.all_reduce(small)
        if nccl:
            torch.cuda.synchronize()


def build(scratch: Path) -> Path:
    shared = [shutil.which("cc") or "gcc", "-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread"]
    plugin = [*shared, "-fvisibility=hidden", "-Wl,-z,nodelete", REPOSITORY / "native" / "blackbox.c", "-o", PLUGIN]
    subprocess.run([*plugin, "-ldl"], check=True)
    stop = scratch / "stop_sends.so"
    subprocess.run([*shared, HERE / "stop_sends.c", "-o", stop, "-ldl"], check=True)
    return stop


class Trial:
    """One job under `hangscope run`."""

    def __init__(self, name: str, scratch: Path, stop: Path) -> None:
        self.name, (self.fault, self.timed) = name, TRIALS[name]
        self.folder = scratch / name
        page = scratch / f"{name}.link"
        page.write_bytes(bytes(PAGE_BYTES))
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("NCCL_", "TORCH_"))}
        environ |= {
            "PYTHONPATH": str(REPOSITORY / "src"),
            "OMP_NUM_THREADS": "1",
            "LIVE_FAULT": self.fault,
            "RECORD_LINK": str(page),
            "LD_PRELOAD": str(stop),
            # What makes `run` take the job for one of several nodes; torchrun does not look at it.
            "SLURM_NNODES": "1" if self.timed else str(RANKS),
        }
        run = [sys.executable, "-m", "hangscope", "run", "--dir", str(self.folder), "--job", name, "--stall-after", "8"]
        launch = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--master-port",
            str(29510 + 7 * list(TRIALS).index(name)),
        ]
        words = [*run, "--", *launch, f"--nproc-per-node={RANKS}", str(Path(__file__).resolve()), "--worker"]
        self.log = (scratch / f"{name}.txt").open("wb")
        self.process = subprocess.Popen(
            words, env=environ, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True
        )

    def verdict(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.folder / "verdict.json").read_text())
        except (OSError, ValueError):
            return None
        return found

    def end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(12)
                break
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        self.log.close()


def judged(trial: Trial, found: dict[str, Any] | None) -> str:
    """One line: right or not, what the verdict says, and which settings the ranks had."""
    settings = next(iter(trial.folder.glob("nodes/*/node.json")), None)
    had = json.loads(settings.read_text())["settings"] if settings else {}
    timing = had.get("TORCH_NCCL_ENABLE_TIMING", "not set")
    boxes = len(list(trial.folder.glob("nodes/*/blackbox/*.ncclbb")))
    state = f"timing {timing}, plugin {'set' if had.get('NCCL_PROFILER_PLUGIN') else 'not set'}, {boxes} boxes"
    if found is None:
        return f"{trial.name:11} NO VERDICT ({state})"
    link = found["link"] and (found["link"]["from"]["rank"], found["link"]["to"]["rank"])
    who = [culprit["rank"] for culprit in found["culprits"]]
    right = link == (SENDER, RECEIVER) if trial.fault == "link" else (found["kind"], who) == ("gpu", [STUCK])
    as_set = (timing == "1") is trial.timed
    said = f"{found['kind']} {found['confidence']} culprits {who} link {link}"
    return f"{trial.name:11} {'right' if right else 'WRONG'} {'' if as_set else 'WRONG SETTING '}{said} ({state})"


def live(scratch: Path, out: Path, seconds: float) -> list[str]:
    stop = build(scratch)
    trials = [Trial(name, scratch, stop) for name in TRIALS]
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(trial.verdict() is None for trial in trials):
        if all(trial.process.poll() is not None for trial in trials):
            break
        time.sleep(0.5)
    lines = []
    for trial in trials:
        found = trial.verdict()
        lines.append(judged(trial, found))
        trial.end()
        text = trial.folder / "verdict.txt"
        shown = (
            text.read_text() if text.exists() else (scratch / f"{trial.name}.txt").read_text(errors="replace")[-4000:]
        )
        (out / f"{trial.name}.txt").write_text(shown)
        if trial.folder.exists():
            subprocess.run(["tar", "czf", out / f"{trial.name}.tar.gz", "-C", scratch, trial.name], check=False)
    return lines


def bench(scratch: Path, seconds: float) -> list[str]:
    pipe = scratch / "mps"
    env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
    control = shutil.which("nvidia-cuda-mps-control")
    if control:
        pipe.mkdir()
        subprocess.run([control, "-d"], env=env, check=False)
        time.sleep(2)
    command = [sys.executable, str(REPOSITORY / "tests" / "bench_overhead.py"), "--backend", "nccl", "--ranks", "4"]
    command += ["--plugin", str(PLUGIN), "--timing", "--starts", "1"]
    lines, until = [], time.monotonic() + seconds
    try:
        for more in (["--step", "fsdp", "--rounds", "14", "--turn", "0.5"], ["--step", "tiny", "--rounds", "12"]):
            left = until - time.monotonic()
            if left < 30:
                lines.append(f"{' '.join(more)}: no time left")
                break
            try:
                done = subprocess.run(
                    [*command, *more], env=env, capture_output=True, text=True, check=False, timeout=left
                )
                lines.append(done.stdout + (done.stderr[-2000:] if done.returncode else ""))
            except subprocess.TimeoutExpired:
                lines.append(f"{' '.join(more)}: did not end in time")
    finally:
        if control:
            subprocess.run([control], input="quit\n", text=True, env=env, check=False, timeout=20)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the verdicts, incidents and figures go")
    parser.add_argument("--seconds", type=float, default=280, help="the most it takes in all")
    parser.add_argument("--bench-seconds", type=float, default=170, help="of which for the step times; 0 for none")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker()
        return 0
    began = time.monotonic()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="live.") as name:
        scratch = Path(name)
        lines = live(scratch, arguments.out, arguments.seconds - arguments.bench_seconds - 25)
        print("\n".join(lines), flush=True)
        if arguments.bench_seconds:
            lines += bench(scratch, min(arguments.bench_seconds, arguments.seconds - (time.monotonic() - began)))
    lines.append(f"{time.monotonic() - began:.0f} s in all")
    (arguments.out / "live.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines[len(TRIALS) :]))
    return 0 if all(" right " in line and "WRONG" not in line for line in lines[: len(TRIALS)]) else 1


if __name__ == "__main__":
    sys.exit(main())
