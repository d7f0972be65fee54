"""The agent's decisions, turn by turn: what it captures, how often, and what it leaves alone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hangscope.recorder.agent.job_events import JobEvents
from hangscope.recorder.agent.node_agent import Agent, AgentOptions
from hangscope.recorder.agent.watcher import Trouble
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.rundir import run_directory
from hangscope.recorder.rundir.run_directory import RunFolders
from kits.agent_parts import rank


class Turns:
    """An agent whose loop is turned by hand, of a node without ranks but for those that are added."""

    def __init__(self, root: Path, *, max_incidents: int = 10) -> None:
        self.lines: list[str] = []
        self.moved: list[Path] = []
        self.events = JobEvents()
        self.agent = Agent(
            AgentOptions(stall_after=30.0, max_incidents=max_incidents, diagnose=False),
            folders=RunFolders(root, root / "nodes" / "n0"),
            node=NodeFacts("n0", "j", "0", time.time()),
            sockets=root / "sockets",
            command=os.getpid(),
            events=self.events,
            say=self.lines.append,
            move_logs=self.moved.append,
        )

    def turn(self) -> None:
        """One turn, and the end of the capture that it began."""
        self.agent._turn()
        if self.agent._captures._working is not None:
            self.agent._captures._working.join(60)

    @property
    def captured(self) -> list[tuple[str, str]]:
        return [(Path(note.incident).name, note.reason) for note in self.agent._log.captures]


def test_a_hang_is_captured_once_and_once_more_when_pytorch_gives_up(tmp_path: Path) -> None:
    """Whatever else is seen of it later."""
    turns = Turns(tmp_path / "run")
    turns.agent._polling.ranks.by_number[0] = rank(0, operation_age_s=40.0)
    turns.turn()
    turns.turn()
    assert turns.captured == [("run", "stall")]
    for _ in range(2):
        turns.events.alarm("Watchdog caught collective operation timeout")
        turns.turn()
    assert turns.captured == [("run", "stall"), ("run", "watchdog")]


def test_what_another_node_or_somebody_asks_for_is_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its reason; a snapshot only once every rank was sampled twice."""
    monkeypatch.setattr("hangscope.recorder.live.two_samples.LEAST_S", 0.0)
    turns = Turns(tmp_path / "run")
    run_directory.mark(tmp_path / "run/snapshot-1", node="snapshot", reason="snapshot", detail="asked for")
    turns.turn()
    run_directory.mark(tmp_path / "run", node="n1", reason="rank-exit", detail="rank 5 ended with status 1")
    turns.turn()
    turns.turn()
    assert turns.captured == [("snapshot-1", "snapshot"), ("run", "rank-exit")]


@pytest.mark.parametrize("asked_to_end", [False, True])
def test_a_job_that_is_asked_to_end_does_not_recover(
    asked_to_end: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM comes while it hangs: a rank that moves then has lost its peers, and the hang stays one."""
    turns = Turns(tmp_path / "run")
    turns.agent._polling.ranks.by_number[0] = rank(0, operation_age_s=40.0)
    turns.turn()
    noted: list[float] = []
    monkeypatch.setattr(turns.agent._recovery, "update", lambda: 41.0)
    monkeypatch.setattr(turns.agent._captures, "note_recovery", lambda _, seconds: noted.append(seconds))
    if asked_to_end:
        turns.events.save_wanted.set()
    turns.turn()
    assert noted == ([] if asked_to_end else [41.0])


def test_after_max_incidents_trouble_costs_one_line(tmp_path: Path) -> None:
    """The watch goes on, and says once that nothing more is saved."""
    turns = Turns(tmp_path / "run", max_incidents=1)
    turns.events.alarm("first")
    turns.turn()
    turns.agent._captures.next_hang()
    for text in ("second", "third"):
        turns.events.alarm(text)
        turns.turn()
    assert turns.captured == [("run", "watchdog")]
    assert sum("--max-incidents (1) are already saved" in line for line in turns.lines) == 1


def test_what_comes_of_our_own_signals_is_not_captured(tmp_path: Path) -> None:
    """Ranks that `--on-hang kill` ends make noise while they do."""
    turns = Turns(tmp_path / "run")
    turns.agent._ender.pids = {1}
    turns.events.alarm("failure detected by watchdog")
    turns.turn()
    assert turns.captured == []


def test_the_next_attempt_begins_with_nothing_of_the_one_before(tmp_path: Path) -> None:
    """Its hang is an incident of its own, and its output goes there."""
    turns = Turns(tmp_path / "run")
    turns.agent._polling.ranks.by_number[0] = rank(0, operation_age_s=40.0)
    turns.turn()
    turns.agent._ender.pids = {1}
    turns.agent._polling.ranks.restarted = True
    turns.agent._polled_at = 0.0
    turns.turn()
    assert turns.agent._ender.pids == set()
    assert turns.moved == [tmp_path / "run/hang-2/nodes/n0/logs"]
    turns.turn()
    assert turns.captured == [("run", "stall"), ("hang-2", "stall")]


def test_an_error_of_ours_is_said_once_and_the_watch_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk or a mistake may come every second."""
    monkeypatch.setattr("hangscope.recorder.agent.node_agent.POLL_S", 0.01)
    turns = Turns(tmp_path / "run")
    failures: list[Trouble] = []

    def fail() -> None:
        failures.append(Trouble("", ""))
        if len(failures) == 3:
            turns.events.end(0)
        raise ValueError("no room")

    monkeypatch.setattr(turns.agent, "_turn", fail)
    turns.agent._run()
    assert len(failures) == 3
    assert turns.lines == ["the agent hit a problem and continues: ValueError: no room"]


def test_something_that_happens_wakes_the_loop() -> None:
    """Within its sleep, from any thread."""
    events = JobEvents()
    events.alarm("x")
    begun = time.monotonic()
    events.sleep(30.0, [])
    events.end(3)
    events.sleep(30.0, [])
    assert time.monotonic() - begun < 5
    assert events.exit_status == 3
