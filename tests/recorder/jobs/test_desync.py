"""A job whose ranks come apart while nothing hangs: that is said, kept and told about, and nothing else is done."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Starter
from .test_response import Hook

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SHIFTED = Path(__file__).parents[2] / "live_scripts" / "shifted.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3")


@pytest.fixture
def hook(tmp_path: Path) -> Iterator[Hook]:
    made = Hook(tmp_path)
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_rank_that_skips_an_update_is_named_while_the_job_goes_on(start: Starter, tmp_path: Path, hook: Hook) -> None:
    """Two looks after a NaN kept rank 2 from one update: both lines, an incident, one alert; no command, no end."""
    ran = tmp_path / "command"
    options = ("--look-every", "2", "--on-hang", "kill", "--kill-after", "0", "--on-hang", f"touch {ran}")
    options += ("--on-hang", f"webhook:{hook.file}", "--stall-after", "60")
    job = (*TORCHRUN, SHIFTED, "ddp", "nan", "--after", "2", "--seconds", "300")
    started = start.run(tmp_path / "i", *job, options=options)
    incident = tmp_path / "i" / "desync-1"
    started.until(lambda: (incident / "verdict.html").exists(), 120, "finding")
    verdict = json.loads((incident / "verdict.json").read_text())
    assert (verdict["hang"], verdict["outcome"], verdict["kind"]) == (False, "desync", "shift")
    assert [each["rank"] for each in verdict["culprits"]] == [2]
    assert "critic_update (shifted.py:" in verdict["headline"]
    assert "hangscope: the ranks have come apart: since #" in started.err
    assert "hangscope: DESYNC since #" in started.err
    alert = started.until(lambda: hook.got[:1], 20, "alert")[0]
    assert (alert["outcome"], alert["kind"]) == ("desync", "shift")
    time.sleep(3)
    assert started.process.poll() is None
    assert not ran.exists()
    started.process.send_signal(signal.SIGTERM)
    started.wait(60)
    assert started.err.count("the ranks have come apart") == 1
    assert not list((tmp_path / "i").glob("look-*"))
