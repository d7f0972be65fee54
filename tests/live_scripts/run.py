"""Start the jobs of this folder under `hangscope run`, healthy and hung, and say what the verdicts were worth.

    python tests/live_scripts/run.py [NAME…] [--together N] [--keep DIR]
    python tests/live_scripts/run.py --nccl            needs one GPU and a PyTorch with NCCL
    python tests/live_scripts/run.py --engines         the same: graphs, pynccl, weight sync, past the flight recorder
    python tests/live_scripts/run.py --shifts [nccl]   a rank leaves something out and nothing hangs; on Gloo by default

Prints one line a job as a table for docs/live.md: what was injected, what was said, and how long after the fault.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
PYTHON = sys.executable
SCRIPTS = ("stuck", "frameworks", "daily", "shapes", "everyday", "habits", "nccl", "shifted")
STUCK, FRAMEWORKS, DAILY, SHAPES, EVERYDAY, HABITS, NCCL, SHIFTED = (str(HERE / f"{name}.py") for name in SCRIPTS)
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3")
THRESHOLD_S = 6.0
LOOK_EVERY_S = 5.0
LONGEST_S = 150.0


@dataclass(frozen=True)
class Row:
    """One job and what is true of it: kind (or kinds, by |) and ranks of its fault, or a healthy run."""

    name: str
    words: tuple[str, ...]
    kind: str = "none"
    ranks: tuple[int, ...] = ()
    second: bool = False
    """The hang is in the second attempt."""
    looks: bool = False
    """Nothing hangs: the ranks' recordings are compared every few seconds, and the finding is in desync-1."""
    to_end: bool = False
    """It goes on by itself, and the verdict is corrected then."""
    alone: bool = False
    """It needs the machine for itself."""
    line: str = ""
    """The function of the culprit that the first two lines of the verdict have to name."""
    outcome: str = ""
    """The first word of the verdict, where it has to be that one."""
    also: str = ""
    """What else the verdict has to say, somewhere."""
    ended: tuple[str, ...] = ()
    """More options of `run`, by which hangscope ends the job itself."""
    says: str = ""
    """There is no verdict to be had, or none is due: what a line on stderr must say."""


DAILY_FAULTS = {
    "absent": (
        *("loader_lock", "child_killed", "async_save", "lone_group", "gather_objects", "fetch", "child_hangs"),
        *("fork_lock", "full_queue", "another_store"),
    ),
    "mismatch": (
        *("fewer_batches", "lone_barrier", "lone_full_tensor", "uneven_gather", "recompute", "swallowed"),
        "wrong_source",
    ),
    "dead": ("worker_killed", "raises_early"),
    "frozen": ("save_by_thread",),
}
SHAPE_FAULTS = {
    "absent": ("compile_long", "preempted", "other_file"),
    "mismatch": ("no_sync", "uneven_stream", "lone_redistribute", "wrong_splits", "microbatches", "other_tag"),
    "absent|mismatch": ("lone_gather", "missing_key", "leaves_early", "group_order"),
    "deadlock|mismatch": ("two_orders",),
    "dead": ("early_return", "own_exit", "hook_exit", "oom"),
    "frozen": ("stopped_for_ever",),
}


