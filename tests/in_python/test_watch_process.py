"""`hangscope.watch()`: real jobs whose launch command knows nothing of hangscope."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kits.processes_of import end_all, processes_with

pytestmark = [pytest.mark.jobs, pytest.mark.xdist_group("in_python")]
JOB = Path(__file__).with_name("watched_job.py")
SOURCE = Path(__file__).parents[2] / "src"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
WAIT_S = 300


@dataclass
class Job:
    process: subprocess.Popen[bytes]
    incident: Path
    out: Path

    def text(self) -> str:
        return self.out.read_text(errors="replace")

    def verdict(self) -> dict[str, object]:
        until = time.monotonic() + WAIT_S
        file = self.incident / "verdict.json"
        while not file.exists():
            assert time.monotonic() < until, self.text()[-3000:]
            time.sleep(0.2)
        return dict(json.loads(file.read_text()))


def start(folder: Path, how: str, *head: str, **environ: str) -> Job:
    incident = folder / how
    out = folder / f"{how}.out"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HANGSCOPE", "TORCH"))}
    settings = {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "HANGSCOPE_TEST": str(incident)}
    with out.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, *head, str(JOB), how, str(incident)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env={**inherited, **settings, **environ},
            cwd=folder,
        )
    return Job(process, incident, out)


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Job]]:
    """Both at once: most of what they do is wait."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("watched")
    made = {"ranks": start(folder, "ranks", *TORCHRUN), "notebook": start(folder, "notebook")}
    yield made
    for job in made.values():
        end_all(str(job.incident))
        job.process.wait()


def culprits(verdict: dict[str, object]) -> list[object]:
    listed = verdict["culprits"]
    assert isinstance(listed, list)
    return [each["rank"] for each in listed]


@pytest.mark.torch
def test_every_rank_calls_it_and_one_watcher_watches_all(hung: dict[str, Job]) -> None:
    """Under torchrun, at the top of the script: the hang is named, one process watches, and nothing stays in a rank."""
    job = hung["ranks"]
    verdict = job.verdict()
    assert (verdict["kind"], culprits(verdict), verdict["confidence"]) == ("absent", [1], "high")
    text = job.text()
    assert text.count("True True") == 2, text
    assert text.count("nothing stays") == text.count("no torch") == 2, text
    assert text.count("watching 2 of 2 ranks from outside") == 1, text
    assert len(list(job.incident.glob("nodes/*"))) == 1


@pytest.mark.torch
def test_ranks_that_a_notebook_starts_later_are_watched(hung: dict[str, Job]) -> None:
    """The call was made before there was a rank; each child calls it again, by importing the script."""
    job = hung["notebook"]
    verdict = job.verdict()
    assert (verdict["kind"], culprits(verdict)) == ("absent", [1])
    assert "stuck_in_loader" in str(verdict["summary"])
    assert job.text().count("child True") == 2
    assert len(list(job.incident.glob("nodes/*"))) == 1


def test_the_watcher_ends_with_the_process(tmp_path: Path) -> None:
    """Nothing is left of a script that never trained: no process, no folder and no line; a forked child is watched."""
    job = start(tmp_path, "forked")
    assert job.process.wait(WAIT_S) == 0
    assert job.text().splitlines() == ["True True", "nothing stays", "no torch", "forked True"]
    until = time.monotonic() + 60
    while processes_with(str(job.incident)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not processes_with(str(job.incident))
    assert not job.incident.exists()


def test_off_means_off(tmp_path: Path) -> None:
    """HANGSCOPE=off starts nothing, and says nothing."""
    job = start(tmp_path, "silent")
    assert job.process.wait(WAIT_S) == 0
    assert job.text() == "False\n"


def test_a_mistake_is_a_line_and_no_exception(tmp_path: Path) -> None:
    """The script goes on, whatever is wrong with the options, or with the place for temporary files."""
    job = start(tmp_path, "refused")
    assert job.process.wait(WAIT_S) == 0
    assert "no-such-program" in job.text()
    assert "Traceback" not in job.text()
    job = start(tmp_path, "refused", TMPDIR="/proc/nowhere")
    assert job.process.wait(WAIT_S) == 0
    assert job.text().splitlines()[0].startswith("hangscope: this process is not watched: ")
    assert "False" in job.text()


def test_under_run_the_run_watches(tmp_path: Path) -> None:
    """No second watcher: the agent of `hangscope run` is there."""
    words = ("-m", "hangscope", "run", "--dir", str(tmp_path / "run"), "--", sys.executable)
    job = start(tmp_path, "forked", *words)
    assert job.process.wait(WAIT_S) == 0
    assert "True True" in job.text()
    assert "forked True" in job.text()


def test_it_reads_what_a_watcher_may_need_and_passes_no_rank_on() -> None:
    """The watcher's environment has nothing by which it could be taken for a rank."""
    from hangscope.recorder.launch.watch_beside import watcher_environment

    given = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "SLURM_PROCID": "3",
        "PYTHONPATH": "x",
        "PATH": "/bin",
        "HANGSCOPE_DIR": "d",
    }
    assert watcher_environment(given) == {"PATH": "/bin", "HANGSCOPE_DIR": "d"}
