"""A real Slurm, as jobs meet it: cancelled, out of time, a node lost, signals, snapshots from the login machine.

All jobs start together and mostly wait: torch takes seconds to start, and the machine has few cores.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kits import slurm_cluster
from kits.slurm_cluster import SlurmCluster

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.slurm,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing() or "Slurm is here"),
]

HERE = Path(__file__).parent
STEPS = "--steps 100000 --pause 0.1"
WAIT_S = 120
"""For what takes seconds on an idle machine."""

RANK = "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"
TASKS = """export MASTER_ADDR=$(scontrol show hostnames | head -1) MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
srun --kill-on-bad-exit=0 {run} sh -c '{rank} exec python {train} {words}'
"""
TORCHRUN = """srun --kill-on-bad-exit=0 {run} torchrun --nnodes $SLURM_NNODES --nproc-per-node 1 --rdzv-backend c10d \\
  --rdzv-id $SLURM_JOB_ID --rdzv-endpoint $(scontrol show hostnames | head -1):$((20000 + SLURM_JOB_ID % 10000)) \\
  {train} {words}
"""

# docs/slurm.md's: the batch script is warned before the time limit, and hands it on; here once the program listens.
WARNED = """srun {run} python {program} &
step=$!
forward() {{
  until grep -q ready {shared}/slurm-$SLURM_JOB_ID.out; do sleep 0.2; done
  scancel --signal=USR1 $SLURM_JOB_ID.0; sleep 2; scancel --signal=USR2 $SLURM_JOB_ID.0
}}
trap forward USR1
wait $step || wait $step
"""


@dataclass
class Jobs:
    """`incidents` is the folder that all nodes share; each job keeps its own below it."""

    cluster: SlurmCluster
    numbers: dict[str, str]

    @property
    def incidents(self) -> Path:
        return self.cluster.shared

    def incident(self, name: str) -> Path:
        return self.incidents / name

    def log(self, name: str) -> str:
        return self.cluster.log(self.numbers[name])

    def until(self, name: str, words: str) -> str:
        return self.cluster.until(self.numbers[name], words, WAIT_S)

    def diagnose(self, path: Path) -> dict[str, Any]:
        done = self.cluster.on("login", f"hangscope diagnose --json {path}", check=False)
        return json.loads(done.stdout)

    def log_file(self, name: str) -> Path:
        return self.incidents / f"slurm-{self.numbers[name]}.out"


def accused(verdict: dict[str, Any]) -> list[tuple[int, str]]:
    return [(each["rank"], each["node"]) for each in verdict["culprits"]]


def stalled(jobs: Jobs, name: str, seconds: float) -> None:
    """Wait until a job has hung for so long."""
    jobs.until(name, "fault at")
    time.sleep(seconds)


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    lab = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    lab.chmod(0o755)
    cluster = SlurmCluster(lab)
    try:
        cluster.up()
        yield Jobs(cluster, submit_all(cluster))
    finally:
        cluster.down()
        shutil.rmtree(lab, ignore_errors=True)


def submit_all(cluster: SlurmCluster) -> dict[str, str]:
    def submit(name: str, template: str, options: str, words: str, *sbatch: str, run: bool = True) -> str:
        front = f"hangscope run --dir {cluster.shared}/{name} {options} --" if run else ""
        script = template.format(run=front, rank=RANK, train=HERE / "train.py", words=f"{STEPS} {words}")
        return cluster.submit(script, "--nodes=2", *sbatch)

    first = "--nodelist=n1,n2"
    kill = "--stall-after 5 --on-hang kill --kill-after 0 --grace 3"
    hang = "--fault sleep --rank 1 --at 20"
    counting = f"srun hangscope run --dir {cluster.shared}/signals -- python {HERE / 'count_signals.py'}"
    warned = WARNED.format(
        run=f"hangscope run --dir {cluster.shared}/warned --", program=HERE / "count_signals.py", shared=cluster.shared
    )
    return {
        "warned": cluster.submit(warned, "--nodes=1", "--nodelist=n2", "--time=1", "--signal=B:USR1@50"),
        "signals": cluster.submit(counting, "--nodes=1", "--nodelist=n1"),
        "cancelled": submit("cancelled", TORCHRUN, "--stall-after 300", hang, first),
        "killed": submit("killed", TASKS, kill, hang, first, "--ntasks=2"),
        "plain": submit("plain", TASKS, "", f"--fault sleep --when {cluster.shared}/now", "-n2", first, run=False),
        "lost": submit("lost", TASKS, "", "--fault none", "--nodelist=n3,n4", "--ntasks=2", "--no-requeue"),
        "healthy": submit("healthy", TASKS, "", "--fault none", first, "--ntasks=2"),
    }


def test_every_signal_reaches_the_job_once(jobs: Jobs) -> None:
    """Slurm signals every process of the step; the job counts ten, its output is whole, and it ends with its own 0."""
    jobs.until("signals", "ready")
    number = jobs.numbers["signals"]
    for _ in range(10):
        jobs.cluster.on("login", f"scancel -s USR1 {number}.0")
        time.sleep(0.3)
    jobs.cluster.on("login", f"scancel -s USR2 {number}.0")
    assert jobs.cluster.wait(number, 30) == "COMPLETED"
    assert "counted 10\n" in jobs.log("signals")


def test_a_hung_job_that_is_cancelled_leaves_its_verdict(jobs: Jobs) -> None:
    """scancel comes long before a stall is noticed: the rank that never joined is named all the same."""
    stalled(jobs, "cancelled", 8)
    jobs.cluster.on("login", f"scancel {jobs.numbers['cancelled']}")
    assert jobs.cluster.wait(jobs.numbers["cancelled"]) == "CANCELLED"
    assert "when SIGTERM came" in jobs.log("cancelled")
    verdict = jobs.diagnose(jobs.incident("cancelled"))
    assert (verdict["outcome"], accused(verdict)) == ("hang", [(1, "n2")])
    # Mostly no stack shows it, for every process was signalled at once; on a busy machine some are still there.
    assert verdict["confidence"] != "high" or list(jobs.incident("cancelled").glob("nodes/n2/stacks/rank_1*"))
    launchers = jobs.log("cancelled").count("Received 15 death signal")
    assert launchers == 2  # one each: torchrun falls over a second one


def test_what_the_agents_saw_last_is_enough(jobs: Jobs, tmp_path: Path) -> None:
    """A job that was killed before anything could be captured has its status files, and diagnose reads them."""
    for node in ("n1", "n2"):
        source = jobs.incident("cancelled") / "nodes" / node / "status.json"
        (tmp_path / "nodes" / node).mkdir(parents=True)
        shutil.copy(source, tmp_path / "nodes" / node / "status.json")
    verdict = _diagnose_here(tmp_path)
    assert (verdict["outcome"], accused(verdict)) == ("hang", [(1, "n2")])


def _diagnose_here(path: Path) -> dict[str, Any]:
    from hangscope.diagnosis import diagnose
    from hangscope.reader.load import load
    from hangscope.report.export import to_json

    return json.loads(to_json(diagnose(load([path]))))


def test_a_hang_that_is_ended_has_a_status_of_its_own(jobs: Jobs) -> None:
    """--on-hang kill ends with 75, which Slurm reports, and the job's log names the culprit and no innocent."""
    assert jobs.cluster.wait(jobs.numbers["killed"], WAIT_S) == "FAILED"
    assert jobs.cluster.exit_status(jobs.numbers["killed"]) == "75:0"
    log = jobs.log("killed")
    assert log.count("hangscope: watching") == 1  # one task a rank: one of them says it
    assert accused(jobs.diagnose(jobs.incident("killed"))) == [(1, "n2")]
    by_log = jobs.diagnose(jobs.log_file("killed"))
    assert (by_log["outcome"], [each["rank"] for each in by_log["culprits"]]) == ("hang", [1])
    excluded = jobs.cluster.on("login", f"hangscope exclude {jobs.incident('killed')}")
    assert excluded.stdout == ""
    assert "no node to exclude" in excluded.stderr


