"""Runs jobs on a real Slurm that end in many ways, and judges what is said of each from each kind of evidence.

    python tests/record/slurm_table.py [--out DIR] [NAME…]

Prints a table in Markdown: launch style x what goes wrong x how it ends x evidence. A situation is right where exactly
the culprit is named, or honestly nobody where nobody is one; naming an innocent at medium or high is wrong. With --out
the logs that Slurm wrote stay there. Needs root, Debian's Slurm and torch; takes some minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from kits import slurm_cluster
from kits.slurm_cluster import SlurmCluster

TRAIN = Path(__file__).parents[1] / "recorder" / "jobs" / "train.py"
STEPS = "--steps 100000 --pause 0.1 --rank 1 --at 20"
KILL = "--stall-after 6 --on-hang kill --kill-after 0 --grace 3"
PATIENT = "--stall-after 300"
HASTY = "--stall-after 6"
STARTS = {
    "torchrun": "srun --kill-on-bad-exit=0 {run} torchrun --nnodes $SLURM_NNODES --nproc-per-node 1 --rdzv-backend c10d"
    " --rdzv-id $SLURM_JOB_ID --rdzv-endpoint $(scontrol show hostnames | head -1):$((20000 + SLURM_JOB_ID % 10000))"
    " {train} {words}",
    "task a rank": "export MASTER_ADDR=$(scontrol show hostnames | head -1)"
    " MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))\n"
    "srun --kill-on-bad-exit=0 {run} sh -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"
    " exec python {train} {words}'",
}
STARTS["array"] = STARTS["task a rank"]
STARTS["heterogeneous"] = STARTS["task a rank"].replace("srun ", "srun --het-group=0,1 ")
STARTS["--export=NONE"] = "export PATH={bin}:$PATH\n" + STARTS["task a rank"].replace("srun ", "srun --export=ALL ")
NOBODY: frozenset[int] = frozenset()
WAIT_S = 240


@dataclass(frozen=True)
class Truth:
    """`ranks` are the culprits; `node` is one that failed. `outcomes` are the right first words."""

    outcomes: tuple[str, ...]
    ranks: frozenset[int] = NOBODY
    node: str = ""
    or_nobody: tuple[str, ...] = ()
    """Kinds of evidence that cannot know: silence is right for them."""
    also: frozenset[int] = NOBODY
    """Ranks that may be named beside or instead: something was done to them, too."""


@dataclass(frozen=True)
class Situation:
    name: str
    start: str
    fault: str
    end: str
    truth: Truth
    options: str | None = PATIENT
    """Of `hangscope run`; None for a job without it."""
    sbatch: tuple[str, ...] = ()
    nodes: str = "n1,n2"
    evidence: tuple[str, ...] = ("folder", "log")
    part: str = ""
    """What stands behind the job's number where a snapshot is taken: one task of an array, one component."""


