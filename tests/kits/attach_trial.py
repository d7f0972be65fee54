"""Trials by hand of what watches a job from outside: does it harm the job, what does it cost, what stops it.

    python tests/kits/attach_trial.py reads --times 3000     # read, also by readers that are killed at random moments
    python tests/kits/attach_trial.py attaches --times 100   # attached to and left, or the watch killed, at random
    python tests/kits/attach_trial.py overhead --times 20    # steps a second, watched and not, in turns, in one job
    python tests/kits/attach_trial.py cpu --ranks 8          # CPU time of the watch
    python tests/kits/attach_trial.py faults --times 200     # faults around `hangscope agent` with 8 jobs (root)

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


class Node:
    """An agent and jobs of several users, each in a folder on a small disk of its own."""

    FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")

    def __init__(self, folder: Path, count: int) -> None:
        self.users = [62000 + os.getpid() % 1000 * 10 + number for number in range(count)]
        self.clock = folder / "clock"
        self.folders = [folder / f"job-{user}" for user in self.users]
        self.jobs: list[Job] = []
        self.agent: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        self.set_clock(0)
        for job_folder in self.folders:
            job_folder.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=755", "none", str(job_folder)], check=True)
        for user, job_folder in zip(self.users, self.folders, strict=True):
            self.jobs.append(Job(job_folder, 1, 0.2, user=user))
        for job in self.jobs:
            job.begun()
        self.begin_agent()

    def set_clock(self, seconds: int) -> None:
        """The agent's, where libfaketime is there: so much before or behind the machine's."""
        part = self.clock.with_suffix(".part")
        part.write_text(f"{seconds:+d}\n")
        part.replace(self.clock)

    def begin_agent(self) -> None:
        words = [word for user in self.users for word in ("--user", str(user))]
        fake = {"LD_PRELOAD": str(self.FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self.clock), "FAKETIME_NO_CACHE": "1",
                "DONT_FAKE_MONOTONIC": "1"}  # fmt: skip
        os.environ.update(fake if self.FAKETIME.exists() else {})
        try:
            self.agent = hangscope("agent", *words, python="/usr/bin/python3")
        finally:
            for name in fake:
                os.environ.pop(name, None)

    def end(self) -> None:
        if self.agent is not None:
            self.agent.terminate()
            self.agent.wait(60)
        for job in self.jobs:
            job.kill()
        for job_folder in self.folders:
            subprocess.run(["umount", "-l", str(job_folder)], stderr=subprocess.DEVNULL)


def kill_watcher(node: Node, number: int) -> None:
    assert node.agent is not None
    os.kill(watchers(node.agent)[node.jobs[number].process.pid], signal.SIGKILL)


def kill_agent(node: Node, _: int) -> None:
    assert node.agent is not None
    node.agent.kill()
    node.agent.wait()
    node.begin_agent()


def kill_job(node: Node, number: int) -> None:
    job = node.jobs[number]
    job.kill()
    for each in job.folder.iterdir():  # its watcher may still write there
        shutil.rmtree(each, ignore_errors=True) if each.is_dir() else each.unlink()
    node.jobs[number] = Job(job.folder, 1, 0.2, user=node.users[number]).begun()


def remove_folder(node: Node, number: int) -> None:
    shutil.rmtree(node.jobs[number].folder / "hangscope", ignore_errors=True)


def spoil_status(node: Node, number: int) -> None:
    for file in (node.jobs[number].folder / "hangscope").rglob("*.json"):
        with contextlib.suppress(OSError):
            file.write_text(random.choice(HOSTILE))


def close_folder(node: Node, number: int) -> None:
    os.chmod(node.jobs[number].folder, 0o500)
    time.sleep(2.0)
    os.chmod(node.jobs[number].folder, 0o755)


def fill_disk(node: Node, number: int) -> None:
    """While a watcher starts anew on it as well."""
    full = node.jobs[number].folder / "full"
    with contextlib.suppress(OSError), full.open("wb") as out:
        while True:
            out.write(b"x" * 65536)
    if random.random() < 0.5:
        kill_watcher(node, number)
    time.sleep(2.0)
    full.unlink()


def move_clock(node: Node, _: int) -> None:
    node.set_clock(random.choice((-86400, -600, 600, 86400, 0)))


def plant_files(node: Node, number: int) -> None:
    """Another user makes the job's folder of incidents first, with a status and links to a third one's, and a watcher
    starts anew beside them."""
    job = node.jobs[number]
    other = node.users[(number + 1) % len(node.users)]
    third = node.jobs[(number + 2) % len(node.jobs)].folder
    names = [each.name for each in (job.folder / "hangscope").iterdir()] if (job.folder / "hangscope").is_dir() else []
    shutil.rmtree(job.folder / "hangscope", ignore_errors=True)
    os.chmod(job.folder, 0o1777)
    script = "umask 0; mkdir -p hangscope; cd hangscope; ln -s {third} link; for n in {names}; do"
    script += " if [ $((RANDOM % 2)) = 0 ]; then ln -s {third} $n; else mkdir -p $n/0/nodes/evil;"
    script += " printf '%s' '{status}' > $n/0/nodes/evil/status.json; fi; done"
    filled = script.format(third=third, names=" ".join(names or ["x"]), status=random.choice(HOSTILE[:3]))
    words = ["setpriv", f"--reuid={other}", f"--regid={other}", "--clear-groups", "bash", "-c", filled]
    subprocess.run(words, cwd=job.folder, check=False, capture_output=True)
    kill_watcher(node, number)
    time.sleep(2.0)
    shutil.rmtree(job.folder / "hangscope", ignore_errors=True)
    os.chmod(job.folder, 0o755)


FAULTS = {
    "watcher killed": kill_watcher,
    "agent killed": kill_agent,
    "job killed": kill_job,
    "folder gone": remove_folder,
    "hostile status": spoil_status,
    "folder closed": close_folder,
    "disk full": fill_disk,
    "clock moved": move_clock,
    "another user's files": plant_files,
}


def faults(times: int, folder: Path, count: int = 8) -> bool:
    os.chmod(folder, 0o755)
    kinds = {name: fault for name, fault in FAULTS.items() if name != "clock moved" or Node.FAKETIME.exists()}
    for name in FAULTS.keys() - kinds.keys():
        print(f"not tried: {name} (needs libfaketime; the machine's own clock is everybody's)")
    node = Node(folder, count)
    late: list[str] = []
    strangers: list[str] = []
    waits: list[float] = []
    counts = dict.fromkeys(kinds, 0)
    try:
        node.begin()
        assert node.agent is not None
        _await_watchers(node.agent, node.jobs)
        for _ in range(times):
            number = random.randrange(count)
            kind = random.choice(list(kinds))
            counts[kind] += 1
            kinds[kind](node, number)
            seconds = _await_watchers(node.agent, node.jobs)
            late += [kind] if seconds is None else []
            waits += [seconds] if seconds is not None else []
            print(f"{kind}: {'late' if seconds is None else f'{seconds:.1f} s'}", file=sys.stderr, flush=True)
            strangers += _strangers(node)
        harmed = [job.process.pid for job in node.jobs if job.process.poll() is not None]
        stuck = _standing_still(node.jobs)
        said = ", ".join(f"{count} × {kind}" for kind, count in counts.items())
        print(f"{times} faults on a node with {count} jobs: {said}")
        print(
            f"jobs harmed: {len(harmed)}, standing still: {len(stuck)}; watched again after {max(waits):.1f} s at most"
        )
        print(f"not watched again within {AGAIN_S:g} s: {late or 'none'}")
        print(f"files of one user in another's folder: {strangers or 'none'}")
        return not (harmed or stuck or late or strangers)
    finally:
        node.end()


def _standing_still(jobs: list[Job], most_s: float = 60.0) -> list[int]:
    """Those that take no more steps; a job says so every 50."""
    before = [job.steps() for job in jobs]
    until = time.monotonic() + most_s
    left = list(zip(jobs, before, strict=True))
    while left and time.monotonic() < until:
        time.sleep(0.5)
        left = [(job, steps) for job, steps in left if job.steps() == steps]
    return [job.process.pid for job, _ in left]


def _strangers(node: Node) -> list[str]:
    """What lies in a job's folder and is neither its owner's nor root's."""
    found = []
    for each, owner in zip(node.jobs, node.users, strict=True):
        for file in each.folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                if file.lstat().st_uid not in (owner, os.geteuid()):
                    found.append(str(file))
    return found


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
    parser.add_argument("--jobs", type=int, default=8)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hangscope-trial-", dir="/tmp"))
    try:
        if given.what == "cpu":
            good = cpu(given.ranks, folder)
        elif given.what == "faults":
            good = faults(given.times, folder, given.jobs)
        else:
            good = {"reads": reads, "attaches": attaches, "overhead": overhead}[given.what](given.times, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
