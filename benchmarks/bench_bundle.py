"""How fast a bundle is made, against `tar czf` on the same files in the same run.

    python benchmarks/bench_bundle.py [--dumps 1024] [--entries 2000] [--rounds 3]
    python benchmarks/bench_bundle.py --logs 4

The second makes logs of many kinds, of so many megabytes each, and says how much more CPU time it takes to redact one
than `gzip -6` takes on it. Not collected by pytest: it writes half a gigabyte. test_bundle.py runs a small one.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import pickle
import random
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
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
    from hangscope.bundle.pack import write_bundle

    theirs, ours = [], []
    for number in range(rounds):
        start = time.perf_counter()
        subprocess.run(["tar", "czf", scratch / f"t{number}.tar.gz", "-C", folder.parent, folder.name], check=True)
        theirs.append(time.perf_counter() - start)
        start = time.perf_counter()
        write_bundle(folder, scratch / f"b{number}.tar.gz", pseudonymise=pseudonymise)
        ours.append(time.perf_counter() - start)
    return sorted(theirs)[rounds // 2], sorted(ours)[rounds // 2]


WORDS = (
    "the", "a", "of", "model", "rank", "loads", "waits", "for", "step", "data", "shard", "worker", "with", "and",
    "from", "to", "in", "checkpoint", "saved", "reading", "cache", "miss", "gradient", "norm", "overflow", "skipped",
    "scaling", "optimizer", "state", "layer", "attention",
)  # fmt: skip
VARIABLES = ("PATH=/usr/local/bin:/usr/bin", "NCCL_DEBUG=INFO", "WORLD_SIZE=64", "LANG=C.UTF-8", "MASTER_ADDR=gpu-a017")


def log_kinds(size: int) -> Iterator[tuple[str, bytes]]:
    """Logs of many kinds, from what jobs write to nothing but secrets."""
    from kits.secrets import kinds as secret_kinds
    from kits.secrets.notations import NAMED, written

    r = random.Random(5)
    dice = secret_kinds.Dice(5)
    ALNUM = secret_kinds.LETTERS["a"]
    HEX = secret_kinds.LETTERS["x"]

    def some(letters: str, count: int) -> str:
        return "".join(r.choices(letters, k=count))

    def secret(known: bool) -> tuple[str, str]:
        made = made_secret(known)
        return made.name, made.value

    def made_secret(known: bool) -> secret_kinds.Secret:
        kinds = [kind for kind in secret_kinds.KINDS if kind.known_by_form or not known]
        return secret_kinds.secret(r.choice(kinds), dice)

    dump = [*VARIABLES, *("=".join(secret(known=False)) for _ in range(5))]
    kinds: dict[str, Callable[[int], str]] = {
        "pods": lambda i: (
            f"2026-11-12T10:{i // 60 % 60:02d}:{i % 60:02d}.{r.randrange(10**9):09d}Z stderr F pod/a-{some(HEX, 5)} "
            f"step={i} loss={r.random():.4f} key_cache_hit={r.random():.2f}"
        ),
        "keys of a checkpoint": lambda i: (
            f"Loading key layers.{i % 80}.{r.choice(WORDS)}.{r.choice(WORDS)}.weight: "
            f"[{r.randrange(8192)}, 8192] {some(HEX, 16)}"
        ),
        "ids": lambda _: (
            f"request {some(HEX, 8)}-{some(HEX, 4)}-{some(HEX, 4)}-{some(HEX, 12)} done, "
            f"tokens={r.randrange(4096)}, run {some(ALNUM, 8)}"
        ),
        "paths of a user": lambda i: (
            f"[rank{i % 8}]: loading /home/alice/project/checkpoints/step_{i}/"
            f"model-{r.randrange(64):05d}-of-00064.safetensors"
        ),
        "Ray, coloured": lambda i: (
            f"\x1b[36m(RayTrainWorker pid={r.randrange(99999)}, ip=10.0.{i % 256}.{r.randrange(256)})\x1b[0m step {i} "
            f"loss {r.random():.4f} \x1b[32m{' '.join(r.choices(WORDS, k=4))}\x1b[0m"
        ),
        "containers, in JSON": lambda i: json.dumps(
            {
                "log": json.dumps({"msg": " ".join(r.choices(WORDS, k=8)), "step": i}) + "\n",
                "stream": "stderr",
                "t": r.random(),
            }
        ),
        "training": lambda i: (
            f"[rank{i % 8}]: 2026-11-15 02:{i // 60 % 60:02d}:{i % 60:02d} train.py:{r.randrange(400)} step {i} "
            f"loss {r.random() * 4:.4f} lr {r.random() * 1e-3:.2e} tokens/s {r.randrange(10**6)}"
        ),
        "NCCL INFO": lambda i: (
            f"gpu-a{i % 64:03d}:{800 + i % 8}:{900 + i % 40} [{i % 8}] NCCL INFO AllReduce: opCount {some(HEX, 4)} "
            f"sendbuff 0x7f{some(HEX, 10)} count {r.randrange(10**8)} comm 0x55{some(HEX, 10)} [nranks=64]"
        ),
        "key=value": lambda i: " ".join(f"{k}={r.randrange(10**6)}" for k in ("step", "loss", "tokens", "key_frames")),
        "running text": lambda i: f"{i} " + " ".join(r.choices(WORDS, k=r.randrange(4, 16))),
        "hexadecimal": lambda _: some(HEX, 64),
        "YAML, a key in ten lines": lambda i: (
            f"  api_key: {some(HEX, 40)}" if i % 10 == 6 else f"  layer_{i % 10}: {i}"
        ),
        "base64": lambda _: base64.b64encode(r.randbytes(57)).decode(),
        "addresses": lambda i: (
            f"GET https://a{i % 9}.x.io/v1/{some(HEX, 8)}?page={i}&name={some(ALNUM, 6)}&token_count=3"
        ),
        "environments": lambda i: f"[rank{i // 10 % 8}]: {dump[i % 10]}",
        "JSON, two secrets a line": lambda i: json.dumps(
            {"step": i, "token": some(ALNUM, 20), "password": some(ALNUM, 12)}
        ),
        "passwords": lambda _: f"password={some(ALNUM, 16)}",
        "values of many names": lambda _: "=".join(secret(known=False)),
        "tokens alone": lambda _: secret(known=True)[1],
        "every notation": lambda _: written(r.choice(NAMED), made_secret(known=False)).text,
    }
    for kind, line in kinds.items():
        lines: list[str] = []
        length = 0
        while length < size:
            lines.append(line(len(lines)))
            length += len(lines[-1]) + 1
        yield kind, "\n".join(lines).encode()
    bar = "".join(
        f"\r {i % 100}%|{'#' * (i % 10):10}| {i}/10000 [{i % 60:02d}:01, {i % 7}.1it/s]" for i in range(size // 40)
    )
    yield "progress bar", bar.encode()
    yield "one line of words", " ".join(r.choice(WORDS) + str(i % 977) for i in range(size // 9)).encode()
    yield "one line of base64", base64.b64encode(r.randbytes(size * 3 // 4))


def compare_logs(size: int) -> None:
    """How much more CPU time redaction takes than gzip, for each kind of log."""
    from hangscope.bundle.redact.redact_file import Redactor

    for kind, data in log_kinds(size):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(["gzip", "-6", "-c"], input=data, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        packed = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        redactor = Redactor()
        begun = time.process_time()
        redactor.file(io.BytesIO(data), io.BytesIO())
        took = time.process_time() - begun
        print(f"{kind:26} {took / packed:6.1f} times gzip -6, {sum(redactor.counts.values()):7} replaced", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dumps", type=int, default=1024)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="use these dumps instead of making some")
    parser.add_argument("--pseudonymise", action="store_true")
    parser.add_argument("--logs", type=float, help="compare logs of this many megabytes with gzip instead")
    options = parser.parse_args()
    if options.logs:
        compare_logs(int(options.logs * 1e6))
        return
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
