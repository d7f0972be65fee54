"""What is wrong with a job, from what is known of its ranks, without any process of its own."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest

from hangscope.recorder.agent.dump_watch import DumpWatch
from hangscope.recorder.agent.recovery import RecoveredStalls
from hangscope.recorder.agent.stall_watch import StallWatch
from hangscope.recorder.agent.watcher import Trouble, Watcher, how_ended
from hangscope.recorder.live.job_pace import JobPace
from hangscope.recorder.live.unfinished_ops import BOX, Unfinished
from hangscope.recorder.live.watched_rank import WatchedRank
from kits.agent_parts import AgentParts, rank


class Watch:
    """A watcher over ranks as given, with a threshold of 30 s."""

    def __init__(self, root: Path, *ranks: WatchedRank) -> None:
        self.parts = AgentParts(root)
        self.parts.add(*ranks)
        self.recovered = RecoveredStalls()
        stalls = StallWatch(self.parts.polling, self.parts.folders, self.recovered, self.parts.lines.append)
        dumps = DumpWatch(self.parts.folders.own, self.parts.node.started_at)
        self.pace = JobPace()
        self.watcher = Watcher(self.parts.polling, self.parts.events, stalls, dumps, self.pace)

    def trouble(
        self, *, captured: bool = False, known: tuple[int, ...] = (), by_us: tuple[int, ...] = ()
    ) -> Trouble | None:
        found = self.watcher.trouble(captured=captured, known_stalled=known, ended_by_us=by_us)
        return found and Trouble(found.reason, whole_seconds(found.detail))


def whole_seconds(text: str) -> str:
    """A busy machine takes a tenth of a second between two lines of a test."""
    return re.sub(r"(\d+)\.\d s\b", r"\1 s", text)


def ended(number: int, status: int) -> WatchedRank:
    return rank(number, exit_status=status, ended_at=100.0 + number)


def test_an_operation_past_the_threshold_is_a_stall(tmp_path: Path) -> None:
    """The oldest is named; ranks whose stall is captured are no news, nor is what is younger."""
    watch = Watch(tmp_path, rank(0, operation_age_s=20.0), rank(1, operation_age_s=31.0), rank(2, operation_age_s=40.0))
    assert watch.trouble() == Trouble("stall", "rank 2: all_reduce #7 unfinished for 40 s")
    assert watch.trouble(known=(2,)) == Trouble("stall", "rank 1: all_reduce #7 unfinished for 31 s")
    assert watch.trouble(known=(1, 2)) is None


def test_processes_that_still_come_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known by their black boxes alone, they are numbered anew with each that comes: an old operation counts then."""
    waits = rank(0)
    created_ns = time.time_ns() - 40_000_000_000
    waits.progress.unfinished[BOX] = [Unfinished(BOX, 7, "0xc0", "a communicator", "AllReduce", 20, created_ns)]
    watch = Watch(tmp_path, waits)
    assert watch.trouble() is None
    monkeypatch.setattr("hangscope.recorder.agent.stall_watch.COMING_S", 0.0)
    assert watch.trouble() == Trouble("stall", "rank 0: AllReduce #20 unfinished for 40 s")


def test_a_rank_that_never_gets_out_of_its_start_is_a_stall(tmp_path: Path) -> None:
    """After four times the threshold: ranks start at different times."""
    started = rank(0, init_since=time.monotonic() - 119.0)
    watch = Watch(tmp_path, started)
    assert watch.trouble() is None
    started.init_since = time.monotonic() - 121.0
    assert watch.trouble() == Trouble("stall", "rank 0: init_process_group unfinished for 121 s")


def test_a_rank_that_ends_badly_comes_first_and_once(tmp_path: Path) -> None:
    """Before any stall, unless it was captured, asked for by a signal, or done by ourselves."""
    watch = Watch(tmp_path, ended(2, 1), ended(1, -9), rank(0, operation_age_s=40.0))
    assert watch.trouble() == Trouble("rank-exit", f"rank 1 (pid {os.getpid()}) was killed by SIGKILL")
    for trouble in (watch.trouble(captured=True), watch.trouble(by_us=(os.getpid(),))):
        assert trouble is not None
        assert trouble.reason == "stall"
    watch.parts.events.signalled(15)
    assert watch.trouble() == Trouble("stall", "rank 0: all_reduce #7 unfinished for 40 s")


def test_who_ends_well_and_an_actor_that_ray_ends_are_no_trouble(tmp_path: Path) -> None:
    """Ray ends its actors with status 1, also after training; where an operation was cut short, it is a failure."""
    assert Watch(tmp_path, ended(0, 0)).trouble() is None
    actor = rank(0, exit_status=1, ended_at=1.0, by_ray=True)
    assert Watch(tmp_path, actor).trouble() is None
    found = Watch(tmp_path, actor, rank(1, operation_age_s=5.0)).trouble()
    assert found == Trouble("rank-exit", f"rank 0 (pid {os.getpid()}) ended with status 1")


