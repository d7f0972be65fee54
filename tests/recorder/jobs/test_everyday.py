"""What a person sees live of ordinary bugs: the line, the first word, and nothing that is not so."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Started, Starter

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).parents[2] / "live_scripts" / "everyday.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3")
FAULTS: dict[str, tuple[str, ...]] = {"logs_on_one": (), "last_save": ("--pause", "12"), "thread_dies": ()}
Jobs = dict[str, tuple[Started, Path]]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """All of them at once: most of their time is waiting."""
    folder = tmp_path_factory.mktemp("everyday")
    start = Starter(folder / "started")
    yield {
        fault: (
            start.run(folder / fault, *TORCHRUN, SCRIPT, fault, *given, options=("--stall-after", "3")),
            folder / fault,
        )
        for fault, given in FAULTS.items()
    }
    start.end()


def verdict(jobs: Jobs, fault: str) -> tuple[dict[str, Any], list[str]]:
    """As data, and as the lines of its text."""
    started, incident = jobs[fault]
    started.until(lambda: (incident / "verdict.txt").exists(), 120, "verdict")
    return json.loads((incident / "verdict.json").read_text()), (incident / "verdict.txt").read_text().splitlines()


def test_a_rank_that_gloo_aborts_is_a_crash_with_its_line(jobs: Jobs) -> None:
    """`if rank == 1: all_reduce(loss)`: no traceback is printed, the line is that of the stack at the abort, and the
    job's own output stays as it is."""
    found, lines = verdict(jobs, "logs_on_one")
    assert (found["outcome"], found["kind"]) == ("crash", "mismatch")
    assert 1 in [culprit["rank"] for culprit in found["culprits"]]
    assert "log_loss (everyday.py:" in " ".join(line.strip() for line in lines[:2])
    assert "waited" not in lines[4]
    assert "Fatal Python error" not in jobs["logs_on_one"][0].err


def test_a_rank_that_saves_is_waited_for_and_then_was_a_pause(jobs: Jobs) -> None:
    """While it works nobody calls it a hang; when it is done it was a pause, though the job ends at once after it."""
    started, _ = jobs["last_save"]
    assert started.wait(120) == 0
    assert "WAIT " in started.err
    shown = re.sub(r"hangscope: |confidence: \w+", "", started.err)
    assert "which is working in save (everyday.py:" in " ".join(shown.split())
    assert "PAUSE, not a hang" in started.err
    found, lines = verdict(jobs, "last_save")
    assert (found["outcome"], found["hang"]) == ("pause", False)
    assert lines[0].startswith("PAUSE")
    assert 8 <= found["waiting_s"] <= 25


def test_an_exception_in_a_thread_is_shown_as_what_came_before(jobs: Jobs) -> None:
    """The loop waits for a batch that nobody makes: where it waits, and the exception of the thread that made them."""
    found, lines = verdict(jobs, "thread_dies")
    assert (found["outcome"], [culprit["rank"] for culprit in found["culprits"]]) == ("hang", [1])
    assert "thread_dies (everyday.py:" in " ".join(lines[:2])
    assert any("KeyError: 'forty' in a thread" in each["text"] for each in found["why"])
    assert "fill (everyday.py:" in found["next_steps"][0]
