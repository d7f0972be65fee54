"""Trials by hand of what watches a job from outside: does it harm the job, what does it cost, what stops it.

    python tests/kits/attach_trial.py reads --times 3000     # read, also by readers that are killed at random moments
    python tests/kits/attach_trial.py attaches --times 100   # attached to and left, or the watch killed, at random
    python tests/kits/attach_trial.py overhead --times 20    # steps a second, watched and not, in turns, in one job
    python tests/kits/attach_trial.py cpu --ranks 8          # CPU time of the watch
    python tests/kits/attach_trial.py faults --times 50      # faults around `hangscope agent` (root)

Each prints what it counted; the exit status is 1 where a job was harmed or not watched again in time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
sys.path.insert(0, str(SOURCE))

from hangscope.processes import linux_process  # noqa: E402
from hangscope.sources.cannot_read import CannotRead  # noqa: E402
from hangscope.sources.flight_recorder.outside import open_process  # noqa: E402

AGAIN_S = 10.0
HOSTILE = ('{"ended": 7, "live": [[[', "[" * 10_000, '{"job": "../../x"}', "\0" * 99)
JOB = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
weights = torch.rand(64, dtype=torch.float64)
stop, pause = sys.argv[1], float(sys.argv[2])
step = 0
going = torch.ones(1)
while True:
    going[0] = float(not os.path.exists(stop)) if len(sys.argv) < 4 else float(step < int(sys.argv[3]))
    dist.all_reduce(going, op=dist.ReduceOp.MIN)
    if not going.item():
        break
    part = torch.sin(weights + step)
    dist.all_reduce(part)
    weights = (weights + part) / 3
    step += 1
    if dist.get_rank() == 0 and step % 50 == 0:
        with open(stop + ".steps", "w") as out:
            out.write(str(step))
    time.sleep(pause)
dist.barrier()
time.sleep(0.5)
print(dist.get_rank(), step, weights.sum().item().hex(), flush=True)
dist.destroy_process_group()
"""


