"""`attach` and `watch PID`: jobs that were started without hangscope, watched from outside from then on."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hangscope.processes import linux_process

from .conftest import Started, Starter

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HERE = Path(__file__)
TRAIN = HERE.with_name("train.py")
STUCK = HERE.parents[2] / "live_scripts" / "stuck.py"
HANGSCOPE = (sys.executable, "-m", "hangscope")
THRESHOLD_S = 3.0


def torchrun(ranks: int, *options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *options)


class Attached:
    """A job that was started plainly, and the watch over it from a moment at which its ranks were at work."""

    def __init__(self, start: Starter, folder: Path, *words: str | Path, options: tuple[str, ...] = ()) -> None:
        self.incident = folder / "i"
        self.when = folder / "when"
        # PYTHONPATH leads to our own sources: an unprepared job has nothing of ours there.
        self.job: Started = start(*words, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", PYTHONPATH="")
        self.job.until(lambda: "step 3" in self.job.out or "fault at" in self.job.out, 60, "step")
        target = str(self.job.process.pid)
        stall = ("--stall-after", str(THRESHOLD_S))
        self.watch: Started = start(*HANGSCOPE, "attach", target, "--dir", self.incident, *stall, *options)

    def verdict(self, name: str = ".") -> dict[str, Any]:
        file = self.incident / name / "verdict.json"
        self.watch.until(lambda: file.exists() and file.with_name("verdict.txt").exists(), 60, "verdict")
        return dict(json.loads(file.read_text()))

    def ranks(self) -> dict[int, int]:
        """The pid of each rank of the job."""
        found = {}
        for pid, _ in linux_process.descendants(self.job.process.pid):
            rank = linux_process.environment(pid).get("RANK")
            if rank is not None:
                found[int(rank)] = pid
        return found


def named(verdict: dict[str, Any]) -> tuple[str, list[int]]:
    return verdict["kind"], [culprit["rank"] for culprit in verdict["culprits"]]


def state_of(pid: int) -> tuple[set[str], dict[str, str], bytes]:
    """The threads, open files and environment of a process."""
    place = Path("/proc") / str(pid)
    files = {}
    for each in (place / "fd").iterdir():
        files[each.name] = os.readlink(each)
    return {each.name for each in (place / "task").iterdir()}, files, (place / "environ").read_bytes()


@pytest.fixture(scope="module")
def jobs(start: Starter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Attached]]:
    """All of them at once: most of what they do is wait."""
    folder = tmp_path_factory.mktemp("attached")
    made = {}
    for name, words in {
        "hangs": (*torchrun(3), TRAIN, "--fault", "sleep", "--when", folder / "hangs" / "when", "--steps", "2000"),
        "killed": (*torchrun(2), TRAIN, "--fault", "kill", "--when", folder / "killed" / "when", "--steps", "2000"),
        "restarts": (*torchrun(3, "--max-restarts=1"), STUCK, "restarted"),
        "healthy": (*torchrun(2), TRAIN, "--steps", "150", "--status", "0"),
    }.items():
        (folder / name).mkdir()
        made[name] = Attached(start, folder / name, *words)
    yield made
    start.end()


def test_a_hang_of_a_job_that_nobody_prepared_is_captured_with_its_line(jobs: dict[str, Attached]) -> None:
    """In seconds, at high confidence, and nothing in the ranks has changed by being watched."""
    job = jobs["hangs"]
    job.watch.until(lambda: "watching 3 of 3 ranks from outside\n" in job.watch.err, 30, "line")
    before = {rank: state_of(pid) for rank, pid in job.ranks().items()}
    job.when.touch()
    verdict = job.verdict()
    assert (named(verdict), verdict["confidence"]) == (("absent", [1]), "high")
    assert "stuck_in_loader" in (job.incident / "verdict.txt").read_text()
    assert len(list(job.incident.glob("nodes/*/dumps/gloo_rank_?.pickle"))) == 3
    assert {rank: state_of(pid) for rank, pid in job.ranks().items()} == before


def test_the_watch_ends_on_a_signal_and_the_job_goes_on(jobs: dict[str, Attached]) -> None:
    """What was captured stays."""
    job = jobs["hangs"]
    job.verdict()
    job.watch.process.send_signal(signal.SIGINT)
    assert job.watch.wait(40) == 0
    assert "hangscope: the watch ends here; the job goes on" in job.watch.err
    assert job.job.process.poll() is None
    assert (job.incident / "verdict.json").exists()


def test_a_rank_that_is_killed_is_named_although_it_is_nobodys_child_here(jobs: dict[str, Attached]) -> None:
    """Its status comes from the kernel; and the watch ends with the job."""
    job = jobs["killed"]
    job.watch.until(lambda: "watching 2 of 2 ranks" in job.watch.err, 30, "line")
    job.when.touch()
    assert job.job.wait(60) != 0
    assert job.watch.wait(90) == 0
    assert named(job.verdict()) == ("dead", [1])


def test_ranks_that_start_later_are_watched_too(jobs: dict[str, Attached]) -> None:
    """torchrun starts the ranks anew after a failure: the second attempt's hang is an incident of its own."""
    job = jobs["restarts"]
    # The watch may come before or after the failure of the first attempt; the second one hangs in either case.
    found = job.watch.until(
        lambda: [
            file
            for file in (job.incident / "hang-2" / "verdict.json", job.incident / "verdict.json")
            if file.exists() and json.loads(file.read_text())["kind"] == "absent"
        ],
        90,
        "verdict on the second attempt",
    )
    assert named(json.loads(found[0].read_text())) == ("absent", [0])


