"""The Python stacks of one rank."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from hangscope.recorder.capture import (
    python_stacks,
)
from hangscope.recorder.live import find_ranks
from hangscope.recorder.rundir.node_dir import NodeDir


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
