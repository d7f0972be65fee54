"""`hangscope agent`: all jobs of a node, each watched with its owner's rights and by a watcher of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hangscope.processes import linux_process
from hangscope.recorder.launch.node_jobs import NodeJob, NodeJobs
from hangscope.recorder.launch.watch_node import IDLE_S, IdleJobs

from .conftest import SOURCE, Started, Starter, free_port

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TRAIN = Path(__file__).with_name("train.py")
PYTHON = "/usr/bin/python3"
"""One that every user may run: the tests' own may lie below /root."""
USERS = (61000 + os.getpid() % 2000 * 2, 61001 + os.getpid() % 2000 * 2)
"""Nobody else's: others test on this machine, too."""


def runs_for_others() -> bool:
    """Whether other users can be had here, and can run torch."""
    if os.geteuid() != 0 or not os.access(PYTHON, os.X_OK):
        return False
    try:
        done = subprocess.run(
            [PYTHON, "-c", "import torch.distributed"], env={"PYTHONPATH": packages()}, user=USERS[0], group=USERS[0],
            extra_groups=[], capture_output=True, timeout=120, cwd="/",
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def packages() -> str:
    return os.pathsep.join([str(SOURCE), str(Path(torch.__file__).parents[1])])


class Node:
    """Jobs of two users, and the agent over these users' jobs alone: others work on this machine."""

    def __init__(self, start: Starter, folder: Path, *options: str) -> None:
        self.start = start
        self.folder = folder
        self.options = options
        self.jobs: dict[str, Started] = {}
        os.chmod(folder, 0o755)
        self.agent = self.begin()

    def begin(self) -> Started:
        users = [word for user in USERS for word in ("--user", str(user))]
        words = (PYTHON, "-m", "hangscope", "agent", *users, "--stall-after", "3", *self.options)
        self.agent = self.start(*words, PYTHONPATH=packages())
        return self.agent

    def job(self, name: str, user: int, *words: str | Path, ranks: int = 2) -> Started:
        place = self.folder / name
        place.mkdir()
        os.chown(place, user, user)
        drop = f"import os; os.setgroups([]); os.setgid({user}); os.setuid({user}); os.chdir({str(place)!r}); "
        torchrun = ["-m", "torch.distributed.run", "--master-port", free_port(), f"--nproc-per-node={ranks}"]
        command = [PYTHON, *torchrun, str(TRAIN), *map(str, words)]
        run = f"{drop}os.execv({PYTHON!r}, {command!r})"
        made = self.start(PYTHON, "-c", run, PYTHONPATH=str(Path(torch.__file__).parents[1]), HOME=str(place))
        self.jobs[name] = made
        return made

    def incident(self, name: str) -> Path:
        """The only incident of a job, once its verdict is there."""
        found = self.agent.until(lambda: list((self.folder / name).glob("hangscope/*/*/verdict.json")), 60, "verdict")
        return Path(found[0].parent)


@pytest.fixture(scope="module")
def node(start: Starter) -> Iterator[Node]:
    if not runs_for_others():
        pytest.skip("needs root, and a Python with torch that other users may run")
    # Not below pytest's own directory, which is closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="hangscope-test-", dir="/tmp"))
    made = Node(start, folder, "--metrics-port", free_port())
    when = made.folder / "when"
    made.job("hangs", USERS[0], "--fault", "sleep", "--when", when, "--steps", "3000")
    made.job("healthy", USERS[1], "--steps", "150")
    for job in made.jobs.values():
        job.until(lambda job=job: "step 3" in job.out, 90, "step")
    made.agent.until(lambda: made.agent.err.count("watching 2 of 2 ranks from outside\n") == 2, 60, "both jobs")
    yield made
    start.end()
    shutil.rmtree(folder)


def test_a_hang_is_saved_as_its_owners_and_the_other_job_is_left_alone(node: Node) -> None:
    """In the job's own directory, with the owner's rights; a neighbour's healthy job has nothing, also at its end."""
    (node.folder / "when").touch()
    incident = node.incident("hangs")
    verdict = json.loads((incident / "verdict.json").read_text())
    assert (verdict["kind"], [each["rank"] for each in verdict["culprits"]]) == ("absent", [1])
    assert {path.lstat().st_uid for path in incident.rglob("*")} == {USERS[0]}
    assert node.jobs["healthy"].wait(120) == 0
    node.agent.until(lambda: f"user {USERS[1]}): ended" in node.agent.err, 30, "end of the other job")
    assert os.listdir(node.folder / "healthy") == []


def test_metrics_of_all_jobs_are_on_one_port(node: Node) -> None:
    """With whose job it is; what is no metric of ours in a job's file is not passed on."""
    port = node.options[-1]
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=10).read().decode()
    row = rf'^hangscope_ranks_watched\{{user="{USERS[0]}",launcher="\d+",job="[^"]+",.*\}} 2$'
    assert re.search(row, text, re.MULTILINE)
    assert text.count("# TYPE hangscope_ranks_watched ") == 1