def test_a_healthy_job_ends_the_watch_and_nothing_stays(jobs: dict[str, Attached]) -> None:
    """No file, no word beyond the start; the job's own status is its own."""
    job = jobs["healthy"]
    assert job.job.wait(90) == 0
    assert job.watch.wait(60) == 0
    lines = job.watch.err.splitlines()
    assert lines[0].startswith(f"hangscope: process {job.job.process.pid} and its ranks are watched from now on")
    assert lines[1:] == ["hangscope: watching 2 of 2 ranks from outside"]
    assert not job.incident.exists()


def test_watch_shows_a_job_that_nobody_watches(start: Starter, tmp_path: Path) -> None:
    """By the pid of one rank: its launcher and the other rank are found, and nothing stays behind."""
    job = start(*torchrun(2), TRAIN, "--steps", "2000", PYTHONPATH="")
    job.until(lambda: "step 3" in job.out, 60, "step")
    pid = next(
        pid for pid, _ in linux_process.descendants(job.process.pid) if linux_process.environment(pid).get("RANK")
    )
    shown = start("sh", "-c", f"cd {tmp_path} && exec {sys.executable} -m hangscope watch {pid} --once")
    assert shown.wait(60) == 0
    assert "2 ranks, " in shown.out.splitlines()[0]
    assert sorted(re.findall(r"^([01]) +\S+ +\d+ +[A-Z] ", shown.out, re.MULTILINE)) == ["0", "1"]
    assert os.listdir(tmp_path) == []
    start.end()


def test_a_launcher_that_has_started_no_rank_yet_is_waited_for(start: Starter, tmp_path: Path) -> None:
    """A script starts the job and attaches to it at once; ranks that still import torch are no complaint."""
    job = start(*torchrun(2), TRAIN, "--steps", "2000", PYTHONPATH="")
    watch = start(*HANGSCOPE, "attach", str(job.process.pid), "--dir", tmp_path / "i")
    watch.until(lambda: "watching 2 of 2 ranks from outside\n" in watch.err, 90, "line")
    assert "has not started a rank yet: waiting for the first" in watch.err
    assert "watching 0 of" not in watch.err
    start.end()


def test_what_is_no_job_is_said(start: Starter, tmp_path: Path) -> None:
    """A process without ranks, a number that is nothing, a directory of no run: exit status 2 and a sentence each."""
    sleeps = start("sleep", "60")
    for target, said in (
        (str(sleeps.process.pid), "neither this process nor its children are a rank"),
        ("4194303", "no such process, and no Slurm job"),
        (str(tmp_path), "not a directory of `hangscope run`"),
    ):
        done = start(*HANGSCOPE, "attach", target)
        assert done.wait(30) == 2
        assert said in done.err
    start.end()


def test_a_run_whose_agent_was_killed_is_taken_over(start: Starter, tmp_path: Path) -> None:
    """By its directory. While the agent lives, that is an error which names it."""
    incident = tmp_path / "run"
    run = start.run(incident, *torchrun(2), TRAIN, "--fault", "sleep", "--when", tmp_path / "when", "--steps", "2000")
    run.until(lambda: "watching 2 of 2 ranks" in run.err, 60, "line")
    refused = start(*HANGSCOPE, "attach", incident)
    assert refused.wait(30) == 2
    assert "watches this job" in refused.err
    run.process.kill()
    run.process.wait()
    watch = start(*HANGSCOPE, "attach", incident, "--dir", tmp_path / "i", "--stall-after", str(THRESHOLD_S))
    watch.until(lambda: "watching 2 of 2 ranks" in watch.err, 30, "line")
    (tmp_path / "when").touch()
    watch.until(lambda: (tmp_path / "i" / "verdict.json").exists(), 60, "verdict")
    assert named(json.loads((tmp_path / "i" / "verdict.json").read_text())) == ("absent", [1])
    start.end()


def test_run_can_look_from_outside_with_nothing_that_answers_in_a_rank(start: Starter, tmp_path: Path) -> None:
    """No socket of ours, no thread more than in a plain job, and the same verdict; crash stacks and pauses stay."""
    words = (*torchrun(2), TRAIN, "--fault", "sleep", "--when", tmp_path / "when", "--steps", "2000")
    plain = start(*torchrun(2), TRAIN, "--steps", "2000", PYTHONPATH="")
    options = ("--look", "outside", "--stall-after", str(THRESHOLD_S))
    run = start.run(tmp_path / "i", *words, options=options)
    run.until(lambda: "watching 2 of 2 ranks from outside\n" in run.err, 60, "line")
    for job in (plain, run):
        job.until(lambda job=job: "step 3" in job.out, 60, "step")
    threads = {}
    for job in (plain, run):
        ranks = [pid for pid in job.processes() if linux_process.environment(pid).get("RANK")]
        threads[job.mark] = sorted(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in ranks)
        if job is run:
            files = [name for pid in ranks for name in state_of(pid)[1].values()]
    assert threads[run.mark] == threads[plain.mark]
    assert [name for name in files if "/hangscope-" in name and not name.endswith(".stack")] == []
    (tmp_path / "when").touch()
    run.until(lambda: (tmp_path / "i" / "verdict.json").exists(), 60, "verdict")
    verdict = json.loads((tmp_path / "i" / "verdict.json").read_text())
    assert (named(verdict), verdict["confidence"]) == (("absent", [1]), "high")
    start.end()