def _rows(folder: Path) -> list[Row]:
    wrapper, isolated = folder / "wrapper.sh", folder / "isolated.sh"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH=/nowhere exec {PYTHON} {STUCK} "$@"\n')
    isolated.write_text(f'#!/bin/sh\nexec {PYTHON} -I {STUCK} "$@"\n')
    for script in (wrapper, isolated):
        script.chmod(0o755)
    absent = {"kind": "absent", "ranks": (2,)}
    hung = [
        Row(f"{kind}, torchrun", (*TORCHRUN, FRAMEWORKS, kind, "--hang"), **absent)
        for kind in ("ddp", "fsdp2", "dtensor", "accelerate", "lightning")
    ]
    healthy = [
        Row(f"{kind}, torchrun, healthy", (*TORCHRUN, FRAMEWORKS, kind)) for kind in ("ddp", "fsdp2", "accelerate")
    ]
    stuck = [
        Row(f"{name}, torchrun", (*TORCHRUN, STUCK, name), **absent)
        for name in ("store", "groups", "mesh", "ring", "ring_reduce", "pipeline", "collective")
    ]
    killed = [
        Row("timeout of 5 s, torchrun", (*TORCHRUN, STUCK, "collective", "--timeout", "5"), **absent),
        Row("monitored_barrier, torchrun", (*TORCHRUN, STUCK, "monitored", "--timeout", "5"), **absent),
        Row("raises, torchrun", (*TORCHRUN, STUCK, "raises"), kind="dead", ranks=(2,)),
        Row("wrong shape, torchrun", (*TORCHRUN, STUCK, "wrong_shape"), kind="mismatch", ranks=(2,)),
        Row("other branch, torchrun", (*TORCHRUN, STUCK, "nan_branch"), kind="mismatch", ranks=(2,)),
    ]
    ways = [
        Row("ddp, mp.spawn", (PYTHON, FRAMEWORKS, "ddp", "--hang", "--spawn", "3", "--port", _port()), **absent),
        Row("ring, fork", (PYTHON, STUCK, "ring", "--fork", "3", "--port", _port()), **absent),
        Row("store, PYTHONPATH set by a wrapper", (*TORCHRUN, "--no-python", str(wrapper), "store"), **absent),
        Row("collective, python -I", (*TORCHRUN, "--no-python", str(isolated), "collective"), **absent),
        Row("restart, then hang", (*TORCHRUN, "--max-restarts=1", STUCK, "restarted"), "absent", (0,), second=True),
        Row("ddp in threads of Ray actors", (PYTHON, FRAMEWORKS, "ray", "--hang", "--port", _port()), **absent),
        Row("Ray Train", (PYTHON, FRAMEWORKS, "ray_train", "--hang"), **absent),
        Row("Ray Train, raises", (PYTHON, FRAMEWORKS, "ray_train", "--raises"), "dead", (2,)),
        Row("Ray Train, killed", (PYTHON, FRAMEWORKS, "ray_train", "--killed"), "dead", (2,)),
        Row("Ray Train, healthy", (PYTHON, FRAMEWORKS, "ray_train")),
        Row("jitter, torchrun, healthy", (*TORCHRUN, STUCK, "jitter", "--seconds", "20")),
        Row("no collective for long, healthy", (*TORCHRUN, STUCK, "quiet", "--seconds", "30")),
    ]
    return [*hung, *healthy, *stuck, *killed, *ways, *_daily(), *_shapes(), *_everyday(), *_habits()]


def _everyday() -> list[Row]:
    """Bugs of a person's first hour: the line in the first two lines of the verdict, and the right first word."""

    def row(name: str, kind: str, line: str, outcome: str = "hang", **more: Any) -> Row:
        words = (*TORCHRUN, EVERYDAY, name)
        return Row(f"{name}, torchrun", words, kind, more.pop("ranks", (1,)), line=line, outcome=outcome, **more)

    return [
        row("logs_on_one", "mismatch", "log_loss", "crash"),
        row("odd_last_batch", "mismatch", "odd_last_batch", "crash"),
        row("raises", "dead", "tokenize", "crash"),
        row("exits", "dead", "", "crash"),
        row("eval_on_one", "mismatch", "evaluate"),
        row("no_barrier", "mismatch", "no_barrier"),
        row("uneven_batches", "mismatch", "uneven_batches"),
        row("loader_blocks", "absent", "read_remote"),
        row("thread_dies", "absent", "thread_dies", also="KeyError: 'forty'"),
        row("caught_in_main", "absent", "wait_for_person", also="could not convert string"),
        row("error_skipped", "mismatch", "error_skipped", also="could not convert string"),
        row("oom_skipped", "mismatch", "oom_skipped", also="out of memory"),
        row("wrong_src", "unknown", "wrong_src", ranks=()),
        row("eval_for_long", "absent", "evaluate_all", "wait"),
        row("never_converges", "absent", "search_scale", "wait"),
        row("long_save", "absent", "save", "pause", to_end=True),
        row("last_save", "absent", "save", "pause", to_end=True),
        row("long_sleep", "absent", "wait_for_quota", "pause", to_end=True),
        Row("healthy, torchrun, everyday, healthy", (*TORCHRUN, EVERYDAY, "healthy")),
    ]


