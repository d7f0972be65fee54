"""How long a whole diagnosis takes and how much memory, beside torchfrtrace and a bare unpickler on the same files.

    make bench                                        # 64 x 2,000 and 256 x 2,000 entries, minutes
    python benchmarks/bench.py 1024x2000 8x200000     # the sizes of the README
    python benchmarks/bench.py 16384x2000 --only hangscope --rounds 1

The dumps are of `hangscope simulate`: one FSDP job in which a rank does not come. The tools take turns on the same
files in one run, so that a busy machine slows all of them alike: read the ratios, not the seconds. Seconds of the
processor (user and system, all processes) tell what a tool costs where other work runs beside it. Memory is the most
that the whole process tree has at a time, with what processes share counted once (PSS). torchfrtrace is the one of the
installed torch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SAMPLE_S = 0.05
DEFAULT = ["64x2000", "256x2000"]
UNPICKLE = """
import pickle, sys
from pathlib import Path
for path in sorted(Path(sys.argv[1]).glob("nccl_trace_rank_*"), key=lambda p: int(p.name.rpartition("_")[2])):
    pickle.loads(path.read_bytes())
"""
PEER = "from torch.distributed.flight_recorder.fr_trace import main\nimport sys\nmain(sys.argv[1:])\n"


@dataclass
class Run:
    """One whole command: seconds, those of all its processors, bytes, exit status."""

    seconds: float
    cpu: float
    peak: int
    status: int


def commands(folder: Path) -> dict[str, list[str]]:
    python = sys.executable
    return {
        "hangscope": [python, "-m", "hangscope", "diagnose", "--json", str(folder)],
        "torchfrtrace": [python, "-c", PEER, str(folder), "-p", "nccl_trace_rank_"],
        "unpickler": [python, "-c", UNPICKLE, str(folder)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=DEFAULT, metavar="RANKSxENTRIES")
    parser.add_argument("--rounds", type=int, default=3, help="how often each tool reads each job")
    parser.add_argument("--only", action="append", help="of hangscope, torchfrtrace, unpickler")
    parser.add_argument("--layout", default="", help="of the job, as in `hangscope simulate --layout`")
    parser.add_argument("--keep", type=Path, help="where the dumps are written and left")
    parser.add_argument("--json", type=Path, dest="out", help="also write the figures here")
    options = parser.parse_args()
    figures = []
    for size in options.sizes:
        ranks, _, entries = size.partition("x")
        with jobs(int(ranks), int(entries), options.layout, options.keep) as folder:
            figures.append(measure(size, folder, options.rounds, options.only))
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


@contextmanager
def jobs(ranks: int, entries: int, layout: str, keep: Path | None) -> Iterator[Path]:
    """A folder with the dumps of a simulated job, flat and named as torchfrtrace wants them."""
    with tempfile.TemporaryDirectory(prefix="hangscope-bench-") as made:
        folder = (keep or Path(made)) / f"{ranks}x{entries}{'-' + layout if layout else ''}"
        if not folder.exists():
            words = f"--ranks {ranks} --entries {entries} --fault absent --seed 1 --no-evidence".split()
            whole = folder.parent / f"{folder.name}.part"
            subprocess.run(
                [sys.executable, "-m", "hangscope", "simulate", "-o", whole, *words, "--layout", layout],
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            folder.mkdir()
            for path in whole.glob("*/*_rank_*"):
                path.rename(folder / f"nccl_trace_rank_{path.name.rpartition('_')[2]}")
        yield folder


def measure(size: str, folder: Path, rounds: int, only: list[str] | None) -> dict[str, object]:
    tools = {name: words for name, words in commands(folder).items() if not only or name in only}
    total = sum(path.stat().st_size for path in folder.iterdir())
    runs: dict[str, list[Run]] = {name: [] for name in tools}
    for path in folder.iterdir():
        path.read_bytes()  # a warm file cache for whoever comes first
    for _ in range(rounds):
        for name, words in tools.items():
            runs[name].append(run(words))
    medians = {name: median(found) for name, found in runs.items()}
    print(f"\n{size}: {total / 1e6:,.0f} MB of dumps, median of {rounds}", flush=True)
    print(f"  {'':14}{'seconds':>10}{'cpu':>10}{'peak MB':>10}{'x time':>9}{'x cpu':>9}{'x memory':>10}")
    first = next(iter(medians.values()))
    figures: dict[str, object] = {"size": size, "bytes": total}
    for name, found in medians.items():
        status = [one.status for one in runs[name]]
        figures[name] = {"seconds": found.seconds, "cpu_seconds": found.cpu, "peak_bytes": found.peak, "status": status}
        failed = "" if set(status) <= {0, 1} else f"  failed: {status[0]}"
        row = f"  {name:14}{found.seconds:10.2f}{found.cpu:10.2f}{found.peak / 1e6:10.0f}"
        row += f"{found.seconds / first.seconds:9.1f}{found.cpu / first.cpu:9.1f}{found.peak / first.peak:10.1f}"
        print(f"{row}{failed}", flush=True)
    return figures


def median(runs: list[Run]) -> Run:
    """Of each figure by itself."""
    return Run(
        seconds=statistics.median(one.seconds for one in runs),
        cpu=statistics.median(one.cpu for one in runs),
        peak=int(statistics.median(one.peak for one in runs)),
        status=runs[0].status,
    )


def run(words: list[str]) -> Run:
    started = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = [0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_S):
            peak[0] = max(peak[0], tree_bytes(process.pid))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    _, waited, used = os.wait4(process.pid, 0)
    status = process.returncode = os.waitstatus_to_exitcode(waited)
    seconds = time.perf_counter() - started
    done.set()
    watcher.join()
    return Run(seconds, used.ru_utime + used.ru_stime, peak[0], status)


def tree_bytes(pid: int) -> int:
    """The memory of a process and all below it, in bytes."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as stream:
            own = next((int(line.split()[1]) << 10 for line in stream if line.startswith("Pss:")), 0)
        children = [
            int(child)
            for task in os.listdir(f"/proc/{pid}/task")
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii").split()
        ]
    except OSError:  # it ended while we looked
        return 0
    return own + sum(map(tree_bytes, children))


if __name__ == "__main__":
    main()