RUN_GONE = Truth(("crash", "hang", "unknown"), frozenset({1}), or_nobody=("folder", "log"), also=frozenset({0}))
HANG = Truth(("hang",), frozenset({1}), or_nobody=("log",))
CRASH = Truth(("crash",), frozenset({1}))
ENDED = Truth(("unknown", "ok"))
LOST = Truth(("crash", "hang"), frozenset({1}), "n4")
TWO_GONE = Truth(("crash", "hang", "unknown"), frozenset({1, 2}), or_nobody=("folder", "log"), also=frozenset({1, 2}))
HANG_UNSEEN = Truth(("hang",), frozenset({1}), or_nobody=("folder", "log"))
FIRST_LOST = Truth(("crash", "hang"), frozenset({0}), "n3", or_nobody=("log",))
SITUATIONS = (
    Situation("killed-torchrun", "torchrun", "sleep", "--on-hang kill", HANG, KILL),
    Situation("killed-tasks", "task a rank", "sleep", "--on-hang kill", HANG, KILL),
    Situation("killed-stopped", "torchrun", "stop", "--on-hang kill", HANG, KILL),
    Situation("killed-gil", "task a rank", "gil", "--on-hang kill", HANG, KILL),
    Situation("cancelled-torchrun", "torchrun", "sleep", "scancel", HANG, evidence=("folder", "log", "status")),
    Situation("cancelled-tasks", "task a rank", "sleep", "scancel", HANG, evidence=("folder", "log", "status")),
    Situation("time-tasks", "task a rank", "sleep", "time limit", HANG, sbatch=("--time=1",)),
    Situation("time-healthy", "torchrun", "none", "time limit", ENDED, sbatch=("--time=1",)),
    Situation("healthy-torchrun", "torchrun", "none", "scancel", ENDED),
    Situation("healthy-tasks", "task a rank", "none", "scancel", ENDED),
    Situation("raise-torchrun", "torchrun", "raise", "by itself", CRASH),
    Situation("raise-tasks", "task a rank", "raise", "by itself", CRASH),
    Situation("sigkill-torchrun", "torchrun", "kill", "by itself", CRASH),
    Situation("sigkill-tasks", "task a rank", "kill", "by itself", CRASH),
    Situation(
        "requeued", "task a rank", "sleep", "scontrol requeue", HANG, sbatch=("--requeue",), evidence=("folder",)
    ),
    Situation("plain-torchrun", "torchrun", "sleep", "scancel", HANG, None, evidence=("snapshot", "log")),
    Situation("plain-tasks", "task a rank", "sleep", "scancel", HANG, None, evidence=("snapshot", "log")),
    Situation("plain-raise", "task a rank", "raise", "by itself", CRASH, None, evidence=("log",)),
    Situation("lost-tasks", "task a rank", "none", "node lost", LOST, nodes="n3,n4", sbatch=("--no-requeue",)),
    Situation("lost-torchrun", "torchrun", "none", "node lost", LOST, nodes="n3,n4", sbatch=("--no-requeue",)),
    Situation("cut-tasks", "task a rank", "none", "node cut off", LOST, HASTY, ("--no-requeue",), "n3,n4"),
    Situation("cut-torchrun", "torchrun", "none", "node cut off", LOST, HASTY, ("--no-requeue",), "n3,n4"),
    Situation("lost-first", "task a rank", "none", "node lost", FIRST_LOST, HASTY, ("--no-requeue",), "n3,n4"),
    Situation("lost-plain", "torchrun", "none", "node lost", LOST, None, ("--no-requeue",), "n3,n4", evidence=("log",)),
    Situation(
        "array", "array", "sleep", "scancel", HANG, HASTY, ("--array=1-2",), evidence=("first", "second"), part="_2"
    ),
    Situation(
        "array-plain", "array", "sleep", "scancel", HANG, None, ("--array=1-2",), evidence=("snapshot",), part="_2"
    ),
    Situation("het", "heterogeneous", "sleep", "scancel", HANG, HASTY),
    Situation("het-plain", "heterogeneous", "sleep", "scancel", HANG, None, evidence=("snapshot",)),
    Situation("export-none", "--export=NONE", "sleep", "scancel", HANG, HASTY, ("--export=NONE",)),
    Situation(
        "export-none-plain", "--export=NONE", "sleep", "scancel", HANG, None, ("--export=NONE",), evidence=("snapshot",)
    ),
    Situation("run-killed-tasks", "task a rank", "none", "run killed on n2", RUN_GONE, HASTY),
    Situation("run-killed-torchrun", "torchrun", "none", "run killed on n2", RUN_GONE, HASTY),
    Situation("run-killed-hung", "task a rank", "sleep", "run killed on n2", RUN_GONE, HASTY),
    Situation("run-killed-other", "torchrun", "sleep", "run killed on n1", RUN_GONE, HASTY),
    Situation("run-killed-twice", "task a rank", "none", "run killed on n2,n3", TWO_GONE, HASTY, nodes="n1,n2,n3"),
    Situation("task-killed-tasks", "task a rank", "none", "task killed on n2", RUN_GONE, HASTY),
    Situation("task-killed-torchrun", "torchrun", "none", "task killed on n2", RUN_GONE, HASTY),
    Situation("task-killed-first", "task a rank", "none", "task killed on n1", RUN_GONE, HASTY, nodes="n1,n2"),
    Situation("run-stopped", "task a rank", "sleep", "run stopped on n2", HANG_UNSEEN, HASTY),
    Situation("disk-lost", "task a rank", "sleep", "disk lost on n2", HANG_UNSEEN, HASTY),
)


@dataclass
class Ended:
    """What a job left: its number and the snapshot that was taken, if one was."""

    number: str
    snapshot: str = ""