def _habits() -> list[Row]:
    """More of what people write, with two to four ranks; the last four need their frameworks."""

    def row(name: str, kind: str, line: str, outcome: str = "hang", size: int = 3, **more: Any) -> Row:
        words = (*TORCHRUN[:-1], f"--nproc-per-node={size}", HABITS, name, "--rank", str(more.get("ranks", (1,))[0]))
        return Row(f"{name}, torchrun", words, kind, more.pop("ranks", (1,)), line=line, outcome=outcome, **more)

    return [
        row("members_only", "absent|mismatch|deadlock", "members_only", size=4, ranks=(0,)),
        row("other_order", "absent|mismatch|deadlock", "other_order", size=4, ranks=(0, 1, 2, 3)),
        row("other_mesh", "absent|mismatch|deadlock", "other_mesh", size=4),
        row("callback_barrier", "mismatch", "save", size=2, ranks=(0,)),
        row("callback_fails", "mismatch", "callback_fails", also="KeyError(60)"),
        row("metric_missing", "mismatch", "metric_missing", "crash"),
        row("unused_on_one", "dead", "train_step", "crash"),
        row("object_left_out", "mismatch", ""),
        row("finally_barrier", "mismatch", "finally_barrier"),
        row("save_fails", "mismatch", "save_fails", also="No space left on device"),
        row("all_raise", "dead", "parse_schedule", "crash", ranks=(0, 1, 2)),
        row("crossed_receives", "deadlock", "exchange", size=4, ranks=(1, 2)),
        row("full_pipe", "absent", "convert"),
        row("pool_in_pool", "absent", "lambda"),
        row("future_never_set", "absent", "future_never_set"),
        row("database_locked", "absent", "store_results"),
        row("loader_times_out", "dead", "loader_times_out", "crash"),
        row("fsdp_eval_on_one", "mismatch", "forward", ranks=(0,)),
        row("dtensor_on_one", "mismatch", "dtensor_on_one", ranks=(0,)),
        *(
            Row(f"{name}, torchrun, healthy", (*TORCHRUN, HABITS, name))
            for name in ("accumulates", "overlaps", "sleeps_together", "short_evaluations", "background_group")
        ),
        row("accelerate_gather", "mismatch", "print_loss"),
        row("lightning_callback", "mismatch", "save"),
        row("trainer_callback", "mismatch", "log_all"),
        row("deepspeed_branch", "mismatch", "log_norm"),
    ]


