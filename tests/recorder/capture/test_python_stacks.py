"""The Python stacks of one rank."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from hangscope.incident.node_dir import NodeDir
from hangscope.processes.target_rights import Rights
from hangscope.recorder.capture import (
    python_stacks,
)
from hangscope.recorder.live import find_ranks


def test_stacks_of_a_process_without_a_companion(tmp_path: Path) -> None:
    """py-spy reads them from outside; where it may not, the gap says so."""
    child = subprocess.Popen([sys.executable, "-c", "def waits():\n    input()\nwaits()"], stdin=subprocess.PIPE)
    try:
        time.sleep(1)
        node_dir = NodeDir(tmp_path, tmp_path / "n")
        assert python_stacks.sample(node_dir, find_ranks.RankProcess(child.pid, 2), 1) is None
        if node_dir.gaps:
            assert "py-spy" in node_dir.gaps[0]["why"]
        else:
            assert "waits" in (tmp_path / "n" / "stacks" / "rank_2.1.txt").read_text()
    finally:
        child.communicate()


def test_stacks_beyond_what_is_kept_are_a_gap(tmp_path: Path) -> None:
    """Eighty threads, seven hundred frames deep in files of long names, are hundreds of megabytes."""
    node_dir = NodeDir(tmp_path, tmp_path / "nodes" / "n1")
    process = find_ranks.RankProcess(os.getpid(), 3)
    python_stacks.keep(node_dir, process, 1, "Thread 1\n" * (python_stacks.MOST_BYTES // 9 + 1), "py-spy")
    (saved,) = (tmp_path / "nodes/n1/stacks").iterdir()
    assert saved.stat().st_size < python_stacks.MOST_BYTES + 1000
    assert [gap["what"] for gap in node_dir.gaps] == ["all stacks of rank 3"]


CRASHES = """
import faulthandler, os, sys
faulthandler.enable(open(sys.argv[1], "ab"))
if os.fork() == 0:
    def of_its_worker():
        os.abort()
    of_its_worker()
os.wait()
def of_its_own():
    os.abort()
of_its_own()
"""


def test_the_stack_of_a_crash_is_the_ranks_own(tmp_path: Path) -> None:
    """A process that it forked wrote into the same file; the last words that fit how it ended are the rank's."""
    file = tmp_path / "7.stack"
    ended = subprocess.run([sys.executable, "-c", CRASHES, file], check=False)
    node_dir = NodeDir(tmp_path, tmp_path / "n")
    process = find_ranks.RankProcess(7, 2, stack_file=str(file))
    python_stacks.keep_crash(node_dir, process, ended.returncode, Rights())
    saved = (tmp_path / "n" / "stacks" / "rank_2.crash.txt").read_text()
    assert saved.startswith("# hangscope stacks rank=2 pid=7 ")
    assert "of_its_own" in saved
    assert "of_its_worker" not in saved


def test_a_rank_that_ended_otherwise_has_no_crash(tmp_path: Path) -> None:
    """What a worker of it wrote is not where the rank was."""
    file = tmp_path / "7.stack"
    file.write_text("Fatal Python error: Bus error\n\nThread 0x1 (most recent call first):\n")
    node_dir = NodeDir(tmp_path, tmp_path / "n")
    for status in (0, 1, -9, -6, None):
        python_stacks.keep_crash(node_dir, find_ranks.RankProcess(7, 2, stack_file=str(file)), status, Rights())
    assert not (tmp_path / "n" / "stacks").exists()
