"""Random kills on a real Slurm: of hangscope's own processes, by scancel, time limits, requeues and lost nodes.

    python tests/record/slurm_kills.py --jobs 100 [--blows N] [--minutes M] [--together 3] [--seed N] [--keep DIR]

Each job has two nodes and a rank on each, under `hangscope run`. Healthy ones write a hash of their weights at the end;
the hung ones stop moving on rank 1. While they run, things are done to them at random. What must hold:

- a healthy job that lost only hangscope's relays, or got signals that it heeds, ends with 0 and the weights of a job
  without hangscope, and all its output: a relay that is killed may take along what it holds at that instant, a line or
  two; these are counted. So does one that Slurm requeues, in its last attempt;
- what was captured before a blow is there after it, byte by byte: a log may have grown, and a file that a later capture
  wrote anew (they are counted) is whole and no shorter than half of what it was;
- from folder and log alike, nobody is accused at medium or high but rank 1 of a hung job, and ranks whose node or whose
  `run` was killed; and no node is to be excluded but a killed one.

Needs root, Debian's Slurm and torch. A job takes some 20 s, one with a time limit 70.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from kits import slurm_cluster
from kits.slurm_cluster import SlurmCluster

JOBS = Path(__file__).parents[1] / "recorder" / "jobs"
STEPS = 150
AT = 15
STALL_S = 4
LOST_LINES = 2
"""What a relay may hold when it is killed: a line of each stream."""
WAIT_S = 300.0
STARTS = {
    "torchrun": "srun --kill-on-bad-exit=0 {run} torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d"
    " --rdzv-id $SLURM_JOB_ID --rdzv-endpoint $(scontrol show hostnames | head -1):$((20000 + SLURM_JOB_ID % 10000))"
    " {program}",
    "tasks": "export MASTER_ADDR=$(scontrol show hostnames | head -1)"
    " MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))\n"
    "srun --kill-on-bad-exit=0 {run} sh -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"
    " exec python {program}'",
}
FAULTS = ("sleep", "gil", "stop")
HARMLESS = ("relay", "signal", "snapshot")
"""What a job must not even notice."""
ENDS = ("scancel", "time limit", "requeue", "node", "run")


@dataclass(frozen=True)
class Seen:
    """What a file held."""

    size: int
    digest: bytes

    @classmethod
    def of(cls, data: bytes) -> Seen:
        return cls(len(data), hashlib.sha256(data).digest())


@dataclass
class Trial:
    """`nodes` are shared with no other job. `fault` is none for a healthy one; `end` is how it is ended, if it is."""

    number: int
    nodes: tuple[str, str]
    start: str
    fault: str
    end: str
    on_hang_kill: bool
    blows: int
    job: str = ""
    struck: set[int] = field(default_factory=set)
    """The ranks whose node or `run` was killed."""
    lost_nodes: set[str] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)
    kept: dict[Path, Seen] = field(default_factory=dict)
    """The evidence that lay there before something was done."""

    @property
    def name(self) -> str:
        return f"{self.number:04d}-{self.start}-{self.fault}-{(self.end or 'left alone').replace(' ', '-')}"

    @property
    def untouched(self) -> bool:
        return self.fault == "none" and self.end == ""

    @property
    def comes_back(self) -> bool:
        """Whether Slurm starts it once more, and it then has to end well."""
        return self.fault == "none" and self.end in ("requeue", "node")


def drawn(number: int, nodes: tuple[str, str], chance: random.Random) -> Trial:
    hung = chance.random() < 0.5
    end = chance.choice(("", *ENDS[:1], *ENDS)) if hung else chance.choice(("", "", "", *ENDS))
    start = chance.choice(tuple(STARTS))
    fault = chance.choice(FAULTS) if hung else "none"
    kill = hung and (end == "" or chance.random() < 0.15)
    return Trial(number, nodes, start, fault, end, kill, blows=chance.randint(0, 12))


class Lab:
    def __init__(self, cluster: SlurmCluster, chance: random.Random) -> None:
        self.cluster = cluster
        self.chance = chance
        self.weights: str | None = None
        self.lock = threading.Lock()

    # ---- one job -----------------------------------------------------------------------------------------------------

    def run(self, trial: Trial) -> list[str]:
        """What went wrong."""
        self._submit(trial)
        try:
            self.cluster.until(trial.job, "rank 1 step 3\n", WAIT_S)
            self._torment(trial)
            if trial.end:
                self._end(trial)
            state = self.cluster.wait(trial.job, WAIT_S)
        except RuntimeError as error:
            self.cluster.on("login", f"scancel -f {trial.job}", check=False)
            return [f"it did not come to its end: {str(error)[-600:]}"]
        finally:
            self._bring_back(trial)
        return [*self._harm(trial, state), *self._lost(trial), *self._accused(trial)]

    def _submit(self, trial: Trial) -> None:
        results = self.cluster.shared / f"{trial.name}.results"
        results.mkdir()
        results.chmod(0o777)
        folder = self.cluster.shared / trial.name
        options = f"--stall-after {STALL_S} --keep"
        if trial.on_hang_kill:
            options += " --on-hang kill --kill-after 0 --grace 3"
        if trial.fault == "none":
            program = f"{JOBS / 'steady.py'} {results} --steps {STEPS} --pause 0.1 --heed"
        else:
            program = f"{JOBS / 'train.py'} --steps 100000 --pause 0.1 --rank 1 --at {AT} --fault {trial.fault}"
        run = f"hangscope run --dir {folder}.${{SLURM_RESTART_COUNT:-0}} {options} --"
        script = f"{STARTS[trial.start].format(run=run, program=program)}\nexit $?"
        again = "--requeue" if trial.comes_back or trial.end == "requeue" else "--no-requeue"
        limit = ("--time=1",) if trial.end == "time limit" else ()
        words = ("--nodes=2", "--ntasks=2", f"--nodelist={','.join(trial.nodes)}", "--open-mode=append", again, *limit)
        trial.job = self.cluster.submit(script, *words)

    def _torment(self, trial: Trial) -> None:
        """Blows that cost hangscope its helpers, or ask it for something, and the job nothing."""
        for _ in range(trial.blows):
            time.sleep(self.chance.uniform(0.05, 0.4))
            kind = self.chance.choices(HARMLESS, (12, 2, 1))[0]
            self._note_evidence(trial)
            if kind == "relay" and self._kill_one(trial, b"relay.py") is None:
                continue
            if kind == "signal":
                if trial.fault != "none" or trial.start != "tasks":
                    continue  # torchrun dies of USR1, with hangscope as without
                self.cluster.on("login", f"scancel -s USR1 {trial.job}.0", check=False)
            if kind == "snapshot":
                self.cluster.on("login", f"hangscope snapshot {self._folder(trial)}", check=False, timeout_s=120)
            trial.done[kind] += 1

    def _end(self, trial: Trial) -> None:
        if trial.fault != "none":
            self.cluster.until(trial.job, "fault at", WAIT_S)
            time.sleep(self.chance.uniform(0, 3 * STALL_S + 6))
        else:
            time.sleep(self.chance.uniform(0, 2))
        self._note_evidence(trial)
        if trial.end == "time limit":
            trial.done[trial.end] += 1
            return
        ended = self.cluster.state(trial.job)
        if ended != "RUNNING":
            return
        trial.done[trial.end] += 1
        _ENDS[trial.end](self, trial)

    def cancel(self, trial: Trial) -> None:
        how = self.chance.choice(("", "-s TERM ", "-s KILL ", "-b -s TERM ", "-s INT "))
        self.cluster.on("login", f"scancel {how}{trial.job}", check=False)
        time.sleep(2)
        if how:  # a signal to the steps or the batch shell alone need not end the job
            self.cluster.on("login", f"scancel {trial.job}", check=False)

    def requeue(self, trial: Trial) -> None:
        self.cluster.on("login", f"scontrol requeue {trial.job}", check=False)
        if trial.fault != "none":
            time.sleep(3)
            self.cluster.on("login", f"scancel {trial.job}", check=False)

    def lose_node(self, trial: Trial) -> None:
        rank = self.chance.randrange(2)
        self.cluster.kill(trial.nodes[rank])
        trial.struck.add(rank)
        trial.lost_nodes.add(trial.nodes[rank])
        deadline = time.monotonic() + 60
        while self.cluster.state(trial.job) == "RUNNING" and time.monotonic() < deadline:
            time.sleep(0.5)
        self._bring_back(trial)

    def kill_run(self, trial: Trial) -> None:
        """SIGKILL of `hangscope run`, which is the task: Slurm ends that node's part of the step."""
        node = self._kill_one(trial, b"hangscope\0run\0")
        if node is not None:
            trial.struck.add(trial.nodes.index(node))
        time.sleep(10)
        self.cluster.on("login", f"scancel {trial.job}", check=False)

    def _kill_one(self, trial: Trial, part: bytes) -> str | None:
        """SIGKILL of one process of the job with this in its command line; the node that it ran on."""
        found = self.cluster.processes(trial.job, part)
        if not found:
            return None
        pid, node = self.chance.choice(found)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        return node

    def _bring_back(self, trial: Trial) -> None:
        """The job's nodes are up and idle before another job gets them."""
        for node in trial.nodes:
            with self.lock:
                if node not in self.cluster.machines:
                    self.cluster.start(node)
        if trial.lost_nodes:
            deadline = time.monotonic() + 60
            wanted = f"sinfo -h -N -n {','.join(trial.nodes)} -o %T"
            while "down" in self.cluster.on("login", wanted, check=False).stdout and time.monotonic() < deadline:
                time.sleep(1)

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def _folder(self, trial: Trial) -> Path:
        return self.cluster.shared / f"{trial.name}.0"

    def _evidence(self, trial: Trial) -> Iterator[tuple[Path, bytes]]:
        for kind in ("dumps", "stacks", "logs", "processes"):
            for file in self._folder(trial).glob(f"**/{kind}/*"):
                compared = any(each.name.startswith("look-") for each in file.parents)  # for a moment, by the agents
                with contextlib.suppress(OSError):
                    if file.is_file() and not file.name.startswith(".") and not compared:
                        yield file, file.read_bytes()

    def _note_evidence(self, trial: Trial) -> None:
        trial.kept.update((file, Seen.of(data)) for file, data in self._evidence(trial))

    def _lost(self, trial: Trial) -> list[str]:
        now = dict(self._evidence(trial))
        wrong = [f"evidence lost: {file}" for file in trial.kept if file not in now]
        for file, before in trial.kept.items():
            data = now.get(file)
            if data is None or Seen.of(data[: before.size]) == before:
                trial.done["files kept"] += data is not None
                continue
            trial.done["files written anew"] += 1
            if not _is_whole(file, data) or 2 * len(data) < before.size:
                wrong.append(f"evidence damaged: {file}: {before.size} bytes before, {len(data)} now")
        return wrong

    def _harm(self, trial: Trial, state: str) -> list[str]:
        wrong = []
        status = self.cluster.exit_status(trial.job)
        if trial.untouched or trial.comes_back:
            if (state, status) != ("COMPLETED", "0:0"):
                wrong.append(f"a healthy job ended as {state} {status}")
            else:
                wrong += self._results(trial)
        if trial.on_hang_kill and trial.end == "" and (state, status) != ("FAILED", "75:0"):
            wrong.append(f"a hung job under --on-hang kill ended as {state} {status}")
        return wrong

    def _results(self, trial: Trial) -> list[str]:
        wrong = []
        found = {rank: self.cluster.shared / f"{trial.name}.results" / f"rank_{rank}" for rank in range(2)}
        texts = {file.read_text() if file.exists() else "nothing" for file in found.values()}
        with self.lock:
            if self.weights is None:
                self.weights = self._plain()
        if texts != {self.weights}:
            wrong.append(f"its weights are {texts}, without hangscope {self.weights}")
        if trial.untouched:
            lines = Counter(re.findall(r"(?m)^rank (\d) step (\d+)$", self.cluster.log(trial.job)))
            missing = [pair for rank in "01" for step in range(STEPS) if lines[pair := (rank, str(step))] != 2]
            lost = sum(2 - lines[pair] for pair in missing)
            trial.done["lines lost"] += lost
            if lost > LOST_LINES * trial.done["relay"]:
                seen = {pair: lines[pair] for pair in missing[:6]}
                wrong.append(f"output of {len(missing)} steps is not there twice (stdout, stderr): {seen}")
        return wrong

    def _plain(self) -> str:
        """What the job computes without hangscope."""
        results = self.cluster.shared / "plain.results"
        results.mkdir()
        results.chmod(0o777)
        program = f"{JOBS / 'steady.py'} {results} --steps {STEPS} --pause 0.1 --heed"
        job = self.cluster.submit(STARTS["tasks"].format(run="", program=program), "--nodes=2", "--ntasks=2")
        self.cluster.wait(job, WAIT_S)
        return (results / "rank_0").read_text()

    def _accused(self, trial: Trial) -> list[str]:
        """Innocents that a verdict names at medium or high, and nodes to exclude that were not killed."""
        allowed = set(trial.struck) | ({1} if trial.fault != "none" else set())
        wrong = []
        for path in (self._folder(trial), self.cluster.shared / f"slurm-{trial.job}.out"):
            if not path.exists():
                continue
            verdict = self._ask(f"hangscope diagnose --json {path}")
            names = self._ask(f"hangscope exclude --format names {path}")
            sure = verdict.get("confidence") in ("medium", "high")
            named = {each["rank"] for each in verdict.get("culprits", ())}
            nodes = {each["node"] for each in verdict.get("culprits", ()) if each.get("rank") is None}
            if sure and (named - allowed - {None}):
                wrong.append(f"{path.name}: {verdict.get('headline')!r} names {named}, right is {allowed or 'nobody'}")
            if sure and nodes - trial.lost_nodes - {None, trial.nodes[1] if trial.fault != "none" else None}:
                wrong.append(f"{path.name}: {verdict.get('headline')!r} names {nodes}")
            if trial.fault == "none" and not allowed and verdict.get("outcome") in ("hang", "crash") and sure:
                wrong.append(f"{path.name}: a healthy job is called {verdict['outcome']}: {verdict.get('headline')!r}")
            if set(names.get("text", "").split()) - trial.lost_nodes:
                wrong.append(f"{path.name}: exclude names {names['text'].split()}")
            if trial.fault != "none" and path.is_dir():
                trial.done["named" if 1 in named else "nobody" if not named else "another"] += 1
        return wrong

    def _ask(self, command: str) -> dict[str, Any]:
        done = self.cluster.on("login", command, check=False, timeout_s=WAIT_S)
        with contextlib.suppress(ValueError):
            return json.loads(done.stdout)  # type: ignore[no-any-return]
        return {"text": done.stdout}