class Job:
    def __init__(
        self, folder: Path, ranks: int, pause: float, steps: int | None = None, user: int | None = None
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.py").write_text(JOB)
        if user is not None:
            os.chown(folder, user, user)
        self.stop_file = folder / "stop"
        python = sys.executable if user is None else "/usr/bin/python3"
        words = [python, "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
        words += [f"--nproc-per-node={ranks}", str(folder / "job.py"), str(self.stop_file), str(pause)]
        packages = next(place for place in sys.path if (Path(place) / "torch").is_dir())
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": packages, "HOME": str(folder)}
        become = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                words + ([str(steps)] if steps is not None else []), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env=environ, cwd=folder, start_new_session=True, **become,  # type: ignore[call-overload]
            )  # fmt: skip

    def begun(self) -> Job:
        until = time.monotonic() + 120
        while not self.steps() and time.monotonic() < until:
            time.sleep(0.2)
        assert self.steps(), (self.folder / "err").read_text()[-2000:]
        return self

    def steps(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int(Path(f"{self.stop_file}.steps").read_text())
        return 0

    def ranks(self) -> list[int]:
        below = [pid for pid, _ in linux_process.descendants(self.process.pid)]
        return [pid for pid in below if "RANK" in linux_process.environment(pid)]

    def state(self) -> list[tuple[int, int, list[str]]]:
        """Of each rank its threads and open files."""
        found = []
        for pid in self.ranks():
            place = Path("/proc") / str(pid)
            files = sorted(os.readlink(each) for each in (place / "fd").iterdir())
            found.append((pid, len(list((place / "task").iterdir())), files))
        return found

    def end(self) -> tuple[int, list[str]]:
        self.stop_file.touch()
        status = self.process.wait(120)
        return status, sorted((self.folder / "out").read_text().splitlines())

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid in self.ranks():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def hangscope(*words: str, python: str = sys.executable, out: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    packages = next(place for place in sys.path if (Path(place) / "torch").is_dir())
    environ = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{packages}"}
    return subprocess.Popen(
        [python, "-m", "hangscope", *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ
    )


def reference(folder: Path, steps: int) -> list[str]:
    """What a job of so many steps prints that nobody looks at."""
    job = Job(folder / f"reference-{steps}", 2, 0.0, steps)
    assert job.process.wait(300) == 0
    return sorted((job.folder / "out").read_text().splitlines())


def unharmed(job: Job, before: list[tuple[int, int, list[str]]], folder: Path) -> bool:
    after = job.state()
    status, printed = job.end()
    steps = int(printed[0].split()[1]) if printed else 0
    same = printed == reference(folder, steps) if printed else False
    print(f"exit status {status}, {steps} steps, weights as untouched: {same}")
    print(f"threads and files unchanged: {after == before}")
    return status == 0 and after == before and same


def reads(times: int, folder: Path) -> bool:
    job = Job(folder / "job", 2, 0.002).begun()
    before = job.state()
    done = refused = killed = 0
    ranks = job.ranks()
    while done + refused < times:
        pid = random.choice(ranks)
        if random.random() < 0.1:
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    while True:
                        with open_process(pid) as memory:
                            memory.counters()
                            memory.dump("gloo")
                os._exit(0)
            time.sleep(random.random() * 0.05)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            killed += 1
        try:
            with open_process(pid) as memory:
                memory.counters()
                memory.dump("gloo", stacks=random.random() < 0.5)
            done += 1
        except CannotRead:
            refused += 1
    print(f"{done} reads, {refused} that did not fit together and were refused, {killed} readers killed")
    return unharmed(job, before, folder)


def attaches(times: int, folder: Path) -> bool:
    job = Job(folder / "job", 2, 0.002).begun()
    before = job.state()
    counts = {signal.SIGKILL: 0, signal.SIGINT: 0}
    for number in range(times):
        watch = hangscope("attach", str(job.process.pid), "--dir", str(folder / "i" / str(number)))
        time.sleep(random.random() * 4.0)
        how = random.choice(list(counts))
        watch.send_signal(how)
        watch.wait(60)
        counts[how] += 1
    print(f"{times} attached; {counts[signal.SIGKILL]} watches killed, {counts[signal.SIGINT]} asked to end")
    return unharmed(job, before, folder)


def overhead(times: int, folder: Path) -> bool:
    job = Job(folder / "job", 2, 0.0).begun()
    ratios = []
    for number in range(times):
        speeds = {}
        for watched in (True, False) if number % 2 else (False, True):
            watch = (
                hangscope("attach", str(job.process.pid), "--dir", str(folder / "i" / str(number))) if watched else None
            )
            time.sleep(3.0)  # the start of the watch is not what it costs
            begun, steps = time.monotonic(), job.steps()
            time.sleep(4.0)
            speeds[watched] = (job.steps() - steps) / (time.monotonic() - begun)
            if watch is not None:
                watch.send_signal(signal.SIGINT)
                watch.wait(60)
        if speeds[False]:
            ratios.append(speeds[True] / speeds[False])
    job.end()
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"{len(ratios)} pairs: speed watched / not watched: median {statistics.median(ratios):.3f} ({spread})")
    return True


def cpu(ranks: int, folder: Path, seconds: float = 40.0) -> bool:
    job = Job(folder / "job", ranks, 0.02).begun()
    watch = hangscope("attach", str(job.process.pid), "--dir", str(folder / "i"))
    time.sleep(15.0)  # past the first look at the rings
    used = []
    for _ in range(2):
        found = linux_process.stat(watch.pid)
        assert found is not None
        used.append((time.monotonic(), found.cpu_seconds))
        time.sleep(0 if len(used) == 2 else seconds)
    share = (used[1][1] - used[0][1]) / (used[1][0] - used[0][0])
    watch.send_signal(signal.SIGINT)
    watch.wait(60)
    job.end()
    print(f"{ranks} ranks: the watch takes {100 * share:.2f} % of one core")
    return True


# ---- faults around the agent -----------------------------------------------------------------------------------------


def watchers(agent: subprocess.Popen[bytes]) -> dict[int, int]:
    """By launcher, the process that watches it."""
    found = {}
    for pid, depth in linux_process.descendants(agent.pid):
        match = re.search(r"\battach (\d+)\b", " ".join(linux_process.command_line(pid)))
        if depth == 1 and match is not None:
            found[int(match[1])] = pid
    return found


def faults(times: int, folder: Path) -> bool:
    os.chmod(folder, 0o755)
    users = [62000 + os.getpid() % 1000 * 3 + number for number in range(3)]
    jobs = [Job(folder / f"job-{user}", 1, 0.05, user=user) for user in users]
    for job in jobs:
        job.begun()
    words = [word for user in users for word in ("--user", str(user))]
    agent = hangscope("agent", *words, python="/usr/bin/python3")
    late: list[str] = []
    slowest = 0.0
    counts: dict[str, int] = {}
    kinds = ("watcher killed", "agent killed", "job killed", "folder gone", "hostile status", "folder closed")
    try:
        _await_watchers(agent, jobs)
        for _ in range(times):
            number = random.randrange(len(jobs))
            job, user = jobs[number], users[number]
            kind = random.choice(kinds)
            counts[kind] = counts.get(kind, 0) + 1
            if kind == "watcher killed":
                os.kill(watchers(agent)[job.process.pid], signal.SIGKILL)
            elif kind == "agent killed":
                agent.kill()
                agent.wait()
                agent = hangscope("agent", *words, python="/usr/bin/python3")
            elif kind == "job killed":
                job.kill()
                shutil.rmtree(job.folder, ignore_errors=True)  # its watcher may still write there
                Path(f"{job.stop_file}.steps").unlink(missing_ok=True)
                jobs[number] = Job(job.folder, 1, 0.05, user=user).begun()
            elif kind == "folder gone":
                shutil.rmtree(job.folder / "hangscope", ignore_errors=True)
            elif kind == "hostile status":
                for file in (job.folder / "hangscope").rglob("*.json"):
                    with contextlib.suppress(OSError):
                        file.write_text(random.choice(HOSTILE))
            else:
                os.chmod(job.folder, 0o500)
                time.sleep(2.0)
                os.chmod(job.folder, 0o755)
            seconds = _await_watchers(agent, jobs)
            if seconds is None:
                late.append(kind)
            else:
                slowest = max(slowest, seconds)
            strangers = [
                str(file)
                for each, owner in zip(jobs, users, strict=True)
                for file in (each.folder / "hangscope").rglob("*")
                if file.lstat().st_uid not in (owner, os.geteuid())
            ]
            assert not strangers, strangers
        harmed = [job.process.pid for job in jobs if job.process.poll() is not None]
        said = ", ".join(f"{count} × {kind}" for kind, count in sorted(counts.items()))
        print(f"{times} faults: {said}")
        print(f"jobs harmed: {len(harmed)}; slowest {slowest:.1f} s")
        print(f"not watched again within {AGAIN_S:g} s: {late or 'none'}")
        return not harmed and not late
    finally:
        agent.terminate()
        agent.wait(60)
        for job in jobs:
            job.kill()


def _await_watchers(agent: subprocess.Popen[bytes], jobs: list[Job]) -> float | None:
    """Until every job has a watcher that lives: seconds, None where that took too long."""
    begun = time.monotonic()
    while time.monotonic() - begun < 3 * AGAIN_S:
        there = watchers(agent)
        if all(job.process.pid in there for job in jobs):
            seconds = time.monotonic() - begun
            time.sleep(0.5)
            if all(watchers(agent).get(job.process.pid) == there[job.process.pid] for job in jobs):
                return seconds if seconds <= AGAIN_S else None
        time.sleep(0.1)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("reads", "attaches", "overhead", "cpu", "faults"))
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=8)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hangscope-trial-", dir="/tmp"))
    try:
        if given.what == "cpu":
            good = cpu(given.ranks, folder)
        else:
            good = {"reads": reads, "attaches": attaches, "overhead": overhead, "faults": faults}[given.what](
                given.times, folder
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
