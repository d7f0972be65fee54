"""Programs that call NCCL and nothing of torch.distributed: noticed by their black boxes, silent while all is well.

NCCL's part is played to the real plugin, by Python (tests/live_scripts/plain_nccl.py) and by a program in C.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hangscope.recorder.setup import blackbox_library
from native.blackbox_build import COMPILER, build
from native.nccl_play import Fault, Operation, Play

from .conftest import Started, Starter

PYTHON = getattr(sys, "_base_executable", sys.executable)
"""One in which there is no torch."""
PLAYER = Path(__file__).parents[2] / "live_scripts" / "plain_nccl.py"
MPIRUN = shutil.which("mpirun")
MPI = ("mpirun", "--oversubscribe", "-np", "4")
THRESHOLD_S = 6.0
OPTIONS = ("--stall-after", str(THRESHOLD_S))
pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(
        blackbox_library.library() is None or COMPILER is None, reason="the black box was not built here"
    ),
]
WORDS: dict[str, tuple[str, ...]] = {
    "network": ("sleep",),
    "nvlink": ("sleep", "--nvlink", "--number", "OMPI_COMM_WORLD_RANK"),
    "healthy": ("healthy", "--seconds", "14"),
    "idle": ("idle", "--seconds", "14", "--nvlink"),
    "late": ("late", "--seconds", "12"),
}


class Job:
    def __init__(self, started: Started, incident: Path) -> None:
        self.started = started
        self.incident = incident

    def noticed_after(self) -> float:
        mark = self.incident / "stall.json"
        self.started.until(mark.exists, 60, "stall")
        return float(json.loads(mark.read_text())["at"]) - float(re.findall(r"fault at ([\d.]+)", self.started.out)[0])

    def verdict(self) -> dict[str, Any]:
        file = self.incident / "verdict.json"
        self.started.until(file.exists, 90, "verdict")
        return dict(json.loads(file.read_text()))


@pytest.fixture(scope="module")
def jobs(start: Starter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Job]]:
    """All at once: they mostly wait."""
    folder = tmp_path_factory.mktemp("plain")
    found = {
        name: Job(start.run(folder / name, PYTHON, PLAYER, *words, options=OPTIONS), folder / name)
        for name, words in WORDS.items()
    }
    if MPIRUN is not None:
        table = folder / "table"
        table.write_bytes(bytes(8 * 2 * 4))
        options = ("--number", "OMPI_COMM_WORLD_RANK", "--shared", table, "--nvlink")
        words = (*MPI, PYTHON, PLAYER, "sleep", *options)
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        found["mpi"] = Job(start.run(folder / "mpi", *words, options=OPTIONS, **root), folder / "mpi")
    found["c"] = Job(start.run(folder / "c", "sh", c_program(folder), options=OPTIONS), folder / "c")
    yield found
    start.end()


def c_program(folder: Path) -> Path:
    """Starts four processes of C that are in a ring; rank 2 never launches the third operation."""
    play = Play([Operation("ring", [0, 1, 2, 3], steps=2)] * 3, Fault("absent", 2, operation=2), "socket", 7)
    lines = ["#!/bin/sh"]
    for rank, script in play.run().items():
        (folder / f"{rank}.events").write_text(f"{script}hold\n")
        lines.append(f"{build().drive} $NCCL_PROFILER_PLUGIN 5 script < {folder}/{rank}.events &")
    script_file = folder / "program.sh"
    script_file.write_text("\n".join([*lines, "wait", ""]))
    return script_file


@pytest.mark.parametrize("name", ["network", "nvlink"])
def test_who_sleeps_is_noticed_in_time_and_named_with_its_line(name: str, jobs: dict[str, Job]) -> None:
    """Over the network, and inside one node where no transfer is seen: within five seconds of the threshold."""
    verdict = jobs[name].verdict()
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [2]
    assert verdict["kind"] == "absent" and verdict["confidence"] == "medium"
    assert "schedule_requests" in verdict["headline"] and "AllReduce #20" in verdict["headline"]
    assert jobs[name].noticed_after() < THRESHOLD_S + 5


def test_a_program_in_c_is_watched(jobs: dict[str, Job]) -> None:
    """No Python, no launcher's number: its ranks go by NCCL's, and the one that never launched is named."""
    verdict = jobs["c"].verdict()
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [2]
    assert verdict["confidence"] != "high"
    assert "AllReduce #2" in verdict["summary"]


@pytest.mark.skipif(MPIRUN is None, reason="Open MPI's mpirun is not installed")
def test_ranks_of_mpirun_are_known_by_its_numbers(jobs: dict[str, Job]) -> None:
    """`hangscope run -- mpirun …`: the launcher's numbers are the ranks, and who sleeps is named with its line."""
    verdict = jobs["mpi"].verdict()
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [2]
    assert "schedule_requests" in verdict["headline"]
    assert verdict["completeness"]["ranks"] == 4


def test_who_is_watched_is_said(jobs: dict[str, Job]) -> None:
    """By what NCCL does, where nothing of torch.distributed runs."""
    jobs["network"].verdict()
    assert "watching 4 of 4 ranks. 4 without torch.distributed, by what NCCL does" in jobs["network"].started.err


@pytest.mark.parametrize("name", ["healthy", "idle", "late"])
def test_jobs_that_are_well_stay_silent(name: str, jobs: dict[str, Job]) -> None:
    """One that goes on, one without requests, and one whose first operation waits twice the threshold for a start."""
    assert jobs[name].started.wait(60) == 0
    assert not (jobs[name].incident / "stall.json").exists()
    assert "HANG" not in jobs[name].started.err
