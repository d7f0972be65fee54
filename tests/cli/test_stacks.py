"""`hangscope stacks`: of what was saved, and of what runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hangscope.cli.main import main

INCIDENT = Path(__file__).parents[1] / "incidents" / "sleep"
DUMP = """Process {pid}: python train.py
Python v3.12.1 (/usr/bin/python3.12)

Thread {pid} (idle): "MainThread"
    {inner}
    <module> (/job/train.py:90)
"""


def test_an_incident(capsys: pytest.CaptureFixture[str]) -> None:
    """The odd rank of a recorded hang is marked, and the answer is on stdout."""
    assert main(["stacks", str(INCIDENT)]) == 0
    found = capsys.readouterr()
    assert "└─ rank 2  ◀ few: 1 of 4" in found.out
    assert found.err == ""


def test_a_folder_of_py_spys_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files that somebody took by hand are enough, where their names say the ranks."""
    for rank in range(4):
        inner = "save (/job/train.py:8)" if rank == 3 else "all_reduce (/job/train.py:50)"
        (tmp_path / f"rank_{rank}.txt").write_text(DUMP.format(pid=100 + rank, inner=inner))
    assert main(["stacks", str(tmp_path), "--json"]) == 0
    (root,) = json.loads(capsys.readouterr().out)["tree"]
    assert [(way["ranks"], way["odd"]) for way in root["branches"]] == [([0, 1, 2], False), ([3], True)]


def test_nothing_to_show_is_an_error_with_a_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Evidence without stacks ends with status 2 and says how to get some."""
    (tmp_path / "rank_0.log").write_text("Traceback (most recent call last):\nValueError: x\n")
    assert main(["stacks", str(tmp_path)]) == 2
    assert "snapshot" in capsys.readouterr().err


def test_a_rank_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A live process is captured as snapshot does it; where nobody may trace it, that is what is said."""
    code = "def waits():\n    print(flush=True)\n    input()\nwaits()"
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        status = main(["stacks", str(process.pid), "--dir", str(tmp_path / "kept"), "--all-frames"])
        process.communicate()
    found = capsys.readouterr()
    assert str(tmp_path / "kept") in found.err
    assert ("waits" in found.out) if status == 0 else ("no stack of any rank" in found.err)