def watchers(node: Node) -> dict[int, int]:
    """The watchers by the user that they are."""
    below = [pid for pid, depth in linux_process.descendants(node.agent.process.pid) if depth == 1]
    found = {}
    for pid in below:
        status = Path(f"/proc/{pid}/status").read_text()
        found[int(re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)[1])] = pid  # type: ignore[index]
    return found


def test_a_watcher_has_its_owners_rights_and_is_started_again(node: Node) -> None:
    """No capability, no root; killed, it is there again within seconds."""
    pid = watchers(node)[USERS[0]]
    status = Path(f"/proc/{pid}/status").read_text()
    assert re.search(rf"^Uid:(\t{USERS[0]}){{4}}$", status, re.MULTILINE)
    yama = Path("/proc/sys/kernel/yama/ptrace_scope")
    if not yama.exists() or yama.read_text().strip() == "0":
        assert re.search(r"^CapPrm:\s+0+$", status, re.MULTILINE)
    os.kill(pid, signal.SIGKILL)
    node.agent.until(lambda: watchers(node).get(USERS[0], pid) != pid, 10, "another watcher")


def test_when_the_agent_is_killed_its_watchers_end_and_the_next_agent_finds_the_job(node: Node) -> None:
    """Nothing of it stays, and no job notices."""
    left = list(watchers(node).values())
    node.agent.process.kill()
    node.agent.process.wait()
    until = time.monotonic() + 20
    while any(linux_process.stat(pid) is not None for pid in left) and time.monotonic() < until:
        time.sleep(0.1)
    assert [pid for pid in left if linux_process.stat(pid) is not None] == []
    assert node.jobs["hangs"].process.poll() is None
    node.begin()
    node.agent.until(lambda: "watching 2 of 2 ranks from outside\n" in node.agent.err, 20, "the job found again")
    node.agent.process.terminate()
    assert node.agent.wait(40) == 0
    assert node.jobs["hangs"].process.poll() is None


# ---- without other users ---------------------------------------------------------------------------------------------


def test_jobs_that_switched_it_off_or_run_under_run_are_left_alone(start: Starter, tmp_path: Path) -> None:
    """Only processes that have loaded torch are ranks; HANGSCOPE=off and a living `run` are respected."""
    words = (sys.executable, "-c", "import torch, time; print('there', flush=True); time.sleep(100)")
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    plain = start(*words, **rank)
    off = start(*words, HANGSCOPE="off", **rank)
    no_torch = start(sys.executable, "-c", "import time; print('there', flush=True); time.sleep(100)", **rank)
    watched = start.run(tmp_path / "i", *words, **rank)
    for each in (plain, off, no_torch, watched):
        each.until(lambda each=each: "there" in each.out, 60, "start")
    jobs = NodeJobs(frozenset([os.geteuid()]))
    pids = {pid for job in jobs.find() for pid, _ in job.ranks}
    ours = {each.mark: set(each.processes()) for each in (plain, off, no_torch, watched)}
    assert pids & ours[plain.mark] == {plain.process.pid}
    assert not pids & (ours[off.mark] | ours[no_torch.mark] | ours[watched.mark])
    plain.process.kill()
    plain.process.wait()
    assert plain.process.pid not in {pid for job in jobs.find() for pid, _ in job.ranks}
    start.end()


