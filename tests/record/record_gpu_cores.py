"""Record GPU core dumps of four NCCL ranks on one GPU, of which one goes wrong: what the GPU itself says.

    python3 tests/record/record_gpu_cores.py --out FOLDER [--mps]

Needs one GPU and a PyTorch with NCCL. Four jobs, some 15 s each: `spin` (rank 2 runs a kernel that never ends, the
others are inside an all_reduce), `graph` (an all_reduce of a replayed CUDA graph, rank 2 asleep), `absent` (a plain
all_reduce, rank 2 asleep), `idle` (nothing runs anywhere). All ranks are asked at once. The machine code in a core is
zeroed, which nobody reads and which is nearly all of it; each core lies as FOLDER/JOB.rank_N.core.xz, and what was seen
meanwhile in FOLDER/summary.txt.
"""

from __future__ import annotations

import argparse
import lzma
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOBS = ("spin", "graph", "absent", "idle")
RANKS = 4
SICK = 2
FLAGS = ",".join(
    (
        "skip_nonrelocated_elf_images",
        "skip_global_memory",
        "skip_shared_memory",
        "skip_local_memory",
        "skip_constbank_memory",
        "skip_abort",
    )
)
SYMBOLS, STRINGS, NO_BITS = 2, 3, 8


def worker(job: str, notes: Path) -> None:
    rank = int(os.environ["RANK"])
    os.environ.update(
        NCCL_HOSTID=f"cores{os.getppid()}-{rank}",
        NCCL_NET="Socket",
        NCCL_IB_DISABLE="1",
        NCCL_SOCKET_IFNAME="lo",
        NCCL_P2P_DISABLE="1",
        NCCL_SHM_DISABLE="1",
        NCCL_MAX_NCHANNELS="2",
    )
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    tensor = torch.ones(4096, device="cuda")
    for _ in range(3):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        dist.all_reduce(tensor)
    captured.replay()
    torch.cuda.synchronize()
    (notes / f"{rank}").write_text(str(os.getpid()))
    if job == "spin" and rank == SICK:
        torch.cuda._sleep(1 << 62)
    elif rank != SICK and job == "graph":
        captured.replay()
    elif rank != SICK and job != "idle":
        dist.all_reduce(tensor)
    time.sleep(1000)


# ---- what is kept of a core ------------------------------------------------------------------------------------------


def sections(data: bytes | bytearray, at: int = 0) -> list[tuple[str, int, int, int]]:
    """Name, type, offset in `data` and size of each section of the ELF file at `at`."""
    table_at = struct.unpack_from("<Q", data, at + 40)[0]
    size, count, names = struct.unpack_from("<HHH", data, at + 58)
    heads = [struct.unpack_from("<IIQQQQ", data, at + table_at + number * size) for number in range(count)]
    names_at = at + heads[names][4]
    found = []
    for name, kind, _, _, offset, length in heads:
        end = data.index(b"\0", names_at + name)
        found.append((data[names_at + name : end].decode(), kind, at + offset, length))
    return found


def without_code(core: bytes) -> bytes:
    kept = bytearray(core)
    for name, _, at, _ in sections(core):
        if name.startswith(".cudbg.relfimg"):
            for _, kind, inner_at, length in sections(core, at):
                if kind not in (SYMBOLS, STRINGS, NO_BITS):
                    kept[inner_at : inner_at + length] = bytes(length)
    return bytes(kept)


# ---- one job ---------------------------------------------------------------------------------------------------------


def record(job: str, out: Path) -> list[str]:
    said = [f"== {job}"]
    with tempfile.TemporaryDirectory(prefix="cores.") as name:
        place = Path(name)
        notes = place / "notes"
        notes.mkdir()
        environ = {
            **os.environ,
            "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
            "CUDA_COREDUMP_PIPE": f"{name}/pipe.%p",
            "CUDA_COREDUMP_FILE": f"{name}/core.%p",
            "CUDA_COREDUMP_GENERATION_FLAGS": FLAGS,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(20000 + os.getpid() % 20000 + JOBS.index(job)),
            "WORLD_SIZE": str(RANKS),
        }
        words = [sys.executable, __file__, "--worker", job, "--notes", str(notes)]
        ranks = [subprocess.Popen(words, env={**environ, "RANK": str(rank)}) for rank in range(RANKS)]
        try:
            until = time.monotonic() + 60
            while len(list(notes.iterdir())) < RANKS and time.monotonic() < until:
                time.sleep(0.1)
            time.sleep(4.0)
            said += ask([rank.pid for rank in ranks], place)
            for number, rank in enumerate(ranks):
                core = place / f"core.{rank.pid}"
                if core.exists():
                    said.append(keep(core.read_bytes(), out / f"{job}.rank_{number}.core.xz"))
        finally:
            for rank in ranks:
                rank.send_signal(signal.SIGKILL)
                rank.wait()
    return said


def ask(pids: list[int], place: Path) -> list[str]:
    said = []
    begun = time.monotonic()
    for pid in pids:
        pipe = place / f"pipe.{pid}"
        mode = oct(pipe.stat().st_mode) if pipe.exists() else "none"
        try:
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            said.append(f"pid {pid}: pipe {mode}: {error}")
            continue
        os.write(descriptor, b"1")
        os.close(descriptor)
        said.append(f"pid {pid}: pipe {mode} written after {1e3 * (time.monotonic() - begun):.1f} ms")
    sizes: dict[int, int] = {}
    while time.monotonic() < begun + 12:
        for pid in pids:
            core = place / f"core.{pid}"
            size = core.stat().st_size if core.exists() else 0
            if size != sizes.get(pid, 0):
                sizes[pid] = size
                said.append(f"pid {pid}: {size} bytes after {1e3 * (time.monotonic() - begun):.0f} ms")
        time.sleep(0.005)
    return said


def keep(core: bytes, path: Path) -> str:
    trimmed = without_code(core)
    path.write_bytes(lzma.compress(trimmed, preset=6))
    lines = [f"{path.name}: {len(core)} bytes, {path.stat().st_size} packed"]
    for name, kind, _, length in sections(core)[:60]:
        lines.append(f"    {name} type {kind} {length}")
    for name, _, at, length in sections(core):
        if name.startswith(".cudbg.gridtbl"):
            lines.append(f"    {name}: {core[at : at + min(length, 0x220)].hex()}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--mps", action="store_true", help="all ranks at once on the GPU, by NVIDIA's MPS")
    parser.add_argument("--only", default=",".join(JOBS))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--notes", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.worker, given.notes)
    given.out.mkdir(parents=True, exist_ok=True)
    if given.mps:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
    try:
        for job in given.only.split(","):
            text = "\n".join(record(job, given.out))
            print(text, flush=True)
            with (given.out / "summary.txt").open("a") as summary:
                summary.write(text + "\n")
    finally:
        if given.mps:
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
