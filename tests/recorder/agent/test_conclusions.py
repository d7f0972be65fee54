"""What is made of a captured hang: one diagnosis, its three files, the user's commands, and a correction at most."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from hangscope.recorder.agent import diagnose_process
from hangscope.recorder.agent.conclusions import _collect_command
from hangscope.recorder.agent.incidents import Stage
from hangscope.recorder.agent.on_hang import OnHang
from hangscope.recorder.agent.watcher import Trouble
from kits.agent_parts import AgentParts, rank

STALL = Trouble("stall", "rank 0: all_reduce #7 unfinished for 31.0 s")
FILES = ["verdict.json", "verdict.txt", "verdict.html"]

# As `hangscope report INCIDENT -o FILE…`: notes that it was started, and writes a verdict that says what it found.
STAND_IN = """
import json, pathlib, sys
verb, incident, files = sys.argv[1], pathlib.Path(sys.argv[2]), [pathlib.Path(word) for word in sys.argv[4::2]]
assert verb == "report"
with open({count!r}, "a") as stream:
    print(*(file.name for file in files), file=stream)
paused = "recovered" in json.loads((incident / "incident.json").read_text())
verdict = {{"outcome": "pause" if paused else {outcome!r}, "kind": "absent", "culprits": [{{"rank": 1}}]}}
verdict["headline"] = "h"
for file in files:
    file.write_text(json.dumps(verdict) if file.suffix == ".json" else verdict["outcome"].upper())
sys.exit(1)
"""


@pytest.fixture
def diagnoses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each diagnosis that was started."""
    count = tmp_path / "diagnoses"
    count.touch()
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN.format(count=str(count), outcome="hang"))
    monkeypatch.setattr(diagnose_process, "COMMAND", (sys.executable, "-S", str(script)))
    return count


def counted(diagnoses: Path) -> list[list[str]]:
    return [line.split() for line in diagnoses.read_text().splitlines()]


def outcome(incident: Path) -> list[str]:
    """What each of the three files says."""
    return [
        json.loads((incident / "verdict.json").read_text())["outcome"].upper(),
        *((incident / name).read_text() for name in FILES[1:]),
    ]


def test_a_hang_is_diagnosed_once(tmp_path: Path, diagnoses: Path) -> None:
    """JSON, text and page come of one diagnosis, and the end of the command asks for no other."""
    parts = AgentParts(tmp_path / "run")
    hang = parts.captures.hang
    parts.captures.capture(hang, STALL, ())
    parts.wait()
    assert counted(diagnoses) == [FILES]
    assert outcome(hang) == ["HANG"] * 3
    assert set(FILES) <= set(json.loads((hang / "incident.json").read_text())["files"])
    assert parts.lines[1:] == [f"the verdict on {hang}:\nHANG", f"HTML report: {hang / 'verdict.html'}"]
    parts.events.end(1)
    parts.captures.finish((), Trouble("rank-exit", "the command ended with status 1"))
    assert counted(diagnoses) == [FILES]


@pytest.mark.parametrize("found", ["desync", "wrong"])
def test_of_wrong_results_alerts_tell_and_no_command_runs(tmp_path: Path, diagnoses: Path, found: str) -> None:
    """The job goes on: who said what to do about a hang did not say it of that."""
    (tmp_path / "stand_in.py").write_text(STAND_IN.format(count=str(diagnoses), outcome=found))
    ran = tmp_path / "ran"
    parts = AgentParts(tmp_path / "run", on_hang=OnHang(commands=(f"touch {ran}",)))
    sent: list[str] = []
    parts.conclusions._alerts.send = lambda home, value, *_: sent.append(value["outcome"])  # type: ignore[method-assign]
    parts.captures.capture(parts.captures.hang, STALL, ())
    parts.wait()
    assert sent == [found]
    assert not ran.exists()


