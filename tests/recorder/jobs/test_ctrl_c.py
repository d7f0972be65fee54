"""An impatient Ctrl-C is often the only trace that a hang leaves."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from .conftest import SOURCE, hear_signals

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TRAIN = Path(__file__).with_name("train.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3")


def read(terminal: int, seen: str, until: str, seconds: float) -> str:
    """What the terminal shows, until a pattern is in it or nobody writes to it any more."""
    end = time.monotonic() + seconds
    while re.search(until, seen) is None and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                seen += os.read(terminal, 65536).decode(errors="replace")
            except OSError:  # the last process has closed it
                break
    return seen


def interrupted(tmp_path: Path, *given: str, until: str, after_s: float, last: str) -> tuple[str, int]:
    """Run train.py in a terminal, press Ctrl-C some seconds after it has shown something: all that was seen, and the
    status."""
    words = [sys.executable, "-m", "hangscope", "run", "--dir", str(tmp_path / "i"), "--stall-after", "300", "--"]
    words += [*TORCHRUN, str(TRAIN), *given]
    pid, terminal = pty.fork()
    if pid == 0:
        hear_signals()
        os.environ.update(PYTHONPATH=str(SOURCE), OMP_NUM_THREADS="1")
        os.execv(words[0], words)
    try:
        seen = read(terminal, "", until, 60)
        seen = read(terminal, seen, "never shown", after_s)
        os.write(terminal, b"\x03")
        seen = read(terminal, seen, last, 60)
        _, status = os.waitpid(pid, 0)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    return seen, os.WEXITSTATUS(status)


def test_ctrl_c_in_a_terminal_leaves_a_verdict(tmp_path: Path) -> None:
    """Long before the threshold somebody gives up on a hung job: who held it up is saved and said."""
    faulty = ("--fault", "sleep", "--at", "20")
    _, status = interrupted(tmp_path, *faulty, until="fault at", after_s=5, last="HTML report")
    assert status in (1, 130)
    verdict = json.loads((tmp_path / "i" / "verdict.json").read_text())
    assert (verdict["kind"], [each["rank"] for each in verdict["culprits"]]) == ("absent", [1])
    assert "stuck_in_loader" in verdict["headline"]


def test_ctrl_c_on_a_job_that_moves_costs_one_line(tmp_path: Path) -> None:
    """Whoever ends a healthy job by hand knows why it ended: no verdict, one line at most."""
    moving = ("--steps", "100000")
    seen, status = interrupted(tmp_path, *moving, until="watching 3 of 3", after_s=3, last="no verdict;")
    assert status in (1, 130)
    after = seen.partition("watching 3 of 3")[2]
    assert len(re.findall(r"^hangscope: ", after.replace("\r", ""), re.MULTILINE)) <= 1
    assert not (tmp_path / "i" / "verdict.json").exists()
