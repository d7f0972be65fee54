"""The code line of a training that Ray runs: real actors, on a cluster that the job starts for itself."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from .conftest import Starter, free_port

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.ray]

SCRIPT = Path(__file__).with_name("rayjob.py")
PATIENT = {"RAY_raylet_start_wait_time_s": "120"}
"""Ray gives its own start 30 s, which a machine that is busy with other tests does not keep."""


def test_the_training_thread_of_a_ray_actor_has_a_line(start: Starter, tmp_path: Path) -> None:
    """Ray's own loop has the main thread; the line is the user's, in the thread beside it."""
    pytest.importorskip("ray")
    incident = tmp_path / "ray"
    with tempfile.TemporaryDirectory(prefix="r") as short:  # Ray's sockets lie below it, and their paths are bounded
        command = (sys.executable, SCRIPT, short, free_port())
        started = start.run(incident, *command, options=("--stall-after", "3"), **PATIENT)
        started.until(lambda: (incident / "verdict.txt").exists(), 240, "verdict")
        start.end()
    found = json.loads((incident / "verdict.json").read_text())
    assert [culprit["rank"] for culprit in found["culprits"]] == [1]
    assert found["headline"].startswith("rank 1 (Trainer) is in stuck_in_loader (rayjob.py:")
