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


def test_ctrl_c_in_a_terminal_leaves_a_verdict(tmp_path: Path) -> None:
    """Long before the threshold somebody gives up on a hung job: who held it up is saved and said."""
    words = [sys.executable, "-m", "hangscope", "run", "--dir", str(tmp_path / "i"), "--stall-after", "300", "--"]
    words += [*TORCHRUN, str(TRAIN), "--fault", "sleep", "--at", "20"]
    pid, terminal = pty.fork()
    if pid == 0:
        hear_signals()
        os.environ.update(PYTHONPATH=str(SOURCE), OMP_NUM_THREADS="1")
        os.execv(words[0], words)
    try:
        seen = read(terminal, "", "fault at", 60)
        time.sleep(3)
        os.write(terminal, b"\x03")
        seen = read(terminal, seen, "HTML report:", 60)
        _, status = os.waitpid(pid, 0)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    assert os.WEXITSTATUS(status) in (1, 130)
    verdict = json.loads((tmp_path / "i" / "verdict.json").read_text())
    assert (verdict["kind"], [each["rank"] for each in verdict["culprits"]]) == ("absent", [1])
    assert "stuck_in_loader" in verdict["headline"]