def test_a_job_that_cannot_be_read_is_said_to_look_hung_only_after_it_worked(start: Starter) -> None:
    """Idle for five minutes by the kernel's word, and at work before that; once."""
    spins = start(
        sys.executable, "-c", "import time\nend = time.time() + 1.5\nwhile time.time() < end: pass\ntime.sleep(100)"
    )
    idles = start("sleep", "100")

    def job(started: Started) -> NodeJob:
        found = linux_process.stat(started.process.pid)
        assert found is not None
        name = (found.pid, found.started_ticks)
        return NodeJob(name, (name,), os.geteuid(), "j", "/", False, "not permitted")

    worked, never = job(spins), job(idles)
    seen = IdleJobs()
    for now in (0.0, 1.0):
        assert (seen.look(worked, now), seen.look(never, now)) == (None, None)
        time.sleep(1.0)
    assert seen.look(worked, 2.0) is None
    time.sleep(1.5)
    assert seen.look(worked, 3.0) is None
    time.sleep(1.0)
    assert seen.look(worked, 4.0 + IDLE_S) == pytest.approx(IDLE_S, abs=4.0)
    assert seen.look(worked, 5.0 + IDLE_S) is None
    assert seen.look(never, 5.0 + IDLE_S) is None
    start.end()


def test_the_owners_folder_is_the_owners_or_none(tmp_path: Path) -> None:
    """A link, or somebody else's folder in its place, is refused."""
    from hangscope.recorder.launch.watch_node import _make_owned

    _make_owned(tmp_path / "base" / "me", os.geteuid())
    assert stat.S_IMODE((tmp_path / "base" / "me").stat().st_mode) == 0o700
    (tmp_path / "base" / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="it is not user"):
        _make_owned(tmp_path / "base" / "link", os.geteuid())


def test_hostile_metrics_are_not_passed_on(tmp_path: Path) -> None:
    """A job's owner can write anything into the file of its own metrics: rows of ours come through, and no other."""
    from hangscope.recorder.launch.watch_node import _rows, _Watcher

    file = tmp_path / "job.prom"
    file.write_text('hangscope_ranks_watched{job="a"} 2\nnode_load1 99\nhangscope_x{a="b"} 1\nevil 2\n# HELP x y\n')
    watcher: Any = _Watcher(NodeJob((7, 1), ((7, 1),), 61201, "j", "/", False), metrics=file)
    assert [row for _, row in _rows(watcher)] == [
        'hangscope_ranks_watched{user="61201",launcher="7",job="a"} 2',
        'hangscope_x{user="61201",launcher="7",a="b"} 1',
    ]
    file.unlink()
    file.symlink_to("/etc/passwd")
    assert _rows(watcher) == []


def mounts() -> bool:
    """Whether root may mount here, which it may not in every container."""
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


def test_faults_around_the_agent_harm_no_job() -> None:
    """A sample of `python tests/kits/attach_trial.py faults --times 200`, with two jobs of two users."""
    if not runs_for_others() or not mounts():
        pytest.skip("jobs of several users, on disks of their own, need root")
    trial = Path(__file__).parents[2] / "kits" / "attach_trial.py"
    words = [sys.executable, str(trial), "faults", "--times", "4", "--jobs", "2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "jobs harmed: 0, standing still: 0" in done.stdout
    assert done.stdout.endswith("files of one user in another's folder: none\n")