@dataclass
class Lab:
    cluster: SlurmCluster
    rows: list[tuple[Situation, str, str, str]] = field(default_factory=list)
    """The situation, the evidence, what was said, and the judgement."""

    def run(self, situation: Situation) -> None:
        try:
            ended = self._job(situation)
            for evidence in situation.evidence:
                verdict = self._verdict(situation, evidence, ended)
                self.rows.append((situation, evidence, _said(verdict), judge(situation.truth, evidence, verdict)))
        except (RuntimeError, OSError, ValueError) as error:
            self.rows.append((situation, "-", str(error)[-200:].replace("\n", " "), "not run"))
        print(f"{situation.name} done", file=sys.stderr, flush=True)

    def _job(self, situation: Situation) -> Ended:
        folder = self.cluster.shared / situation.name
        run = "" if situation.options is None else f"hangscope run --dir {folder} {situation.options} --"
        words = f"{STEPS} --fault {situation.fault}"
        script = STARTS[situation.start].format(run=run, train=TRAIN, words=words, bin=Path(sys.prefix) / "bin")
        nodes = situation.nodes.split(",")
        options = [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", f"--nodelist={situation.nodes}"]
        if situation.start == "heterogeneous":
            options = " : ".join(f"--nodes=1 --ntasks=1 --nodelist={node}" for node in nodes).split()
        options += situation.sbatch
        number = self.cluster.submit(script, *options)
        self.cluster.until(number, "rank 0 step 19\n", WAIT_S)
        ended = Ended(number)
        end, _, on = situation.end.partition(" on ")
        if on:
            self.strike(end, on.split(","), situation, ended)
        else:
            _ENDS[end](self, situation, ended)
        self.cluster.wait(number, WAIT_S)
        return ended

    def _verdict(self, situation: Situation, evidence: str, ended: Ended) -> dict[str, Any]:
        folder = self.cluster.shared / situation.name
        if evidence == "log":
            path = self.cluster.shared / f"slurm-{ended.number}.out"
        elif evidence == "snapshot":
            path = Path(ended.snapshot)
        elif evidence == "second":  # the other task of an array, which was given the same --dir
            path = folder / "run-2"
        elif evidence == "status":
            path = self.cluster.shared / f"{situation.name}-status"
            for file in folder.glob("nodes/*/status.json"):
                (path / file.parent.name).mkdir(parents=True)
                shutil.copy(file, path / file.parent.name)
        else:
            path = folder
        job = f"--job {ended.number}_1 " if evidence == "first" else ""  # DIR has both tasks' incidents
        done = self.cluster.on("login", f"hangscope diagnose --json {job}{path}", check=False, timeout_s=WAIT_S)
        verdict = json.loads(done.stdout) if done.stdout else {"outcome": f"status {done.returncode}", "culprits": []}
        names = self.cluster.on("login", f"hangscope exclude --format names {job}{path}", check=False, timeout_s=WAIT_S)
        return {**verdict, "excluded": names.stdout.split()}

    # ---- how jobs end ------------------------------------------------------------------------------------------------

    def cancel(self, situation: Situation, ended: Ended) -> None:
        time.sleep(9)
        if situation.options is None:
            job = f"{ended.number}{situation.part}"
            take = f"hangscope snapshot --slurm {job} --dir {self.cluster.shared}/{situation.name}"
            ended.snapshot = self.cluster.on("login", take, timeout_s=WAIT_S).stdout.strip()
        self.cluster.on("login", f"scancel {ended.number}")

    def requeue(self, _: Situation, ended: Ended) -> None:
        time.sleep(9)
        self.cluster.on("login", f"scontrol requeue {ended.number}")
        time.sleep(8)
        self.cluster.on("login", f"scancel {ended.number}")

    def lose_node(self, situation: Situation, ended: Ended) -> None:
        node = situation.truth.node
        time.sleep(3)
        if situation.end == "node cut off":
            self.cluster.cut_off(node)
            self.cluster.wait(ended.number, WAIT_S)
            self.cluster.kill(node)
        else:
            self.cluster.kill(node)
            self.cluster.wait(ended.number, WAIT_S)
        self.cluster.start(node)
        until = time.monotonic() + WAIT_S
        while "idle" not in self.cluster.on("login", f"sinfo -h -n {node} -o %T").stdout and time.monotonic() < until:
            time.sleep(1)

    def strike(self, what: str, nodes: list[str], situation: Situation, ended: Ended) -> None:
        """Takes the agents of these nodes away, and nothing else; the others have the time to say something of it."""
        time.sleep(1)
        if what == "disk lost":
            for node in nodes:
                folder = self.cluster.shared / situation.name / "nodes" / node
                os.chown(folder, 0, 0)
                folder.chmod(0o555)
        else:
            number = signal.SIGSTOP if what == "run stopped" else signal.SIGKILL
            for pid, node in self._task(ended.number) if what == "task killed" else self._runs(ended.number):
                if node in nodes:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
        time.sleep(35)
        if what == "run stopped":
            for pid, _ in self._runs(ended.number):
                os.kill(pid, signal.SIGCONT)
        self.cluster.on("login", f"scancel {ended.number}", check=False)

    def _runs(self, number: str) -> list[tuple[int, str]]:
        return self.cluster.processes(number, b"hangscope\0run\0")

    def _task(self, number: str) -> list[tuple[int, str]]:
        """All of the tasks' processes, as where Slurm tracks them by cgroup and ends them together."""
        return self.cluster.processes(number, b"python")


_ENDS: dict[str, Callable[[Lab, Situation, Ended], None]] = {
    "scancel": Lab.cancel,
    "scontrol requeue": Lab.requeue,
    "node lost": Lab.lose_node,
    "node cut off": Lab.lose_node,
    "time limit": lambda *_: None,
    "--on-hang kill": lambda *_: None,
    "by itself": lambda *_: None,
}


def judge(truth: Truth, evidence: str, verdict: dict[str, Any]) -> str:
    """right, nobody (where somebody could have been named), or wrong."""
    named = {culprit["rank"] for culprit in verdict["culprits"]}
    innocent = named - truth.ranks - truth.also
    excluded = set(verdict.get("excluded", ()))
    if excluded - {truth.node}:
        return f"wrong: excludes {', '.join(sorted(excluded))}"
    if innocent:
        return "wrong" if verdict.get("confidence") in ("medium", "high") else "weak: names an innocent at low"
    if truth.node and truth.node in str(verdict.get("headline")):
        return "right" if truth.node in excluded else "does not exclude it"
    if (named == truth.ranks or (named and named <= truth.also)) and verdict["outcome"] in truth.outcomes:
        return "right"
    if not named and evidence in truth.or_nobody:
        return "right"
    return "nobody" if not named and verdict["outcome"] != "ok" else f"wrong outcome: {verdict['outcome']}"


def _said(verdict: dict[str, Any]) -> str:
    words = f"{verdict['outcome']}: {verdict.get('headline') or verdict.get('summary') or ''}"
    return f"{words} ({verdict.get('confidence')})".replace("|", "/")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these situations")
    parser.add_argument("--out", type=Path, help="keep Slurm's logs and the incidents there")
    parser.add_argument("--parallel", type=int, default=4)
    given = parser.parse_args()
    if why := slurm_cluster.missing():
        print(why, file=sys.stderr)
        return 2
    chosen = [each for each in SITUATIONS if not given.names or each.name in given.names]
    folder = Path(tempfile.mkdtemp(prefix="slurm-table-", dir="/tmp"))
    folder.chmod(0o755)
    lab = Lab(SlurmCluster(folder))
    try:
        lab.cluster.up()
        with ThreadPoolExecutor(given.parallel) as pool:
            lost = [each for each in chosen if each.truth.node]
            after = pool.submit(lambda: [lab.run(each) for each in lost])  # one after the other: there is one n4
            list(pool.map(lab.run, [each for each in chosen if each not in lost]))
            after.result()
        if given.out is not None:
            shutil.copytree(lab.cluster.shared, given.out, symlinks=True, dirs_exist_ok=True)
    finally:
        lab.cluster.down()
        shutil.rmtree(folder, ignore_errors=True)
    return show(lab.rows)


def show(rows: list[tuple[Situation, str, str, str]]) -> int:
    print("| launched by | what goes wrong | ends by | evidence | said | |\n|---|---|---|---|---|---|")
    for situation, evidence, said, judged in sorted(rows, key=lambda row: (SITUATIONS.index(row[0]), row[1])):
        start = situation.start if situation.options is not None else f"{situation.start}, without run"
        print(f"| {start} | {situation.fault} | {situation.end} | {evidence} | {said} | {judged} |")
    right = sum(judged == "right" for *_, judged in rows)
    print(f"\n{right} of {len(rows)} right")
    return 0 if right == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
