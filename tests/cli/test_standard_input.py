"""A paste that comes by standard input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SIGHUP = "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers\n"
MOVES = "step: 1  loss: 12.2\nstep: 10  loss:  9.2\n"
TIMEOUT = (
    "[rank3]:[E1126 19:02:13.041194513 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=16, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600031 "
    "milliseconds before timing out.\n"
)


def diagnose(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hangscope", "diagnose", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(("text", "outcome", "status"), [(SIGHUP, "crash", 3), (MOVES, "ok", 0), (TIMEOUT, "hang", 3)])
def test_a_paste_is_diagnosed(text: str, outcome: str, status: int) -> None:
    """As a file with the same text is; no path of a temporary file is shown."""
    found = diagnose("-", "--json", text=text)
    verdict = json.loads(found.stdout)
    assert (verdict["outcome"], found.returncode) == (outcome, status)
    assert verdict["inputs"] == ["-"]
    assert "standard-input.log" in json.dumps(verdict["facts"][0])
    assert "/hangscope-" not in found.stdout


def test_an_empty_paste_is_unusable_input() -> None:
    """With the reason."""
    found = diagnose("-")
    assert found.returncode == 2 and "standard input is empty" in found.stderr


@pytest.mark.parametrize("names", [("nccl_trace_rank_0",), ("nccl_trace_rank_0", "nccl_trace_rank_1"), ("0", "1", "2")])
def test_a_folder_of_refused_files_is_unusable_input(names: tuple[str, ...], tmp_path: Path) -> None:
    """Exit status 2 with the reasons, and no advice to switch the recorder on."""
    for name in names:
        (tmp_path / name).write_bytes(b"cos\nsystem\n(S'echo hi'\ntR.")
    found = diagnose(str(tmp_path))
    assert found.returncode == 2
    assert str(tmp_path) in found.stderr and "recorder on" not in found.stdout + found.stderr