def test_a_stall_that_recovers_is_diagnosed_once_more(tmp_path: Path, diagnoses: Path) -> None:
    """The verdict that was a hang is written anew as a pause, once, with its page, and is counted as one verdict."""
    parts = AgentParts(tmp_path / "run")
    hang = parts.captures.hang
    parts.captures.capture(hang, STALL, ())
    parts.wait()
    for _ in range(2):
        parts.captures.note_recovery(hang, 7.0)
        parts.wait()
    parts.events.end(0)
    parts.captures.finish((), None)
    assert counted(diagnoses) == [FILES, FILES]
    assert outcome(hang) == ["PAUSE"] * 3
    assert parts.log.kinds() == {("pause", "absent"): 1}
    assert sum("PAUSE, not a hang" in line for line in parts.lines) == 1


def test_a_stall_that_recovered_before_its_verdict_is_diagnosed_once(tmp_path: Path, diagnoses: Path) -> None:
    """Nobody hears of a hang that is over: the first verdict is the pause."""
    parts = AgentParts(tmp_path / "run")
    parts.add(rank(0, operation_age_s=40.0))
    hang = parts.captures.hang
    parts.recovery.begin(hang)
    parts.recovery._after = 41.0
    parts.captures.capture(hang, STALL, ())
    parts.wait()
    parts.captures.note_recovery(hang, 41.0)
    parts.wait()
    assert counted(diagnoses) == [FILES]
    assert outcome(hang) == ["PAUSE"] * 3
    assert parts.lines[1:] == [f"PAUSE, not a hang: h; the evidence is in {hang}"]


def test_a_diagnosis_under_way_at_the_end_is_not_begun_anew(
    tmp_path: Path, diagnoses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take longer than the end waits for captures: then it is waited for."""
    monkeypatch.setattr("hangscope.recorder.agent.captures.AT_END_S", 0.0)
    script = tmp_path / "stand_in.py"
    script.write_text("import time; time.sleep(2)\n" + script.read_text())
    parts = AgentParts(tmp_path / "run")
    parts.captures.capture(parts.captures.hang, STALL, ())
    hang = parts.log.of(parts.captures.hang)
    while hang.stage is not Stage.CONCLUDING:
        time.sleep(0.01)
    parts.captures.finish((), None)
    assert counted(diagnoses) == [FILES]
    assert not parts.captures.working


@pytest.mark.parametrize("diagnose", (False, True))
def test_without_a_verdict_the_users_command_runs_once(
    diagnose: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --no-diagnose, or where the diagnosis fails: at the capture, and not again when the command ends."""
    monkeypatch.setattr(diagnose_process, "COMMAND", ("false",))
    ran = tmp_path / "ran"
    on_hang = OnHang(commands=(f'echo "$HANGSCOPE_OUTCOME" >> {ran}',))
    parts = AgentParts(tmp_path / "run", on_hang=on_hang, diagnose=diagnose)
    parts.captures.capture(parts.captures.hang, STALL, ())
    parts.wait()
    parts.events.end(0)
    parts.captures.finish((), None)
    assert ran.read_text() == "unknown\n"


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        ({"SLURM_JOB_ID": "48121"}, "--slurm 48121 "),
        ({"SLURM_JOB_ID": "48121", "SLURM_ARRAY_JOB_ID": "48121", "SLURM_ARRAY_TASK_ID": "3"}, "--slurm 48121_3 "),
        ({"SLURM_JOB_ID": "48122", "SLURM_HET_SIZE": "2"}, "--slurm 48122 "),
        ({}, ""),
    ],
    ids=["a job", "a task of an array", "a heterogeneous job", "no Slurm"],
)
def test_the_command_that_brings_the_parts_together_names_the_job(environ: dict[str, str], job: str) -> None:
    """As srun finds it: an array's own number stands for all of its tasks."""
    rest = f" {job}--path /local/hangs -o DIR" if job else ""
    assert _collect_command(Path("/local/hangs"), environ) == f"hangscope collect{rest}"
