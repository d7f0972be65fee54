"""Real JAX jobs of three processes on CPU, of which one never joins, dies, stops or stays away: live, and from logs.

    python tests/live_scripts/jax_jobs.py --python VENV/bin/python [--only NAME] [--keep DIR]

VENV has jax (pip install jax); hangscope runs from this Python. Each job runs twice: under `hangscope run`, and without
it, with a log for each process, which `hangscope diagnose` then reads. About four minutes. Exit status 1 where a
verdict is wrong: an innocent process, or a failure that is called OK.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

PROCESSES = 3
VICTIM = 1
STEP = 30
"""The step at which it happens: by then the agent has seen every process."""
JOB = textwrap.dedent("""
    import os, signal, sys, time
    import jax, numpy
    from jax.experimental import multihost_utils
    rank, fault = int(os.environ["RANK"]), os.environ["FAULT"]
    jax.distributed.initialize(os.environ["COORDINATOR"], num_processes=int(os.environ["WORLD_SIZE"]), process_id=rank,
                               initialization_timeout=20, heartbeat_timeout_seconds=20)
    for step in range(80):
        begun = time.time()
        if rank == 1 and step == int(os.environ["STEP"]):
            if fault == "dies": os.kill(os.getpid(), signal.SIGKILL)
            if fault == "stops": os.kill(os.getpid(), signal.SIGSTOP)
            if fault == "stays away": time.sleep(1000)
        total = multihost_utils.process_allgather(numpy.ones(8)).sum()
        print(f"step {step} loss {total:.2f} {time.time() - begun:.2f} s/it", flush=True)
        time.sleep(0.2)
    """)
LAUNCH = textwrap.dedent("""
    import os, signal, subprocess, sys
    def launch(rank):
        out = open(os.path.join(os.environ["LOGS"], f"process-{rank}.log"), "w") if os.environ.get("LOGS") else None
        own = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank))
        return subprocess.Popen([os.environ["JAX_PYTHON"], "-u", sys.argv[1]], env=own, stdout=out, stderr=out)
    here = [rank for rank in range(3) if (os.environ["FAULT"], rank) != ("never joins", 2)]
    children = [launch(rank) for rank in here]
    signal.signal(signal.SIGTERM, lambda *_: ([child.kill() for child in children], sys.exit(1)))
    sys.exit(max(abs(child.wait()) for child in children))
    """)
EXPECTED = {
    "healthy": ({"live": {"ok"}, "logs": {"ok"}}, set()),
    "stays away": ({"live": {"hang"}, "logs": {"unknown", "ok", "hang"}}, {VICTIM}),
    "stops": ({"live": {"hang"}, "logs": {"hang", "crash"}}, {VICTIM}),
    "dies": ({"live": {"hang", "crash"}, "logs": {"hang", "crash"}}, {VICTIM}),
    "never joins": ({"live": {"hang", "crash", "unknown"}, "logs": {"hang", "crash", "unknown"}}, {2}),
}
"""Fault → (what it may be called, live and from logs alone; who may be accused). Of a process that never printed a line
nobody can say by logs that it was to come."""


def environment(fault: str, python: Path) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return dict(
        os.environ,
        FAULT=fault,
        STEP=str(STEP),
        WORLD_SIZE=str(PROCESSES),
        JAX_PLATFORMS="cpu",
        JAX_PYTHON=str(python),
        COORDINATOR=f"127.0.0.1:{port}",
    )


def run(command: list[str], env: dict[str, str], folder: Path, seconds: float) -> None:
    """In a process group of its own, which ends with it."""
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=output, stderr=output, start_new_session=True)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            time.sleep(2)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def verdict_on(path: Path) -> tuple[str, str, list[int], str]:
    command = [sys.executable, "-m", "hangscope", "diagnose", str(path), "--json"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if not said.stdout.strip():
        return "exit 2", "", [], said.stderr.strip()[:80]
    found = json.loads(said.stdout)
    who = sorted(culprit["rank"] for culprit in found["culprits"] if culprit["rank"] is not None)
    return found["outcome"], found["kind"], who, found["headline"]


def judge(fault: str, how: str, path: Path) -> bool:
    outcome, kind, who, headline = verdict_on(path)
    outcomes, guilty = EXPECTED[fault]
    right = outcome in outcomes[how] and not set(who) - guilty
    full = right and (set(who) == guilty or not guilty)
    word = "right" if full else "honest" if right else "WRONG"
    print(f"{word:7} {fault:12} {how:5} {outcome}/{kind} {who}  {headline[:90]}", flush=True)
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True, help="a Python with jax")
    parser.add_argument("--only", choices=tuple(EXPECTED), help="one of them")
    parser.add_argument("--keep", type=Path, help="keep what the jobs left here")
    given = parser.parse_args()
    python = given.python.absolute()
    well = True
    with tempfile.TemporaryDirectory() as temporary:
        base = given.keep.absolute() if given.keep else Path(temporary)
        base.mkdir(parents=True, exist_ok=True)
        (base / "job.py").write_text(JOB)
        (base / "launch.py").write_text(LAUNCH)
        command = [sys.executable, str(base / "launch.py"), str(base / "job.py")]
        for fault in [given.only] if given.only else EXPECTED:
            logs = base / f"{fault} logs"
            logs.mkdir(exist_ok=True)
            apart = base / f"{fault} output"
            apart.mkdir(exist_ok=True)
            run(command, dict(environment(fault, python), LOGS=str(logs)), apart, 75)
            well = judge(fault, "logs", logs) and well
            live = base / f"{fault} live"
            live.mkdir(exist_ok=True)
            watch = [sys.executable, "-m", "hangscope", "run", "--keep", "--stall-after", "6", "--on-hang", "kill"]
            run([*watch, "--kill-after", "5", "--", *command], environment(fault, python), live, 120)
            well = judge(fault, "live", live) and well
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
