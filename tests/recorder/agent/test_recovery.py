"""Stalls that end by themselves: when one is over, and what its place is worth afterwards."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hangscope.processes.linux_process import ProcessHandle
from hangscope.recorder.agent.recovery import CapturedStall, RecoveredStalls, sites_of
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.rank_position import RankPosition
from hangscope.recorder.live.thread_waits import StackFrame, ThreadWait
from hangscope.recorder.live.watched_rank import WatchedRank
from kits.agent_parts import AgentParts, rank


def test_a_place_that_recovered_has_a_threshold_of_its_own() -> None:
    """Twice the longest that it took; other places keep theirs; a line is said once a stall."""
    sites = RecoveredStalls()
    site = ("default_pg", "all_reduce")
    assert sites.threshold([site], 30) == 30
    assert sites.line([site], "rank 1: all_reduce #7 unfinished", 31, 30) is None
    sites.add([site], 40)
    sites.add([site], 20)
    assert sites.threshold([site], 30) == 80
    assert sites.threshold([("default_pg", "barrier")], 30) == 30
    said = sites.line([site], "rank 1: all_reduce #9 unfinished", 31, 30)
    assert said is not None
    assert said.startswith("rank 1: all_reduce #9 unfinished for 31.0 s; the job resumed by itself here before, after")
    assert said.endswith("after 40.0 s, so evidence is saved in full only after 80.0 s")
    assert sites.line([site], "rank 2: all_reduce #9 unfinished", 32, 30) is None
    assert sites.line([site], "rank 2: all_reduce #9 unfinished", -1, 30) is not None  # began after the line was said


def test_a_wait_without_an_operation_is_a_place_too() -> None:
    """A rank that stands in a store has the raised threshold of that line, and the pause counts from when it came."""
    wait = ThreadWait("store.wait", StackFrame("/job/train.py", 3, "main"), None)
    position = RankPosition(since=time.monotonic() - 40, samples=2, wait=wait)
    rank = WatchedRank(RankProcess(os.getpid(), 0), ProcessHandle(os.getpid()), position=position)
    stall = CapturedStall.of([rank])
    assert stall.sites == sites_of(rank) == {("store.wait", "train.py:3")}
    assert 40 <= stall.seconds() < 45
    sites = RecoveredStalls()
    sites.add(stall.sites, stall.seconds())
    assert sites.threshold(sites_of(rank), 30) >= 80


def test_a_stall_is_over_once_every_rank_moves_and_keeps_moving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time that it had lasted when they began to; a rank whose peer was ended moves too, and dies."""
    monkeypatch.setattr("hangscope.recorder.agent.recovery.MOVES_S", 0.2)
    parts = AgentParts(tmp_path)
    first, second = rank(0, operation_age_s=40.0), rank(1, operation_age_s=39.0)
    parts.add(first, second)
    recovery = parts.recovery
    recovery.begin(tmp_path / "hang")
    assert parts.polling.known_stalled == {0, 1}
    first.progress.unfinished.clear()
    assert recovery.update() is None
    assert recovery.is_stuck(second)
    second.progress.unfinished.clear()
    assert recovery.update() is None
    time.sleep(0.3)
    assert recovery.update() == pytest.approx(40.0, abs=1.0)
    assert recovery.after(tmp_path / "hang") == recovery.update()
    assert recovery.after(tmp_path / "another") is None
    assert recovery.forget() == {("default_pg", "all_reduce")}
    assert (recovery.update(), parts.polling.known_stalled) == (None, set())


def test_a_stall_whose_rank_ends_or_goes_away_is_never_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What moves then is a job that falls apart."""
    monkeypatch.setattr("hangscope.recorder.agent.recovery.MOVES_S", 0.0)
    parts = AgentParts(tmp_path)
    ends = rank(0, operation_age_s=40.0)
    parts.add(ends)
    parts.recovery.begin(tmp_path)
    ends.progress.unfinished.clear()
    ends.ended_at = time.time()
    assert parts.recovery.update() is None
    parts.polling.ranks.by_number.clear()
    assert parts.recovery.update() is None


def test_a_stall_after_which_every_rank_ended_well_was_a_pause(tmp_path: Path) -> None:
    """A save at the end of a job: it goes on, and is over before anybody has seen it move for long."""
    parts = AgentParts(tmp_path)
    saves, waits = rank(0), rank(1, operation_age_s=40.0)
    parts.add(saves, waits)
    parts.recovery.begin(tmp_path)
    for each in (saves, waits):
        each.progress.unfinished.clear()
        each.ended_at = time.time() + 9.0
        each.exit_status = 0
    parts.recovery.note_clean_end()
    assert parts.recovery.after(tmp_path) == pytest.approx(49.0, abs=1.0)


def test_a_stall_after_which_a_rank_failed_was_none(tmp_path: Path) -> None:
    """Only a job that ends well has gone on."""
    parts = AgentParts(tmp_path)
    fails, waits = rank(0), rank(1, operation_age_s=40.0)
    parts.add(fails, waits)
    parts.recovery.begin(tmp_path)
    for each, status in ((fails, 1), (waits, 0)):
        each.ended_at = time.time()
        each.exit_status = status
    parts.recovery.note_clean_end()
    assert parts.recovery.after(tmp_path) is None


def test_what_the_capture_itself_learns_of_a_rank_is_no_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture that another node asked for reads rings that were never read before: nothing has moved by that."""
    monkeypatch.setattr("hangscope.recorder.agent.recovery.MOVES_S", 0.0)
    parts = AgentParts(tmp_path)
    waits = rank(0)
    status = {"0": {"last_enqueued_collective": 80, "last_completed_collective": 79}}
    waits.progress.take_counters("gloo", status, time.monotonic(), time.time_ns())
    parts.add(waits)
    parts.recovery.begin(tmp_path)
    created = time.time_ns() - 40 * 10**9
    waits.take_full("gloo", {"entries": [{"record_id": 79, "pg_id": 0, "time_created_ns": created}]})
    assert parts.recovery.update() is None
    assert parts.recovery.is_stuck(waits)
