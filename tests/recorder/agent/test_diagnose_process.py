"""The verdict of `run` and `snapshot`: a process of its own, which reads and judges the evidence once."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import pytest

from hangscope.recorder.agent import diagnose_process
from hangscope.recorder.agent.diagnose_process import DiagnosisProcess, diagnose

CASE = Path(__file__).parents[2] / "cases" / "skipped"

_started: list[str] = []


def _note(event: str, args: tuple[object, ...]) -> None:
    if event == "subprocess.Popen":
        _started.append(str(args[1]))


sys.addaudithook(_note)


@pytest.fixture
def incident(tmp_path: Path) -> Path:
    shutil.copytree(CASE, tmp_path / "incident")
    _started.clear()
    return tmp_path / "incident"


def test_text_json_and_page_come_of_one_diagnosis(incident: Path) -> None:
    """One process gives all three, and leaves nothing behind."""
    with DiagnosisProcess(incident) as process:
        given = process.verdict()
        page = process.page()
    assert len(_started) == 1
    assert given.key == ("mismatch", (2,))
    assert json.loads((incident / "verdict.json").read_text()) == given.value
    assert (incident / "verdict.txt").read_text() == given.text
    assert given.text.startswith("HANG")
    assert page == incident / "verdict.html"
    assert "rank 2" in page.read_text()
    assert not process._folder.exists()


def test_a_snapshots_verdict_is_one_diagnosis_without_a_page(incident: Path) -> None:
    """Where nothing may be written into the incident, it is only said."""
    before = sorted(incident.rglob("*"))
    given = diagnose(incident, keep=False)
    assert (given.key, len(_started)) == (("mismatch", (2,)), 1)
    assert sorted(incident.rglob("*")) == before
    diagnose(incident)
    assert {path.name for path in set(incident.rglob("*")) - set(before)} == {"verdict.json", "verdict.txt"}


def test_a_diagnosis_that_fails_says_why(tmp_path: Path) -> None:
    """Where there is nothing to diagnose, the problem is in the words of the command line."""
    given = diagnose(tmp_path / "gone")
    assert not given.value
    assert "no such file or directory" in given.problem


SLOW_PAGE = """
import pathlib, sys, time
made = [pathlib.Path(word) for word in sys.argv[4::2]]
made[0].write_text('{"kind": "absent"}')
made[1].write_text("HANG")
time.sleep(float(sys.argv[0].rpartition("_")[2]))
made[2].write_text("page")
"""


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, page_after_s: float) -> None:
    script = folder / f"slow_{page_after_s}"
    script.write_text(SLOW_PAGE)
    monkeypatch.setattr(diagnose_process, "COMMAND", (sys.executable, "-S", str(script)))


def test_the_verdict_does_not_wait_for_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of a large job takes seconds more."""
    stand_in(tmp_path, monkeypatch, 2.0)
    (tmp_path / "incident").mkdir()
    with DiagnosisProcess(tmp_path / "incident") as process:
        assert process.verdict().text == "HANG"
        assert (tmp_path / "incident/verdict.json").exists()
        assert process._process.poll() is None
        page = process.page()
    assert page is not None
    assert page.read_text() == "page"


def test_a_diagnosis_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict stays where only the page hangs; where the verdict does, that is what is said."""
    monkeypatch.setattr(diagnose_process, "DEADLINE_S", 1.0)
    stand_in(tmp_path, monkeypatch, 600.0)
    (tmp_path / "incident").mkdir()
    begun = time.monotonic()
    with DiagnosisProcess(tmp_path / "incident") as process:
        assert process.verdict().value == {"kind": "absent"}
        assert process.page() is None
    monkeypatch.setattr(diagnose_process, "COMMAND", (sys.executable, "-S", "-c", "import time; time.sleep(600)"))
    assert diagnose(tmp_path / "incident").problem == "no verdict within 1 s"
    assert time.monotonic() - begun < 30