def _shapes() -> list[Row]:
    """Other shapes of jobs, also without a launcher."""
    torchrun = [
        Row(f"{name}, torchrun", (*TORCHRUN, SHAPES, name), kind, (2,))
        for kind, names in SHAPE_FAULTS.items()
        for name in names
    ]
    four = (*TORCHRUN[:-1], "--nproc-per-node=4")
    launch = (PYTHON, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=3", "--num_machines=1")
    return [
        *torchrun,
        Row("zero_barrier, torchrun", (*TORCHRUN, SHAPES, "zero_barrier"), "mismatch", (0,)),
        Row("zero_state_dict, torchrun", (*TORCHRUN, SHAPES, "zero_state_dict"), "mismatch", (0,)),
        Row("first_downloads, torchrun", (*TORCHRUN, SHAPES, "first_downloads"), "absent", (0,)),
        Row("other_dimension, torchrun", (*four, SHAPES, "other_dimension", "--rank=3"), "deadlock|mismatch", (3,)),
        Row("all_receive, torchrun", (*TORCHRUN, SHAPES, "all_receive"), "deadlock", (0, 1, 2)),
        Row("accelerate, accelerate launch", (*launch, FRAMEWORKS, "accelerate", "--hang"), "absent", (2,)),
        Row("own_exit, shell loop", _loop("own_exit", "0 1 2", 3), "dead", (2,)),
        Row("oom, shell loop", _loop("oom", "0 1 2", 3), "dead", (2,)),
        Row("compile_long, shell loop", _loop("compile_long", "0 1 2", 3), "absent", (2,)),
        Row("one rank too few, shell loop", _loop("start", "0 1 2", 4), "absent", (3,)),
        Row("rank 0 not started, shell loop", _loop("start", "1 2", 3), "absent", (0,)),
        Row("a rank started twice, shell loop", _loop("start", "0 1 1", 3), "absent", (2,)),
        Row(
            "one node of two, torchrun",
            (*TORCHRUN[:-2], "--nnodes=2", *_meet(), SHAPES, "start"),
            says="torchrun expects 2 nodes",
        ),
        Row(
            "another address, shell loop",
            _loop("start", "1 2", 3, "192.0.2.1"),
            says="they look for the others at 192.0.2.1",
        ),
        *(
            Row(f"{name}, torchrun", (*TORCHRUN, SHAPES, name), says=r"rank 2 \(pid \d+\) has not ended")
            for name in ("thread_at_exit", "handler_at_exit")
        ),
        Row("long_first_step, torchrun, healthy", (*TORCHRUN, SHAPES, "long_first_step")),
        Row("announced, torchrun, healthy", (*TORCHRUN, SHAPES, "announced")),
        Row("ends_apart, torchrun, healthy", (*TORCHRUN, SHAPES, "ends_apart")),
    ]


def _loop(fault: str, ranks: str, size: int, address: str = "127.0.0.1") -> tuple[str, ...]:
    """Ranks as a script starts them."""
    job = f"WORLD_SIZE={size} MASTER_ADDR={address} MASTER_PORT={_port()}"
    return ("sh", "-c", f"for r in {ranks}; do RANK=$r {job} {PYTHON} {SHAPES} {fault} & done; wait")


def _meet() -> tuple[str, ...]:
    return "--nproc-per-node=2", "--node-rank=0", "--master-addr=127.0.0.1", f"--master-port={_port()}"


def _daily() -> list[Row]:
    """Mistakes of everyday training code."""
    torchrun = [
        Row(f"{name}, torchrun", (*TORCHRUN, DAILY, name, "--port", _port()), kind, (2,))
        for kind, names in DAILY_FAULTS.items()
        for name in names
    ]
    return [
        *torchrun,
        Row("nested_pool, mp.spawn", (PYTHON, DAILY, "nested_pool", "--port", _port()), "absent", (2,)),
        Row("stopped for 14 s, torchrun", (*TORCHRUN, DAILY, "stopped"), "frozen", (2,), to_end=True),
        Row("fewer_batches_joined, torchrun, healthy", (*TORCHRUN, DAILY, "fewer_batches_joined")),
    ]


def _nccl(backend: str) -> list[Row]:
    """FSDP2 x TP and its neighbours, four ranks on one GPU; `gloo` tries the programs without one."""
    words = (*TORCHRUN[:-1], "--nproc-per-node=4")

    def row(name: str, *more: str, launch: tuple[str, ...] = (), **truth: Any) -> Row:
        job = (*words, *launch, NCCL, name, "--backend", backend, *more)
        return Row(", ".join((name, *launch, *more)).replace("--", ""), job, **truth)

    waits: dict[str, Any] = {"kind": "absent", "ranks": (2,), "line": "wait_for_storage"}
    absent = (
        *("fsdp_tp", "mesh_first", "first_of_all", "mesh_made", "store", "ring", "ring_reduce", "pipeline"),
        *("collective", "objects", "beside_gloo", "at_the_end"),
    )
    return [
        *(row(name, **waits) for name in absent),
        row("fsdp_tp", "--rank", "0", **{**waits, "ranks": (0,)}),
        row("mesh_first", "--rank", "0", **{**waits, "ranks": (0,)}),
        row("fsdp_tp", "--timeout", "5", **waits),
        row("loader", **waits),
        row("fifo", kind="frozen", ranks=(2,), line="save_checkpoint"),
        row("regex", kind="frozen", ranks=(2,), line="clean_text"),
        row("stopped", kind="frozen", ranks=(2,), line="wrong"),
        *(row(name, kind="dead", ranks=(2,)) for name in ("raises", "out_of_memory", "killed", "left_early")),
        row("killed", "--rank", "0", kind="dead", ranks=(0,)),
        row("backward_hook", **waits),
        *(row(name, kind="mismatch", ranks=(2,)) for name in ("no_clip", "lone_norm", "other_branch")),
        row("lone_group", kind="absent", ranks=(2,), line="lone_group"),
        row("evaluates", kind="absent", ranks=(0,), line="evaluate", to_end=True),
        row("restarted", launch=("--max-restarts=1",), **{**waits, "ranks": (0,)}, second=True),
        row("healthy"),
        row("no_destroy"),
        row("kernel", kind="gpu", ranks=(2,), alone=True),  # it slows all others on its GPU down
    ]


def _engines() -> list[Row]:
    """Communication past the flight recorder, four ranks on one GPU, each hung and healthy."""
    torchrun = (*TORCHRUN[:-1], "--nproc-per-node=4")
    engines = str(HERE / "engines.py")
    found = []
    for kind, launch, line in (
        ("graph", torchrun, "fetch_prompts"),
        ("pynccl", torchrun, "schedule_requests"),
        ("weights", (PYTHON,), "load_weights"),
        ("server", (PYTHON,), "prepare_inputs"),
        ("spin", torchrun, "route_tokens"),
        ("program", (PYTHON,), ""),
    ):
        alone = kind == "spin"  # its kernels take the GPU's time from all others
        found.append(Row(kind, (*launch, engines, kind, "--hang"), "absent", (2,), line=line, alone=alone))
        found.append(Row(f"{kind}, healthy", (*launch, engines, kind), alone=alone))
    asked = ("--gpu-core", "--on-hang", "kill", "--kill-after", "4")
    words = (*torchrun, engines, "kernel", "--hang")
    found.append(Row("kernel, GPU cores", words, "gpu", (2,), also="spin_kernel", ended=asked, alone=True))
    words = (*torchrun, engines, "graph", "--hang")
    found.append(Row("graph, GPU cores", words, "absent", (2,), also="ncclDevKernel", ended=asked, alone=True))
    eight = (*TORCHRUN[:-1], "--nproc-per-node=8")
    found += [Row(f"starts {number}, healthy", (*eight, engines, "starts")) for number in range(10)]
    return found


def _shifts(backend: str) -> list[Row]:
    """One rank leaves an update or a step out, or makes one twice, and the job goes on.

    Gloo ends a rank over a size that does not fit, so that sizes are tried with NCCL alone.
    """
    torchrun = (*TORCHRUN[:-1], "--nproc-per-node=4")
    found = []
    for kind in ("ddp", "fsdp2", "tp"):
        hangs = (kind, backend) == ("ddp", "nccl")  # where sizes do not fit, NCCL mostly waits
        wrong: dict[str, Any] = {"kind": "mismatch" if hangs else "shift", "ranks": (2,)}
        wrong["outcome"] = "hang" if hangs else "desync"
        for fault in ("nan", "batch", "retry", "none"):
            healthy = fault == "none"
            seconds = "40" if healthy else "150"
            words = (*torchrun, SHIFTED, kind, fault, "--backend", backend, "--seconds", seconds)
            name = f"{kind}, {'healthy' if healthy else fault}"
            found.append(Row(name, words, looks=healthy or not hangs, **({} if healthy else wrong)))
    plain = (*torchrun, SHIFTED, "ddp", "plain", "--backend", backend, "--seconds", "40")
    found.append(Row("ddp, a step of like steps left out: silent", plain, looks=True))
    if backend == "nccl":
        sizes = (*torchrun, SHIFTED, "ddp", "sizes", "--backend", backend, "--seconds", "150")
        found.append(Row("ddp, sizes", sizes, "mismatch", (2,), outcome="desync", looks=True))
    return found


def _port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def place_of(row: Row) -> str:
    return re.sub(r"\W+", "-", row.name)


def incident_of(row: Row, place: Path) -> Path:
    """Where in its run's directory the incident lies that is judged."""
    return place / "hang-2" if row.second else place / "desync-1" if row.looks and row.ranks else place


def run(row: Row, folder: Path) -> tuple[bool, str]:
    """Whether the answer was right, and the line of the table."""
    place = folder / place_of(row)
    incident = incident_of(row, place)
    for left in folder.glob(f"{place.name}*"):  # of an earlier try: `run` would leave it alone and go elsewhere
        shutil.rmtree(left, ignore_errors=True)
    options = ["--dir", str(place), "--stall-after", str(THRESHOLD_S), "--keep"]
    if row.looks:
        options += ["--look-every", str(LOOK_EVERY_S)]
    options += row.ended
    more = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), *more]), "OMP_NUM_THREADS": "1"}
    if row.second:  # over torchrun's shared store a second start seldom joins (docs/run.md)
        environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    out, err = folder / f"{place.name}.out", folder / f"{place.name}.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        command = [PYTHON, "-m", "hangscope", "run", *options, "--", *row.words]
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=environ, start_new_session=True)
        until = time.monotonic() + LONGEST_S
        while time.monotonic() < until and process.poll() is None and not (incident / "verdict.txt").exists():
            if row.says and re.search(row.says, err.read_text(errors="replace")):
                break
            time.sleep(0.2)
        if row.to_end or row.ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LONGEST_S)
        if process.poll() is None and (row.kind != "none" or row.says):
            time.sleep(1.0)
            process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
    return _judge(row, incident, out.read_text(errors="replace") + err.read_text(errors="replace"), status)


