"""What the kernel knows of a rank's process beside its state."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from hangscope.recorder.capture import (
    output_files,
)
from hangscope.recorder.process import process_facts
from hangscope.recorder.rundir.node_dir import NodeDir


def test_output_that_went_to_a_file_is_found(tmp_path: Path) -> None:
    """torchrun --redirects: the rank's own file is copied."""
    with (tmp_path / "stdout.log").open("wb") as target:
        child = subprocess.Popen(
            [sys.executable, "-c", "print('x', flush=True); input()"], stdout=target, stdin=subprocess.PIPE
        )
    try:
        for _ in range(50):
            if (tmp_path / "stdout.log").stat().st_size:
                break
            time.sleep(0.1)
        node_dir = NodeDir(tmp_path, tmp_path / "n")
        files = process_facts.redirected_output(child.pid)
        assert files[0] == tmp_path / "stdout.log"
        output_files.save_redirected(node_dir, "rank_4", files[:1])
        assert (tmp_path / "n" / "logs" / "rank_4.redirected.log").read_text() == "x\n"
    finally:
        child.communicate()