def test_each_snapshot_of_a_job_without_run_is_its_own(jobs: Jobs) -> None:
    """From the login machine, by the job's number: OK while it moves, and the culprit's line once it hangs."""
    jobs.until("plain", "rank 1 step 5\n")
    take = f"hangscope snapshot --slurm {jobs.numbers['plain']} --dir {jobs.incidents}/snapshot"
    moving = jobs.cluster.on("login", take)
    assert "OK " in moving.stderr
    (jobs.incidents / "now").touch()
    stalled(jobs, "plain", 3)
    hung = jobs.cluster.on("login", take)
    assert hung.stdout != moving.stdout
    assert "rank 1 is in stuck_in_loader" in hung.stderr
    verdict = json.loads((Path(hung.stdout.strip()) / "verdict.json").read_text())
    assert (accused(verdict), verdict["completeness"]["stacks"]) == ([(1, "n2")], 2)


def test_nodes_of_one_step_give_one_verdict(jobs: Jobs) -> None:
    """A snapshot by hand on both nodes, one of them seconds late: one directory, one verdict, of both."""
    inside = f"cd {jobs.incidents}; sleep $((2 * SLURM_PROCID)); hangscope snapshot $(pgrep -o -f '^python.*train.py')"
    step = f"srun --jobid {jobs.numbers['plain']} --overlap --nodes=2 --ntasks=2 bash -c {json.dumps(inside)}"
    done = jobs.cluster.on("login", step.replace("$", "\\$"))
    jobs.cluster.on("login", f"scancel {jobs.numbers['plain']}")
    assert len(set(done.stdout.split())) == 1
    assert done.stderr.count("HANG ") == 1
    assert "rank 1 is in stuck_in_loader" in done.stderr


