"""The jobs of ray_jobs.py on a real Ray cluster of three nodes, each captured from outside by `snapshot --ray`.

    python tests/live_scripts/ray_trial.py [NAME …] [--keep DIR]

Prints one row a job: what was said, and whether that is what was expected before the first run. By hand: it takes some
minutes. Ray Train and Tune need pyarrow, pandas and their like (`pip install 'ray[train,tune]'`).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PATIENT = {"RAY_raylet_start_wait_time_s": "180"}
JOBS = Path(__file__).with_name("ray_jobs.py")
EXPECTED = {
    "plain_actor": ("hang", "absent", "actor Learner 'learner-2'", "wait_for_batch", "lock.acquire()  # nobody"),
    "stuck_task": ("hang", "absent", "task preprocess", "preprocess", "time.sleep(3600)"),
    "chain": ("hang", "absent", "actor Loader", "fetch", "os.read(read_end, 1)"),
    "deadlock": ("hang", "deadlock", "actor Peer 'left'", "ask", "self.other.answer"),
    "starved": ("hang", "resources", None, None, None),
    "train_hung": ("hang", "absent", 1, "load_next_shard", "time.sleep(3600)"),
    "train_healthy": ("ok", "none", None, None, None),
    "tune_hung": ("hang", "absent", "actor ImplicitFunc", "wait_for_license", "threading.Event().wait()"),
    "killed": ("crash hang", "dead", "actor Store 'store'", None, None),
    "stopped": ("hang", "frozen", "actor Simulator 'sim-1'", "roll", None),
    "async_blocked": ("hang", "absent", "actor Router", "call_backend", "ends[0].recv(1)"),
    "threaded": ("hang", "absent", "actor Cache 'cache'", "read_source", "threading.Event().wait()"),
    "healthy_plain": ("ok", "none", None, None, None),
    "healthy_long_call": ("ok wait", "none", None, None, None),
    # written later, and as blindly
    "stuck_constructor": ("hang", "absent", "actor SlowStart 'model'", "load_weights", "threading.Event().wait()"),
    "arguments": ("hang", "absent", "task read_part", "read_part", "os.read(os.pipe()[0], 1)"),
    "awaited": ("hang", "absent", "actor Backend 'backend'", "answer", "threading.Event().wait()"),
    "empty_queue": ("hang", "absent", "actor Consumer 'consumer'", "consume", "self.queue.get()"),
    "nested_polled": ("hang", "absent", "task inner", "inner", "threading.Event().wait()"),
    "driver_stuck": ("hang", "absent", "the driver", "wait_in_driver", "threading.Event().wait()"),
    "impossible": ("hang", "resources", None, None, None),
    "restarting": ("hang", "absent", "actor Store 'store'", "keep", "time.sleep(3600)"),
}
"""Job → (outcomes that are right, kind, who: an actor's label or a rank, its function, a part of its line)."""


def cluster(folder):
    os.environ.update(PATIENT)
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    for _ in range(2):
        started.add_node(num_cpus=2)
    return started


def is_right(found, expected):
    outcomes, kind, who, function, line = expected
    if found["outcome"] not in outcomes.split() or found["kind"] != kind:
        return False
    actors = found.get("actors", [])
    accused = actors if isinstance(who, str) else found["culprits"]
    if who is None:
        return not actors and not found["culprits"]
    named = [each["label"].startswith(who) if isinstance(who, str) else each["rank"] == who for each in accused]
    if not any(named) or (len(accused) > 1 and kind != "deadlock"):
        return False
    where = accused[named.index(True)]["where"]
    if function is None:
        return True
    return where is not None and function in where["function"] and (line is None or line in (where["code"] or ""))


def trial(name, address, folder):
    environ = {**os.environ, "RAY_ADDRESS": address, "RAY_JOBS_STORAGE": str(folder / "storage")}
    log = folder / f"{name}.log"
    with log.open("w") as output:
        job = subprocess.Popen(
            [sys.executable, JOBS, name], env=environ, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    until = time.monotonic() + 300
    mark = folder / "storage.ready"
    mark.unlink(missing_ok=True)
    while "READY" not in log.read_text() and not mark.exists() and time.monotonic() < until and job.poll() is None:
        time.sleep(0.5)
    time.sleep(6)
    begun = time.monotonic()
    incident = folder / name
    command = [sys.executable, "-m", "hangscope", "snapshot", "--ray", address, "--dir", incident]
    taken = subprocess.run(command, capture_output=True, text=True)
    seconds = time.monotonic() - begun
    os.killpg(job.pid, signal.SIGTERM)
    job.wait()
    try:
        return json.loads((incident / "verdict.json").read_text()), seconds
    except OSError:
        nothing = {"outcome": "error", "kind": "", "headline": taken.stderr[-300:], "culprits": [], "confidence": ""}
        return nothing, seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(EXPECTED))
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="ray-trial-"))
    folder.mkdir(parents=True, exist_ok=True)
    started = cluster(folder)
    right = 0
    try:
        for name in given.names:
            found, seconds = trial(name, started.address, folder)
            good = is_right(found, EXPECTED[name])
            right += good
            verdict = f"{found['outcome']}/{found['kind']} ({found['confidence']}): {found['headline']}"
            print(f"| {name} | {'right' if good else 'WRONG'} | {verdict} | {seconds:.0f} s |", flush=True)
    finally:
        print(f"{right} of {len(given.names)} right; incidents in {folder}", flush=True)
        started.shutdown()


if __name__ == "__main__":
    main()
