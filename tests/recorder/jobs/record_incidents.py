"""Record incidents of real jobs through `hangscope run`, each with its truth, two nodes of two ranks on one machine.

    python tests/recorder/jobs/record_incidents.py --backend nccl --out incidents.tar.gz

With NCCL all ranks share one GPU (see tests/record/README.md). Prints one line a fault: the verdict, the truth, and the
seconds from the fault to the verdict.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
sys.path[:0] = [str(SOURCE), str(HERE.parent / "record")]
from record_neutral import leaks, neutralise, pack  # noqa: E402 -- a neighbour that is no package

from hangscope.incident import manifest  # noqa: E402 -- from this working copy

FAULTS = {
    "sleep": ("absent", 2),
    "raise": ("dead", 1),
    "kill": ("dead", 3),
    "exit": ("dead", 2),
    "stop": ("frozen", 1),
    "gil": ("frozen", 3),
    "mismatch": ("mismatch", 0),
    "gpu": ("gpu", 1),
}
NODES = ("gpu-worker-6", "gpu-worker-7")
THRESHOLD_S = 3.0
WORKSPACE = Path("/workspace")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="nccl")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=20, help="of a collective; PyTorch's watchdog fires then")
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="record."))
    WORKSPACE.mkdir(exist_ok=True)
    shutil.copy(HERE / "train.py", WORKSPACE / "train.py")
    wanted = options.only.split(",") if options.only else [f for f in FAULTS if f != "gpu" or options.backend == "nccl"]
    with ThreadPoolExecutor(options.parallel) as pool:
        for line in pool.map(lambda fault: record(fault, scratch / "incidents" / fault, options), wanted):
            print(line, flush=True)
    words = replacements(scratch)
    for problem in neutralise(scratch / "incidents", words):
        print(f"not neutral: {problem}")
    for path in (scratch / "incidents").rglob("nvidia-smi.txt"):
        path.write_text(re.sub(r"(?m)^( +(?:GPU UUID|Serial Number|GPU PDI) +: ).*$", r"\1N/A", path.read_text()))
    for incident in sorted((scratch / "incidents").glob("*/")):
        manifest.write(incident, manifest.build(incident, manifest.read(incident)))
    for leak in leaks(scratch / "incidents", [old for old, _ in words]):
        print(f"leak: {leak}")
    pack(scratch / "incidents", options.out)
    shutil.rmtree(scratch)
    return 0


def replacements(scratch: Path) -> list[tuple[str, str]]:
    import torch

    site = str(Path(torch.__file__).parents[1])
    found = [
        (str(scratch), "/shared"),
        (site, "/usr/lib/python3/dist-packages"),
        (str(SOURCE), "/usr/lib/python3/dist-packages"),
        (sys.prefix, "/usr"),
        (socket.gethostname(), NODES[0]),
        (platform.release(), "6.8.0"),
    ]
    return [(old, new) for old, new in found if old and old != "localhost"]


def record(fault: str, incident: Path, options: argparse.Namespace) -> str:
    kind, culprit = FAULTS[fault]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    begun = time.monotonic()
    runs = [launch(fault, culprit, incident, node, port, options) for node in range(len(NODES))]
    until(lambda: (incident / "verdict.txt").exists(), 90)
    fault_at = injected(incident)
    seconds = (incident / "verdict.txt").stat().st_mtime - fault_at if (incident / "verdict.txt").exists() else None
    if fault in ("sleep", "stop"):  # let PyTorch's own watchdog fire too: that adds its dumps and a second capture
        until(lambda: any(process.poll() is not None for process in runs), options.timeout + 15)
    kill_ranks(incident)
    for process in runs:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
    truth = {"case": fault, "hang": True, "kind": kind, "culprits": [culprit], "backend": options.backend}
    (incident / "truth.json").write_text(json.dumps(truth) + "\n")
    verdict = json.loads((incident / "verdict.json").read_text()) if (incident / "verdict.json").exists() else {}
    said = (verdict.get("kind"), [each["rank"] for each in verdict.get("culprits", ())])
    right = "right" if said == (kind, [culprit]) else "WRONG"
    late = f"{seconds:.1f} s after the fault" if seconds is not None else "no verdict"
    return f"{fault:9} {right}  said {said}  truth {(kind, [culprit])}  {late}  {time.monotonic() - begun:.0f} s in all"


def launch(
    fault: str, culprit: int, incident: Path, node: int, port: int, options: argparse.Namespace
) -> subprocess.Popen[bytes]:
    head = [sys.executable, "-m", "hangscope", "run", "--dir", str(incident), "--node", NODES[node]]
    head += ["--job", f"48{sum(map(ord, fault)) % 1000:03}", "--attempt", "0", "--stall-after", str(THRESHOLD_S), "--"]
    rendezvous = ["--nnodes=2", f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *rendezvous, "--nproc-per-node=2"]
    own = [str(WORKSPACE / "train.py"), "--fault", fault, "--rank", str(culprit), "--backend", options.backend]
    log = incident.with_name(f"{incident.name}.{node}.txt")
    log.parent.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))}
    with log.open("wb") as stream:
        return subprocess.Popen(
            [*head, *torchrun, *own, "--timeout", str(options.timeout)],
            stdout=stream,
            stderr=stream,
            env={**environ, "OMP_NUM_THREADS": "1"},
        )


def until(condition: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.2)
    return False


def injected(incident: Path) -> float:
    for path in incident.glob("nodes/*/logs/launcher.log"):
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith("fault at "):
                return float(line.split()[2])
    return float("nan")


def kill_ranks(incident: Path) -> None:
    for path in incident.glob("nodes/*/status.json"):
        for row in json.loads(path.read_text())["live"]:
            if row["state"] != "gone":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(row["pid"], signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