def test_a_watchdogs_alarm_and_a_dump_are_trouble_once(tmp_path: Path) -> None:
    """Of several alarms the first; of dumps what PyTorch wrote, not what we did."""
    watch = Watch(tmp_path)
    watch.parts.events.alarm("first")
    watch.parts.events.alarm("second")
    assert [watch.trouble(), watch.trouble()] == [Trouble("watchdog", "first"), None]
    dumps = watch.parts.folders.own / "dumps"
    dumps.mkdir(parents=True)
    (dumps / "gloo_rank_0.json").write_text("ours")
    (dumps / "nccl_trace_rank_1").write_text("PyTorch's")
    assert [watch.trouble(), watch.trouble()] == [Trouble("dump-file", "PyTorch wrote nccl_trace_rank_1"), None]
    watch.parts.events.alarm("of the attempt before")
    watch.watcher.forget_attempt()
    assert watch.trouble() is None


@pytest.mark.parametrize("by", ("own", "peer"))
def test_no_wait_counts_during_an_announced_pause(by: str, tmp_path: Path) -> None:
    """On any node; past its bound the clock runs again, and the line says so."""
    watch = Watch(tmp_path, rank(0, operation_age_s=40.0))
    watch.parts.polling.sockets.mkdir()
    announced = watch.parts.polling.sockets / f"{os.getpid()}.pause"
    other = tmp_path / "nodes" / "n1"
    other.mkdir(parents=True)
    if by == "own":
        announced.write_text(json.dumps({"since": 1.0, "reason": "evaluation"}))
    else:
        (other / "status.json").write_text(json.dumps({"node": "n1", "pause_ago_s": 0.0}))
    assert watch.trouble() is None
    (other / "status.json").write_text(json.dumps({"node": "n1", "pause_ago_s": 0.0, "ended": 0}))
    announced.write_text(json.dumps({"since": 1.0, "until": time.time() - 100, "reason": "evaluation"}))
    found = watch.trouble()
    assert found is not None
    assert found.detail.endswith("unfinished for 40 s; the pause for evaluation is over its bound")


@pytest.mark.parametrize("by", ("own", "peer"))
def test_a_rank_that_compiles_may_keep_the_others_waiting(by: str, tmp_path: Path) -> None:
    """On any node, for ten times the threshold; once it no longer does, the usual one holds."""
    waits, compiles = rank(0, operation_age_s=299.0), rank(1)
    watch = Watch(tmp_path, waits, compiles)
    status = tmp_path / "nodes" / "n1" / "status.json"
    status.parent.mkdir(parents=True)
    compiles.position.prepares = by == "own"
    if by == "peer":
        status.write_text(json.dumps({"node": "n1", "live": [{"rank": 2, "prepares": True}]}))
    assert watch.trouble() is None
    waits.progress = rank(0, operation_age_s=301.0).progress
    assert watch.trouble() == Trouble("stall", "rank 0: all_reduce #7 unfinished for 301 s")
    waits.progress = rank(0, operation_age_s=40.0).progress
    compiles.position.prepares = False
    status.write_text(json.dumps({"node": "n1", "ended": 0, "live": [{"rank": 2, "prepares": True}]}))
    assert watch.trouble() == Trouble("stall", "rank 0: all_reduce #7 unfinished for 40 s")


def test_a_place_that_recovered_before_costs_a_line_first(tmp_path: Path) -> None:
    """Its own threshold is twice the longest that it took; until then it is said once and not captured."""
    stalled = rank(0, operation_age_s=40.0)
    watch = Watch(tmp_path, stalled)
    watch.recovered.add([("default_pg", "all_reduce")], 25.0)
    assert [watch.trouble(), watch.trouble()] == [None, None]
    [line] = watch.parts.lines
    assert whole_seconds(line).startswith("rank 0: all_reduce #7 unfinished for 40 s; the job resumed by itself here")
    stalled.progress = rank(0, operation_age_s=51.0).progress
    assert watch.trouble() == Trouble("stall", "rank 0: all_reduce #7 unfinished for 51 s")


@pytest.mark.parametrize(
    ("code", "words"),
    [(3, "ended with status 3"), (-9, "was killed by SIGKILL"), (-99, "was killed by signal 99"), (None, "ended")],
)
def test_how_a_rank_ended_is_said_as_people_do(code: int | None, words: str) -> None:
    """By the signal's name, where it has one."""
    assert how_ended(code) == words


@pytest.mark.parametrize(("stood_still", "is_trouble"), [(False, False), (True, True), (None, True)])
def test_ctrl_c_on_a_job_that_moved_is_no_trouble(tmp_path: Path, stood_still: bool | None, is_trouble: bool) -> None:
    """Whoever pressed it knows why it ended; of one that stood still it may be the only trace of a hang."""
    watch = Watch(tmp_path, ended(0, -2), ended(1, -2), ended(2, 1))
    watch.pace.stood_still = stood_still
    assert (watch.trouble() is not None) is is_trouble
    assert watch.watcher.interrupted() is not is_trouble


def test_an_interrupt_that_one_rank_alone_got_is_trouble(tmp_path: Path) -> None:
    """Ctrl-C reaches them all: what one of several got is how that one failed."""
    watch = Watch(tmp_path, ended(0, 1), ended(1, -2))
    watch.pace.stood_still = False
    assert watch.trouble() is not None
    assert not watch.watcher.interrupted()
