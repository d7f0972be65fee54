"""Which processes are ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from hangscope.recorder.live import find_ranks


def test_of_processes_that_claim_a_rank_the_launchers_child_is_it(tmp_path: Path) -> None:
    """A rank's helper processes inherit RANK."""
    sleeper = (sys.executable, "-c", "import time; print(1, flush=True); time.sleep(30)")
    code = f"import subprocess, time; p = subprocess.Popen({sleeper!r}); print(p.pid, flush=True); time.sleep(30)"
    rank = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert rank.stdout is not None
        helper = int(rank.stdout.readline())
        claims = [find_ranks.RankProcess(helper, 3), find_ranks.RankProcess(rank.pid, 3)]
        assert [process.pid for process in find_ranks.one_per_rank(claims)] == [rank.pid]
    finally:
        os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()
        assert rank.stdout is not None
        rank.stdout.close()
