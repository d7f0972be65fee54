"""How fast a bundle is made, against `tar czf` on the same files in the same run.

    python tests/bench_bundle.py [--dumps 1024] [--entries 2000] [--rounds 3]

Not collected by pytest: it writes half a gigabyte. test_bundle.py runs a small one.
"""

from __future__ import annotations

import argparse
import pickle
import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

KEYS = (
    "frames", "record_id", "pg_id", "process_group", "thread_name", "thread_id", "collective_seq_id", "p2p_seq_id",
    "op_id", "profiling_name", "time_created_ns", "duration_ms", "input_sizes", "input_dtypes", "output_sizes",
    "output_dtypes", "state", "time_discovered_started_ns", "time_discovered_completed_ns", "retired", "timeout_ms",
    "is_p2p",
)  # fmt: skip


def write_dumps(folder: Path, *, dumps: int, entries: int, home: str = "/home/alice/project") -> None:
    """Dumps as a flight recorder writes them: protocol 2, every string and frame once, numbers that do not repeat."""
    names = [f"nccl:{name}" for name in ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "all_to_all")]
    for rank in range(dumps):
        noise = random.Random(rank)
        frames = [
            {"name": f"step_{depth}", "filename": f"{home}/train_{depth}.py", "line": 100 + depth}
            for depth in range(30)
        ]
        stacks = [noise.sample(frames, 12) for _ in range(6)]
        group = ("0", "default_pg")
        dtypes, thread, thread_id = ["BFloat16"], "pt_main_thread", str(noise.getrandbits(47))
        now = 1_794_705_000_000_000_000
        rows = []
        for index in range(entries):
            now += noise.randrange(200_000, 40_000_000)
            size = [noise.choice((4096, 8192, 11008)) * noise.randrange(1, 64)]
            values = (
                stacks[index % 6], index, 0, group, thread, thread_id, index, 0, index, names[index % 4], now,
                noise.random() * 9, [size], dtypes, [size], dtypes, "completed", now + noise.randrange(10**6),
                now + noise.randrange(10**7), True, 600000, False,
            )  # fmt: skip
            rows.append(dict(zip(KEYS, values, strict=True)))
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(dumps)))}}
        top = {"version": "2.10", "pg_config": config, "comm_lib_version": "2.28.9", "pg_status": {}, "entries": rows}
        path = folder / f"node-{rank // 8:03d}" / f"nccl_trace_rank_{rank}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(top, protocol=2))


def compare(folder: Path, scratch: Path, *, rounds: int = 3, pseudonymise: bool = False) -> tuple[float, float]:
    """(seconds of `tar czf`, seconds of `bundle`), the medians of interleaved rounds."""
    from hangscope.incident.bundle import write_bundle

    theirs, ours = [], []
    for number in range(rounds):
        start = time.perf_counter()
        subprocess.run(["tar", "czf", scratch / f"t{number}.tar.gz", "-C", folder.parent, folder.name], check=True)
        theirs.append(time.perf_counter() - start)
        start = time.perf_counter()
        write_bundle(folder, scratch / f"b{number}.tar.gz", pseudonymise=pseudonymise)
        ours.append(time.perf_counter() - start)
    return sorted(theirs)[rounds // 2], sorted(ours)[rounds // 2]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dumps", type=int, default=1024)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="use these dumps instead of making some")
    parser.add_argument("--pseudonymise", action="store_true")
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="hangscope-bench-"))
    try:
        folder = options.dir or scratch / "dumps"
        if options.dir is None:
            write_dumps(folder, dumps=options.dumps, entries=options.entries)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        theirs, ours = compare(folder, scratch, rounds=options.rounds, pseudonymise=options.pseudonymise)
        print(f"{size / 1e6:.0f} MB: tar czf {theirs:.1f} s, bundle {ours:.1f} s, {theirs / ours:.2f} times its speed")
        for path in (scratch / "t0.tar.gz", scratch / "b0.tar.gz"):
            print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
