"""A real Slurm that its administrator switches on by three lines, and jobs of two users who know nothing of it.

    python tests/record/slurm_platform.py [--spank] [--keep DIR] [NAME…]

Ten jobs: torchrun, one task a rank, arrays, a batch script without srun, one with its own NCCL profiler plugin, one
with HANGSCOPE=off. Four hang and must be named with their line; six must be as they were before the lines. With --spank
the plugin, and agents that run as services, do what the lines do. At the end the lines are deleted, and a job must be
as before. Prints a table; the exit status is 1 where anything differs. Needs root, Debian's Slurm and torch, with
--spank its headers as well; takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from kits import slurm_cluster
from kits.slurm_cluster import OTHER, USER, USERS, SlurmCluster

TRAIN = Path(__file__).parents[1] / "recorder" / "jobs" / "train.py"
FILES = "/etc/slurm/hangscope"
RANK = "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"
MASTER = "export MASTER_ADDR=$(scontrol show hostnames | head -1) MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))\n"
TASKS = f"{MASTER}srun sh -c '{RANK} exec python {{train}}'"
TORCHRUN = (
    "srun torchrun --nnodes $SLURM_NNODES --nproc-per-node 1 --rdzv-backend c10d --rdzv-id $SLURM_JOB_ID"
    " --rdzv-endpoint $(scontrol show hostnames | head -1):$((20000 + SLURM_JOB_ID % 10000)) {train}"
)
ALONE = "torchrun --standalone --nproc-per-node 2 {train}"
HANGS = "--steps 100000 --pause 0.1 --fault sleep --rank 1 --at 30"
WELL = "--steps 40 --pause 0.1"
WAIT_S = 240

_TOLD = re.compile(r"^rank |hangscope|NCCL|TORCH|deprecat|slurm|srun|HANG|CRASH")


@dataclass(frozen=True)
class Job:
    """`number` is that of an array's task that hangs. `status` is what a job that does not hang ends with."""

    name: str
    by: int
    script: str
    words: str
    hangs: bool
    sbatch: tuple[str, ...] = ("--nodes=2", "--ntasks=2")
    task: str = ""
    status: str = "0:0"
    off: bool = False

    @property
    def crashes(self) -> bool:
        """There is an incident of it, as under `hangscope run`."""
        return self.status != "0:0"


ONE = ("--nodes=1", "--ntasks=1")
JOBS = (
    Job("torchrun", USER, TORCHRUN, HANGS, True),
    Job("task-a-rank", OTHER, TASKS, HANGS, True),
    Job(
        "array",
        USER,
        "case $SLURM_ARRAY_TASK_ID in 1) f=sleep;; *) f=none;; esac\n" + ALONE + " --fault $f",
        f"{WELL} --at 30",
        True,
        ("--array=0-1", *ONE),
        "_1",
    ),
    Job("own-plugin", OTHER, "export NCCL_PROFILER_PLUGIN=inspector\n" + TASKS, HANGS, True),
    Job("off", USER, "export HANGSCOPE=off\n" + TASKS, HANGS, False, off=True),
    Job("healthy", OTHER, TORCHRUN, WELL, False),
    Job("own-status", USER, TASKS, f"{WELL} --status 3", False, status="3:0"),
    Job("no-torch", OTHER, "srun sh -c 'echo rank $SLURM_PROCID step 0'", "", False),
    Job("own-settings", USER, "export NCCL_DEBUG=WARN TORCH_FR_BUFFER_SIZE=500\n" + TASKS, WELL, False),
    Job("batch", OTHER, ALONE, WELL, False, ONE),
)


