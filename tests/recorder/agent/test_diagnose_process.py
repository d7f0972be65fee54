"""The verdict of `run` and `snapshot`: a process of its own, started once."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from hangscope.recorder.agent import diagnose_process

CASE = Path(__file__).parents[2] / "cases" / "skipped"

_started: list[str] = []


def _heard(event: str, args: tuple[object, ...]) -> None:
    if event == "subprocess.Popen":
        _started.append(str(args[1]))


sys.addaudithook(_heard)


def test_text_and_json_come_of_one_diagnosis(tmp_path: Path) -> None:
    """The evidence is read and judged by one process, which gives the verdict as text and as JSON."""
    incident = tmp_path / "incident"
    shutil.copytree(CASE, incident)
    _started.clear()
    given = diagnose_process.diagnose(incident)
    assert len(_started) == 1
    assert given.key == ("mismatch", (2,))
    assert json.loads((incident / "verdict.json").read_text()) == given.value
    assert (incident / "verdict.txt").read_text() == given.text
    assert given.text.startswith("HANG")


def test_a_diagnosis_that_fails_says_why(tmp_path: Path) -> None:
    """Where there is nothing to diagnose, the problem is in the words of the command line."""
    given = diagnose_process.diagnose(tmp_path / "gone")
    assert not given.value
    assert "no such file or directory" in given.problem
