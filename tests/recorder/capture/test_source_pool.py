"""The sources of one capture, each on its thread: what fails or hangs is a gap and keeps nobody."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from hangscope.incident.node_dir import NodeDir
from hangscope.recorder.capture.source_pool import SourcePool


def test_what_fails_or_is_late_is_a_gap(tmp_path: Path) -> None:
    """By its name; while others wait for their slot, and only where it is asked for."""
    node_dir = NodeDir(tmp_path, tmp_path / "n")
    pool = SourcePool(2)
    release = threading.Event()
    done: list[str] = []

    def fail() -> None:
        raise ValueError("no such counter")

    jobs = [pool.start("RAS", release.wait, 30), pool.start("counters", fail), pool.start("kernel", done.append, "k")]
    begun = time.monotonic()
    pool.wait(jobs, begun + 0.5, node_dir)
    assert [(gap["what"], gap["why"]) for gap in node_dir.gaps] == [("counters", "ValueError: no such counter")]
    pool.wait(jobs, begun + 1.0, node_dir, late="no end within 1 s")
    release.set()
    assert time.monotonic() - begun < 5
    assert {gap["what"]: gap["why"] for gap in node_dir.gaps}["RAS"] == "no end within 1 s"
    assert done == ["k"]
