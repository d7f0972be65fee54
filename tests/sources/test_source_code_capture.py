"""The lines of source around those at which ranks are, saved while they are there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hangscope.incident.node_dir import NodeDir
from hangscope.processes.linux_process import ProcessHandle
from hangscope.recorder.capture import python_stacks
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.sources.source_code.capture import NAME, SourceCode

CODE = "import time\n\n\ndef waits():\n    time.sleep(600)  # for nothing\n\n\nprint(flush=True)\nwaits()\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job" / "train.py"
    path.parent.mkdir()
    path.write_text(CODE)
    os.utime(path, (time.time() - 60, time.time() - 60))
    return path


@pytest.fixture
def process(script: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, script.name], cwd=script.parent, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


def watched(pid: int, rank: int) -> WatchedRank:
    return WatchedRank(RankProcess(pid, rank, world_size=4), ProcessHandle(pid))


def keep_stack(node_dir: NodeDir, rank: WatchedRank, *frames: str) -> None:
    text = "Thread 0x1 (most recent call first):\n" + "".join(frames)
    python_stacks.keep(node_dir, rank.process, 1, text, "worker-server")


def files(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "nodes" / "n1" / NAME
    found: list[dict[str, Any]] = json.loads(path.read_text())["files"] if path.exists() else []
    return found


def take(tmp_path: Path, ranks: list[WatchedRank], *frames: str) -> list[dict[str, Any]]:
    node_dir = NodeDir(tmp_path, tmp_path / "nodes" / "n1")
    code = SourceCode()
    for rank in ranks:
        keep_stack(node_dir, rank, *frames)
        code.take(node_dir, rank, 1)
    code.write(node_dir)
    return files(tmp_path)


@pytest.mark.parametrize("absolute", [True, False])
def test_lines_around_each_frame_are_kept(
    tmp_path: Path, script: Path, process: subprocess.Popen[bytes], absolute: bool
) -> None:
    """Ranks that have the same file share its lines; a relative name is in the process's own directory."""
    name = str(script) if absolute else script.name
    ranks = [watched(process.pid, 0), watched(process.pid, 3)]
    (found,) = take(tmp_path, ranks, f'  File "{name}", line 5 in waits\n', f'  File "{name}", line 9 in <module>\n')
    assert (found["file"], found["ranks"]) == (name, [0, 3])
    assert found["lines"]["5"] == "    time.sleep(600)  # for nothing"
    assert set(found["lines"]) == {str(number) for number in range(2, 13)}


def test_a_file_that_was_changed_since_is_left_out(
    tmp_path: Path, script: Path, process: subprocess.Popen[bytes]
) -> None:
    """Whoever edits the script while it runs is not shown lines that do not run."""
    script.write_text("# a new line\n" + CODE)
    os.utime(script, (time.time() + 5, time.time() + 5))
    assert take(tmp_path, [watched(process.pid, 0)], f'  File "{script}", line 5 in waits\n') == []


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "/proc/self/environ.py", "/nowhere/train.py", "/usr/lib/python3.12/threading.py", "<string>"],
)
def test_only_python_files_of_the_user_are_read(tmp_path: Path, process: subprocess.Popen[bytes], name: str) -> None:
    """A name on a stack may be any: what is no Python file, not there or a library's is not copied."""
    assert take(tmp_path, [watched(process.pid, 0)], f'  File "{name}", line 1 in f\n') == []


def test_py_spys_frames_are_known_too(tmp_path: Path, script: Path, process: subprocess.Popen[bytes]) -> None:
    """The other form of stacks names its lines in brackets."""
    (found,) = take(tmp_path, [watched(process.pid, 0)], f"    waits ({script}:5)\n")
    assert "for nothing" in found["lines"]["5"]
