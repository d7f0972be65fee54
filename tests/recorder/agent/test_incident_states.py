"""An incident of a run as an object: its states, what came of it, and several threads at once."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from hangscope.incident.node_dir import NodeDir
from hangscope.recorder.agent.diagnose_process import Verdict
from hangscope.recorder.agent.incidents import Incident, Incidents, Stage
from hangscope.recorder.capture.capture_node import NodeCapture
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.rundir.reasons import Reason


def capture(folder: Path, reason: str = Reason.STALL) -> NodeCapture:
    node_dir = NodeDir(folder, folder / "nodes" / "n1")
    return NodeCapture(node_dir, NodeFacts("n1", "j", "0", 0.0), (), reason, "seen", threading.Event())


def verdict(outcome: str, kind: str) -> Verdict:
    return Verdict("", {"outcome": outcome, "kind": kind, "headline": kind})


def test_an_incident_goes_through_its_states(tmp_path: Path) -> None:
    """Marked, capturing, saved, concluding, concluded; what was saved once stays so while it is captured again."""
    incidents = Incidents()
    hang = incidents.of(tmp_path / "run")
    seen = [hang.stage]
    assert (hang.reason, hang.home, hang.is_saved, hang.concluded_at) == (None, tmp_path / "run", False, None)
    for step in (lambda: hang.begin(capture(tmp_path / "run")), hang.save, hang.begin_conclusion, hang.conclude):
        step()
        seen.append(hang.stage)
    assert seen == [Stage.MARKED, Stage.CAPTURING, Stage.SAVED, Stage.CONCLUDING, Stage.CONCLUDED]
    assert hang.concluded_at is not None
    hang.begin(capture(tmp_path / "run", Reason.WATCHDOG))
    assert (hang.stage, hang.is_saved, hang.reason) == (Stage.CAPTURING, True, "watchdog")
    assert incidents.of(tmp_path / "run") is hang


def test_a_verdict_is_corrected_and_a_stall_recovers_once(tmp_path: Path) -> None:
    """Of several verdicts the last one counts, and each incident is one pause, whoever notices it."""
    incidents = Incidents()
    hang = incidents.of(tmp_path)
    hang.begin(capture(tmp_path))
    first = verdict("hang", "absent")
    assert hang.give(first) is None
    assert hang.give(verdict("pause", "none")) is first
    assert [hang.recover(), hang.recover(), hang.recovered] == [True, False, True]
    assert (incidents.pauses, dict(incidents.kinds())) == (1, {("pause", "none"): 1})


def test_an_earlier_attempts_incidents_are_known_as_such(tmp_path: Path) -> None:
    """What a restart leaves behind is not of the attempt that runs; what comes after it is."""
    incidents = Incidents()
    before = incidents.of(tmp_path / "a")
    before.begin(capture(tmp_path / "a"))
    incidents.end_attempt()
    later = incidents.of(tmp_path / "b")
    later.begin(capture(tmp_path / "b", Reason.SNAPSHOT))
    assert [each.is_of_an_earlier_attempt for each in incidents.captured()] == [True, False]


def test_captures_are_counted_by_reason(tmp_path: Path) -> None:
    """A hang that is captured twice is one incident of two captures; what was asked for is no hang."""
    incidents = Incidents()
    for name, reason in (("a", Reason.STALL), ("a", Reason.WATCHDOG), ("b", Reason.SNAPSHOT), ("c", Reason.DESYNC)):
        incidents.note_capture(tmp_path / name, reason, "seen")
    assert (incidents.hangs, incidents.times(tmp_path / "a")) == (1, 2)
    assert incidents.reasons() == {"stall": 1, "watchdog": 1, "snapshot": 1, "desync": 1}
    assert {type(note.reason) for note in incidents.captures} == {str}


@pytest.mark.parametrize("reason", list(Reason))
def test_a_reason_is_its_text(reason: Reason) -> None:
    """Marks, manifests and lines that people read have the text that docs/run.md lists."""
    assert (json.loads(json.dumps(reason)), f"{reason}", reason) == (reason.value, reason.value, reason.value)


def test_threads_see_whole_changes(tmp_path: Path) -> None:
    """Of a hundred threads that say that a stall recovered, one is the first; no path has two incidents."""
    incidents = Incidents()
    start = threading.Barrier(100)
    firsts: list[bool] = []
    found: list[Incident] = []

    def work() -> None:
        start.wait()
        hang = incidents.of(tmp_path)
        found.append(hang)
        firsts.append(hang.recover())
        incidents.note_capture(tmp_path, Reason.STALL, "seen")

    threads = [threading.Thread(target=work) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sum(firsts), len(set(map(id, found))), incidents.times(tmp_path)) == (1, 1, 100)


def test_another_capture_keeps_what_the_first_one_saw(tmp_path: Path) -> None:
    """The reason, the time and what was saved of processes are the first one's; only what is looked at is new."""
    first = capture(tmp_path)
    first.take()
    again = first.again((), None)
    assert again is not first
    assert (again.reason, again.captured_at, again.begun, again.node_dir) == (
        first.reason,
        first.captured_at,
        first.begun,
        first.node_dir,
    )
    again.complete()
    assert json.loads((tmp_path / "nodes/n1/node.json").read_text())["complete"] is True
