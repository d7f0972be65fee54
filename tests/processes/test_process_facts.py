"""What the kernel knows of a rank's process beside its state."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hangscope.incident.node_dir import NodeDir
from hangscope.processes import process_facts
from hangscope.recorder.capture import (
    output_files,
)


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


@pytest.mark.parametrize(
    ("there", "path", "meant"),
    [
        ("k8s.io/abc", "/k8s.io/abc", "k8s.io/abc"),  # on the machine
        ("", "/k8s.io/abc", ""),  # in a container without a namespace of control groups: its own group is mounted
        ("abc", "/kubepods/pod1/abc", "abc"),  # the pod's group is mounted
        ("", "/", ""),
        ("", "/../../other", None),  # outside of what is mounted
    ],
)
def test_the_count_of_memory_kills_is_found_in_containers_too(
    there: str, path: str, meant: str | None, tmp_path: Path
) -> None:
    """The kernel calls a process by its group's path on the machine, of which a container may see the end alone."""
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    (tmp_path / there / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    file = process_facts.control_group(tmp_path, path, "memory.oom_control")
    assert file == (None if meant is None else tmp_path / meant / "memory.oom_control")
    assert process_facts.oom_kills(file) == (None if meant is None else 2)