def _judge(row: Row, incident: Path, text: str, status: int) -> tuple[bool, str]:
    watched = re.search(r"hangscope: (watching \d+ of \d+ ranks)", text)
    said = watched[1] if watched else "-"
    if row.says:
        found = re.search(row.says, text)
        right = found is not None and not (incident / "verdict.txt").exists()
        return right, f"| {row.name} | a line, no verdict | {said} | {found[0] if found else 'nothing'} | - |"
    if not row.ranks and row.kind == "none":
        right = status == 0 and "saving what every rank" not in text and "have come apart" not in text
        return right, f"| {row.name} | healthy | {said} | {'nothing' if right else 'an incident'} | - |"
    try:
        verdict: dict[str, Any] = json.loads((incident / "verdict.json").read_text())
        noticed = json.loads((incident / "stall.json").read_text())["at"]
    except (OSError, ValueError):
        return False, f"| {row.name} | {row.kind} {list(row.ranks)} | {said} | nothing | - |"
    ranks = tuple(culprit["rank"] for culprit in verdict["culprits"])
    fault = re.findall(r"fault at ([\d.]+)", text)
    after = f"{noticed - float(fault[-1]):.1f} s" if fault else "-"
    right = verdict["kind"] in row.kind.split("|") and ranks == row.ranks
    right &= row.outcome in ("", verdict["outcome"]) and row.also in (incident / "verdict.txt").read_text()
    if row.to_end:
        right &= verdict["outcome"] == "pause" and status == 0
    first = "\n".join((incident / "verdict.txt").read_text().splitlines()[:2])
    right &= not row.line or re.search(rf"\b{row.line}\b", first) is not None
    answer = f"{verdict['outcome']}, {verdict['kind']} {list(ranks)}, {verdict['confidence']}"
    return right, f"| {row.name} | {row.kind} {list(row.ranks)} | {said} | {answer} | {after} |"


