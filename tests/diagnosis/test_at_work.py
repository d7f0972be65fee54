"""A rank that the others wait for, and that was seen to work; exceptions that were printed on the way to a hang."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hangscope

WAITS = {"waits_in": "store.wait", "stood_s": 31.0}
OUTSIDE = {"waits_in": "", "stood_s": 40.0}
STACK = """# hangscope stacks rank=1 pid=101 sample={sample} by=worker-server at=2026-11-15T02:30:11.204Z
Thread 0x00007f (most recent call first):
  File "/work/train.py", line 31 in save
  File "/work/train.py", line 80 in <module>
"""
PRINTED = """Exception in thread Thread-1 (fill):
Traceback (most recent call last):
  File "/usr/lib/python3.12/threading.py", line 1045, in _bootstrap_inner
    self.run()
  File "/work/train.py", line 12, in fill
    batches.put(table[index])
KeyError: 'forty'
step 41
"""


def verdict(
    folder: Path, *, seen: dict[str, Any], reason: str = "stall", log: str = "", **more: Any
) -> hangscope.Diagnosis:
    """Of an incident of three ranks, of which rank 1 is in save() and the others wait for it; `more` are fields of the
    manifest."""
    node = folder / "nodes" / "n"
    (node / "stacks").mkdir(parents=True)
    common = {"job": "1", "attempt": "0", "reason": reason, "captured_at": "2026-11-15T02:30:11.204Z"}
    manifest = {"schema": "hangscope.incident/1", "world_size": 3, "files": {}, **common, **more}
    asked = {"exit_status": None, "ended_at": None, "server_answers": None, "python_answers": None}
    rows = [
        {"rank": number, "pid": 100 + number, "state": "S", **asked, **known}
        for number, known in enumerate((WAITS, {**OUTSIDE, **seen}, WAITS))
    ]
    listed = {"schema": "hangscope.node/1", "node": "n", "ranks": rows, "gaps": [], **common}
    (folder / "incident.json").write_text(json.dumps(manifest))
    (node / "node.json").write_text(json.dumps(listed))
    for sample in (1, 2):
        (node / "stacks" / f"rank_1.{sample}.txt").write_text(STACK.format(sample=sample))
    if log:
        (node / "logs").mkdir()
        (node / "logs" / "launcher.log").write_text(log)
    return hangscope.diagnose(hangscope.load([folder]))


def test_a_rank_that_works_is_waited_for_and_hangs_not(tmp_path: Path) -> None:
    """Nobody can know whether it comes back: the first word says so, with the line, and it is no more than medium."""
    found = verdict(tmp_path, seen={"works": True, "cpu_share": 0.83, "io_bytes_per_s": 10})
    assert (found.outcome, found.hang, found.confidence) == ("wait", True, "medium")
    assert found.headline == "ranks 0, 2 wait for rank 1, which is working in save (train.py:31)"
    assert any("used 83% of a core" in finding.text for finding in found.why)
    assert found.exit_status == 3  # nobody can tell yet whether it is a hang: no script should act on it as on one


@pytest.mark.parametrize("seen", [{"works": False, "cpu_share": 0.0}, {"works": None}])
def test_a_rank_that_was_not_seen_to_work_hangs(tmp_path: Path, seen: dict[str, Any]) -> None:
    """One that sleeps, or that nobody looked at."""
    assert verdict(tmp_path, seen=seen).outcome == "hang"


def test_work_that_came_to_an_end_is_a_pause(tmp_path: Path) -> None:
    """With its length and its line."""
    found = verdict(tmp_path, seen={"works": True}, recovered={"at": "2026-11-15T02:31:11.204Z", "after_s": 41.0})
    assert found.outcome == "pause"
    assert "41s" in found.headline
    assert "save (train.py:31)" in found.headline


def test_an_exception_that_was_printed_before_is_shown(tmp_path: Path) -> None:
    """It did not end its rank, and is often how the hang began; the log does not say whose it is."""
    found = verdict(tmp_path, seen={"works": False}, log=PRINTED)
    [printed] = [finding for finding in found.why if "KeyError" in finding.text]
    assert "'forty' in a thread" in printed.text
    assert "does not say which rank" in printed.text
    assert printed.detail == ("/work/train.py:12  fill",)
    assert "fill (train.py:12)" in found.next_steps[0]


def test_an_exception_of_the_launcher_or_of_ctrl_c_is_not(tmp_path: Path) -> None:
    """What somebody did about the hang later is not its cause."""
    log = 'Traceback (most recent call last):\n  File "/work/train.py", line 9, in <module>\nKeyboardInterrupt\n'
    found = verdict(tmp_path, seen={"works": False}, log=log)
    assert not any("KeyboardInterrupt" in finding.text for finding in found.why)
