"""GPU or CPU: FSDP2 jobs of four ranks on one GPU under `hangscope run`, whose rank 3 goes wrong on either side.

    python tests/record/gpu_or_cpu.py --out incidents.tar.gz

Three faults, one after the other, under four minutes together: `kernel` (a kernel that never ends on rank 3: it and its
victims fill their launch queues and hold their GIL in a CUDA call), `regex` (Python code that holds the GIL) and
`sleep`. Prints for each what was injected, the first lines of the verdict, who held the GIL, and the native frames and
calls of the kernel that were read. `--backend gloo` tries the program without a GPU (without `kernel`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
FAULTS = {"kernel": "gpu", "regex": "frozen", "sleep": "absent"}
RANKS = 4
ODD = 3
VERDICT_S = 65.0
THRESHOLD_S = 6.0


# ---- one rank --------------------------------------------------------------------------------------------------------


def clean_text(text: str) -> object:
    return re.match(r"(a+)+$", text)


def stuck_in_loader() -> None:
    time.sleep(1000)


def go_wrong(fault: str) -> None:
    import torch

    if fault == "kernel":
        for _ in range(4):
            torch.cuda._sleep(1 << 62)
    elif fault == "regex":
        clean_text("a" * 80 + "b")
    elif fault == "sleep":
        stuck_in_loader()


def train(fault: str, backend: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    device = "cuda" if backend == "nccl" else "cpu"
    if device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(backend)
    width, depth = (512, 24) if device == "cuda" else (16, 2)
    layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(depth)]
    model = torch.nn.Sequential(*layers).to(device)
    if device == "cuda":
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device, (dist.get_world_size(),))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)  # many small kernels: the queue fills
    fault_at = 30 if device == "cuda" else 20  # on one GPU four ranks take turns: some 0.4 s a step
    for step in range(100_000):
        if step == fault_at and dist.get_rank() == ODD:
            os.write(1, f"fault at {time.time():.3f}\n".encode())
            go_wrong(fault)
        loss = model(torch.randn(64, width, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 and step < fault_at:
            loss.item()
        if backend == "gloo":
            time.sleep(0.02)


# ---- the command -----------------------------------------------------------------------------------------------------


def run(fault: str, backend: str, folder: Path) -> bool:
    """Whether the verdict is what was injected."""
    incident = folder / fault
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    if backend == "nccl":  # several ranks on one GPU: NCCL must take each for a node of its own
        environ |= {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_MAX_CTAS": "1"}
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    job += [__file__, "--fault", fault, "--backend", backend]
    watch = [sys.executable, "-m", "hangscope", "run", "--dir", str(incident), "--stall-after", str(THRESHOLD_S), "--"]
    with (folder / f"{fault}.log").open("wb") as log:
        process = subprocess.Popen([*watch, *job], stdout=log, stderr=log, env=environ, start_new_session=True)
        end = time.monotonic() + VERDICT_S
        while time.monotonic() < end and process.poll() is None and after_fault(folder, fault) is None:
            time.sleep(0.5)
        time.sleep(3.0)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                os.killpg(process.pid, number)
                time.sleep(3.0)
    return told(fault, after_fault(folder, fault) or incident, folder / f"{fault}.log")


def after_fault(folder: Path, fault: str) -> Path | None:
    """The incident whose verdict came after the fault: a slow start may have been one of its own."""
    begun = re.search(rb"fault at ([\d.]+)", (folder / f"{fault}.log").read_bytes())
    verdicts = [
        path for path in folder.glob(f"{fault}*/verdict.txt") if begun and path.stat().st_mtime > float(begun[1])
    ]
    return max(verdicts, key=lambda path: path.stat().st_mtime).parent if verdicts else None


def told(fault: str, incident: Path, log: Path) -> bool:
    print(f"==== {fault}: injected on rank {ODD}, expected {FAULTS[fault]}", flush=True)
    if not (incident / "verdict.json").exists():
        print(f"no verdict; the log ends with\n{log.read_text(errors='replace')[-1500:]}", flush=True)
        return False
    verdict = json.loads((incident / "verdict.json").read_text())
    print("\n".join((incident / "verdict.txt").read_text().splitlines()[:40]))
    for row in (row for node in incident.glob("nodes/*/node.json") for row in json.loads(node.read_text())["ranks"]):
        names = ("rank", "state", "wait_channel", "python_answers", "syscall", "syscall_file", "gpu_busy_percent")
        print({name: row.get(name) for name in names})
    for stack in sorted(incident.glob(f"nodes/*/stacks/rank_{ODD}.*.txt")):
        print("\n".join([stack.name, *(line[:150] for line in stack.read_text(errors="replace").splitlines()[:25])]))
    culprits = [culprit["rank"] for culprit in verdict["culprits"]]
    right = (verdict["kind"], culprits) == (FAULTS[fault], [ODD])
    print(
        f"---- {fault}: {'right' if right else 'WRONG'}: {verdict['kind']} {culprits}: {verdict['headline']}",
        flush=True,
    )
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default=",".join(FAULTS))
    parser.add_argument("--fault", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fault:
        os.environ["NCCL_HOSTID"] = f"rank{os.environ['RANK']}"
        train(options.fault, options.backend)
        return 0
    folder = Path(tempfile.mkdtemp(prefix="gpu_or_cpu."))
    chosen = [fault for fault in options.only.split(",") if options.backend == "nccl" or fault != "kernel"]
    right = [run(fault, options.backend, folder) for fault in chosen]
    print(f"{sum(right)} of {len(right)} right")
    if options.out is not None:
        with tarfile.open(options.out, "w:gz") as archive:
            archive.add(folder, arcname="gpu_or_cpu")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