def _is_whole(file: Path, data: bytes) -> bool:
    if file.suffix != ".json":
        return bool(data)
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


_ENDS: dict[str, Callable[[Lab, Trial], None]] = {
    "scancel": Lab.cancel,
    "requeue": Lab.requeue,
    "node": Lab.lose_node,
    "run": Lab.kill_run,
}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--blows", type=int, default=10**9, help="start no further job after so many")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no further job after so long")
    parser.add_argument("--together", type=int, default=3)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--keep", type=Path, help="what went wrong is kept here")
    given = parser.parse_args(words)
    if why := slurm_cluster.missing():
        print(why, file=sys.stderr)
        return 2
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="slurm-kills-", dir="/tmp"))
    folder.chmod(0o755)
    cluster = SlurmCluster(folder, nodes=2 * given.together)
    lab = Lab(cluster, chance)
    free = [(f"n{2 * index + 1}", f"n{2 * index + 2}") for index in range(given.together)]
    counts: Counter[str] = Counter()
    struck: list[int] = []
    problems = 0
    jobs = 0

    until = time.monotonic() + 60 * given.minutes

    def one(number: int) -> tuple[Trial, list[str]] | None:
        if time.monotonic() > until or sum(struck) >= given.blows:
            return None
        pair = free.pop()
        trial = drawn(number, pair, chance)
        try:
            return trial, lab.run(trial)
        finally:
            struck.append(sum(trial.done[kind] for kind in (*HARMLESS, *ENDS)))
            free.append(pair)

    try:
        cluster.up()
        with ThreadPoolExecutor(given.together) as pool:
            for trial, wrong in filter(None, pool.map(one, range(1, given.jobs + 1))):
                jobs += 1
                counts.update(trial.done)
                counts["healthy jobs" if trial.fault == "none" else "hung jobs"] += 1
                problems += bool(wrong)
                said = "; ".join(f"{n} {kind}" for kind, n in sorted(trial.done.items())) or "nothing done"
                print(f"{trial.name}: {'WRONG' if wrong else 'well'} ({said})", flush=True)
                for line in wrong:
                    print(f"    {line}", flush=True)
                _clear(cluster, trial, given.keep if wrong else None)
    finally:
        cluster.down()
        shutil.rmtree(folder, ignore_errors=True)
    kills = sum(counts[kind] for kind in (*HARMLESS, *ENDS))
    print(f"{kills} blows over {jobs} jobs, {problems} of them wrong: {dict(counts)}")
    return 1 if problems else 0


def _clear(cluster: SlurmCluster, trial: Trial, keep: Path | None) -> None:
    for path in (*cluster.shared.glob(f"{trial.name}.*"), cluster.shared / f"slurm-{trial.job}.out"):
        if keep is not None and path.exists():
            target = keep / trial.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target, symlinks=True)
            else:
                shutil.copy(path, target)
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