def test_a_healthy_job_that_is_cancelled_is_no_crash(jobs: Jobs) -> None:
    """It is ended at once, nothing is captured, and neither its log nor its folder accuses anybody."""
    jobs.until("healthy", "rank 1 step 5\n")
    jobs.cluster.on("login", f"scancel {jobs.numbers['healthy']}")
    assert jobs.cluster.wait(jobs.numbers["healthy"], 20) == "CANCELLED"
    assert "saving" not in jobs.log("healthy")
    for path in (jobs.log_file("healthy"), jobs.incident("healthy")):
        verdict = jobs.diagnose(path)
        assert (verdict["outcome"] in ("crash", "hang"), verdict["culprits"]) == (False, [])


def test_a_node_that_is_lost_is_named(jobs: Jobs) -> None:
    """By the other nodes' agents in the verdict, by Slurm in its log; and it is the one to exclude."""
    jobs.until("lost", "rank 1 step 20\n")
    jobs.cluster.kill("n4")
    jobs.until("lost", "the verdict on")
    jobs.until("lost", "HTML report")
    verdict = jobs.diagnose(jobs.incident("lost"))
    assert (accused(verdict), verdict["confidence"]) == ([(1, "n4")], "medium")
    assert "node n4 has gone silent" in verdict["headline"]
    excluded = jobs.cluster.on("login", f"hangscope exclude {jobs.incident('lost')}")
    assert excluded.stdout == "--exclude=n4\n"
    assert jobs.cluster.wait(jobs.numbers["lost"], WAIT_S) == "NODE_FAIL"
    by_log = jobs.diagnose(jobs.log_file("lost"))
    assert {each["node"] for each in by_log["culprits"]} <= {"n4"}
    assert "n4" in by_log["headline"]


def test_a_warning_before_the_time_limit_reaches_the_job(jobs: Jobs) -> None:
    """--signal=B:USR1 and a trap in the batch script: the job is warned once and ends with its own 0 in time."""
    assert jobs.cluster.wait(jobs.numbers["warned"], WAIT_S) == "COMPLETED"
    assert "counted 1\n" in jobs.log("warned")