def _offered(given: argparse.Namespace, folder: Path) -> list[Row]:
    if given.nccl:
        return _nccl(given.nccl)
    if given.shifts:
        return _shifts(given.shifts)
    return _engines() if given.engines else _rows(folder)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--nccl", nargs="?", const="nccl", choices=("nccl", "gloo"), help="the jobs for a GPU")
    parser.add_argument("--engines", action="store_true", help="jobs for a GPU that communicate past the recorder")
    parser.add_argument("--shifts", nargs="?", const="gloo", choices=("nccl", "gloo"), help="jobs that come apart")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="live-"))
    folder.mkdir(parents=True, exist_ok=True)
    offered = _offered(given, folder)
    rows = [row for row in offered if not given.names or any(name in row.name for name in given.names)]
    print("| job | injected | stderr says | verdict | noticed after |\n|---|---|---|---|---|", flush=True)
    right = 0
    for alone, together in ((False, given.together), (True, 1)):
        with ThreadPoolExecutor(together) as pool:
            for good, line in pool.map(lambda row: run(row, folder), [row for row in rows if row.alone is alone]):
                right += good
                print(line if good else f"{line} **wrong**", flush=True)
    print(f"\n{right} of {len(rows)} right; threshold {THRESHOLD_S:g} s")
    return 0 if right == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
