"""The code line in the first line of verdicts on real jobs: also of ranks that answer nothing, and of their workers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Started, Starter

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).with_name("lines.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
FAULTS = {"fifo": 150, "regex": 20, "loader": 20, "mismatch": 20, "deadlock": 20}
"""Fault → step. The first one is given time to learn its calls before."""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Started, Path]]]:
    """All of them at once: most of their time is waiting."""
    folder = tmp_path_factory.mktemp("lines")
    start = Starter(folder / "started")
    commands = {fault: (*TORCHRUN, SCRIPT, fault, folder / f"{fault}.pipe", str(at)) for fault, at in FAULTS.items()}
    yield {
        name: (start.run(folder / name, *command, options=("--stall-after", "3")), folder / name)
        for name, command in commands.items()
    }
    start.end()


def verdict(jobs: dict[str, tuple[Started, Path]], fault: str) -> dict[str, Any]:
    started, incident = jobs[fault]
    started.until(lambda: (incident / "verdict.txt").exists(), 120, "verdict")
    return json.loads((incident / "verdict.json").read_text())


def line_of(text: str) -> int:
    """The number of the script's line that has this text."""
    return next(n for n, line in enumerate(SCRIPT.read_text().splitlines(), start=1) if text in line)


@pytest.mark.parametrize(
    ("fault", "outcome", "said"),
    [
        ("regex", "wait", "which is working in clean_text (lines.py:{re.match(})"),
        ("fifo", "hang", "rank 1 is in save_checkpoint (lines.py:{torch.save(}), and holds the GIL"),
    ],
)
def test_a_held_gil_has_a_line(jobs: dict[str, Any], fault: str, outcome: str, said: str) -> None:
    """Nothing in the process answers, and its training thread is not the main one: its line is read from outside. One
    that computes with the GIL held works; one that waits for a file does not."""
    found = verdict(jobs, fault)
    assert ([culprit["rank"] for culprit in found["culprits"]], found["kind"]) == ([1], "frozen")
    text = said.partition("{")[2].partition("}")[0]
    assert said.replace(f"{{{text}}}", str(line_of(text))) in found["headline"]
    assert found["outcome"] == outcome


def test_a_stuck_worker_process_has_a_line(jobs: dict[str, Any]) -> None:
    """The rank waits for its DataLoader; the line is that of the worker which reads."""
    found = verdict(jobs, "loader")
    assert [culprit["rank"] for culprit in found["culprits"]] == [1]
    place = f"read_sample (lines.py:{line_of('with open(path)')})"
    assert found["headline"].startswith(f"rank 1 waits for its worker process in {place}, and never launched")


def test_a_mismatch_has_the_lines_of_both_sides(jobs: dict[str, Any]) -> None:
    """Gloo records no frames: the calls that the ranks are inside of are at the lines of their stacks."""
    found = verdict(jobs, "mismatch")
    assert found["kind"] == "mismatch"
    assert f"broadcast in announce (lines.py:{line_of('dist.broadcast(')})" in found["headline"]
    assert f"all_reduce in average (lines.py:{line_of('dist.all_reduce(')})" in found["headline"]


def test_a_deadlock_has_the_lines_of_both_sides(jobs: dict[str, Any]) -> None:
    """Each side is named with the line that it waits in."""
    found = verdict(jobs, "deadlock")
    assert found["kind"] == "deadlock"
    assert found["headline"].count(f"average (lines.py:{line_of('dist.all_reduce(')})") == 2


def test_calls_are_learnt_while_all_is_well(jobs: dict[str, Any]) -> None:
    """The rank whose GIL is held could not be asked any more from where it calls; it had been asked before."""
    verdict(jobs, "fifo")
    [file] = jobs["fifo"][1].glob("nodes/*/sites/rank_1.json")
    learnt = json.loads(file.read_text())
    assert learnt["schema"] == "hangscope.sites/1"
    assert any(["average", str(SCRIPT), line_of("dist.all_reduce(")] in stack for stack in learnt["stacks"])