class Platform:
    """A cluster, and whether its administrator has switched hangscope on."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster

    def write(self, options: str = "") -> list[str]:
        """The files on the nodes, and the lines for slurm.conf."""
        done = self.cluster.on("n1", f"hangscope env --slurm-cluster {FILES} {options}", root=True)
        return done.stdout.splitlines()

    def spank(self) -> list[str]:
        """The plugin built; the line for plugstack.conf."""
        build = f"cc -shared -fPIC -O2 -o {FILES}/spank_hangscope.so {FILES}/spank_hangscope.c"
        self.cluster.on("n1", build, root=True)
        return [f"optional {FILES}/spank_hangscope.so {FILES}"]

    def folder(self, name: str, by: int) -> Path:
        folder = self.cluster.shared / name
        folder.mkdir()
        os.chown(folder, by, by)
        return folder

    def submit(self, job: Job, run: str = "") -> str:
        name = f"{job.name}{run}"
        folder = self.folder(name, job.by)
        script = job.script.format(train=f"{TRAIN} {job.words}")
        return self.cluster.submit(script, *job.sbatch, f"--chdir={folder}", f"--job-name={name}", by=job.by)

    def verdict(self, job: Job, number: str, run: str = "") -> dict[str, object] | None:
        """Of a job that hung, once it is there."""
        folder = self.cluster.shared / f"{job.name}{run}" / "hangscope"
        for file in sorted(folder.rglob("verdict.json")):
            if f"/{number}/" in f"{file}/":
                found: dict[str, object] = json.loads(file.read_text())
                return found
        return None

    def lines(self, number: str) -> list[str]:
        """What a job printed, without what torchrun says on some ends and not on others."""
        return sorted(line for line in self.cluster.log(number).splitlines() if _TOLD.search(line))

    def agents(self) -> list[str]:
        """Of all nodes, the processes of ours."""
        found = []
        for node in self.cluster.nodes:
            listed = self.cluster.on(node, "ps -eo user:20,args", root=True).stdout.splitlines()
            found += [f"{node}: {line}" for line in listed if re.search(r"hangscope.* (agent|attach)\b|prolog", line)]
        return found


def named(verdict: dict[str, object] | None) -> str:
    """In one line whom and where a verdict names."""
    if verdict is None:
        return "no verdict"
    said = []
    for each in verdict["culprits"]:  # type: ignore[attr-defined]
        where = each["where"] or {}
        said.append(f"rank {each['rank']} on {each['node']}, {where.get('function')}:{where.get('line')}")
    return f"{verdict['kind']}: {'; '.join(said) or 'nobody'} ({verdict['confidence']})"


def line_of_fault() -> int:
    text = TRAIN.read_text().splitlines()
    return text.index("def stuck_in_loader():") + 2


def is_named(verdict: dict[str, object] | None) -> bool:
    if verdict is None or len(verdict["culprits"]) != 1:  # type: ignore[arg-type]
        return False
    only = verdict["culprits"][0]  # type: ignore[index]
    return only["rank"] == 1 and (only["where"] or {}).get("line") == line_of_fault()


def trial(platform: Platform, wanted: Sequence[Job], *, spank: bool) -> bool:
    cluster = platform.cluster
    well = [job for job in wanted if not job.hangs and not job.off]
    before = {job.name: platform.submit(job, "-before") for job in well}
    for number in before.values():
        cluster.wait(number, WAIT_S)
    lines = platform.write("--agent '--stall-after 10'")
    plugins = platform.spank() if spank else []
    if spank:
        service = "echo $$ >/run/service.pid; exec hangscope agent --stall-after 10 >>/var/log/hangscope-agent.log 2>&1"
        for node in cluster.nodes:
            subprocess.Popen(cluster.words(node, service, root=True))
    cluster.configure([] if spank else lines, plugins)
    print(*[] if spank else lines, *plugins, "", sep="\n")
    good = True
    numbers: dict[str, str] = {}
    for start in range(0, len(wanted), 5):  # this machine has two cores
        part = wanted[start : start + 5]
        numbers |= {job.name: platform.submit(job) for job in part}
        for job in part:
            number = numbers[job.name]
            told = number + job.task
            if job.hangs:
                verdict = None
                until = time.monotonic() + WAIT_S
                while (verdict := platform.verdict(job, told)) is None and time.monotonic() < until:
                    time.sleep(1.0)
                right = is_named(verdict)
                print(f"{'ok' if right else 'WRONG':6}{job.name:14}{USERS[job.by]:9}{named(verdict)}", flush=True)
                good = good and right
            elif not job.off:
                cluster.wait(number, WAIT_S)
        for job in part:
            number = numbers[job.name]
            if job.off:
                time.sleep(20.0)  # twice as long as a stall takes
            if job.hangs or job.off:
                cluster.on("login", f"scancel {number}", root=True)
                cluster.wait(number, WAIT_S)
            if job.hangs:
                continue
            left = sorted(os.listdir(cluster.shared / job.name))
            same = job.off or platform.lines(number) == platform.lines(before[job.name])
            status = cluster.exit_status(number)
            right = same and (job.crashes or not left) and (job.off or status == job.status)
            what = f"exit status {status}, output {'as before' if same else 'differs'}, files left: {left or 'none'}"
            print(f"{'ok' if right else 'WRONG':6}{job.name:14}{USERS[job.by]:9}{'left alone' if job.off else what}")
            if not same:
                old, new = platform.lines(before[job.name]), platform.lines(number)
                print("      new:", [line for line in new if line not in old][:5])
            good = good and right
    cluster.configure([], [])
    for node in cluster.nodes if spank else ():
        cluster.on(node, "kill $(cat /run/service.pid)", root=True)
    time.sleep(3.0)
    after = cluster.on("login", "srun -N2 -n2 env").stdout
    agents = platform.agents()
    clean = not re.search(r"hangscope-\d|HANGSCOPE", after) and not agents
    said = f"the lines deleted: nothing in a job's environment, processes: {agents or 'none'}"
    print(f"{'ok' if clean else 'WRONG':6}{said}")
    return good and clean


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--spank", action="store_true")
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    if why := slurm_cluster.missing():
        print(why, file=sys.stderr)
        return 2
    lab = Path(tempfile.mkdtemp(prefix="slurm-platform-", dir="/tmp"))
    lab.chmod(0o755)
    cluster = SlurmCluster(lab)
    try:
        cluster.up()
        good = trial(
            Platform(cluster), [job for job in JOBS if not given.names or job.name in given.names], spank=given.spank
        )
    finally:
        if given.keep is not None:
            for node in cluster.nodes:
                log = cluster.on(node, "cat /var/log/hangscope-agent.log", root=True, check=False).stdout
                (cluster.shared / f"agent-{node}.log").write_text(log)
            shutil.copytree(cluster.shared, given.keep, symlinks=True, dirs_exist_ok=True)
        cluster.down()
        shutil.rmtree(lab, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
