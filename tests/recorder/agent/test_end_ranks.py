"""`--on-hang kill`: ranks are ended, with time to do so by themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangscope.recorder.agent.end_ranks import RankEnder, end_ranks
from hangscope.recorder.agent.on_hang import OnHang
from hangscope.recorder.agent.recovery import RecoveredStalls, Recovery
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.live.rank_activity import RankActivity
from hangscope.recorder.live.watched_rank import WatchedRank


def rank_of(code: str) -> tuple[WatchedRank, subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.2)  # to fall asleep
    return WatchedRank.of(RankProcess(process.pid, 0)), process


def test_ranks_get_time_to_end_by_themselves_and_no_more() -> None:
    """One that listens to SIGTERM ends in its own way; one that does not, or is stopped, is killed after the grace."""
    code = "import signal, sys, time; signal.signal(15, {}); print('up', flush=True); time.sleep(60)"
    polite, first = rank_of(code.format("lambda *_: sys.exit(5)"))
    stubborn, second = rank_of(code.format("signal.SIG_IGN"))
    stopped, third = rank_of(code.format("signal.SIG_DFL"))
    os.kill(third.pid, signal.SIGSTOP)
    begun = time.monotonic()
    assert end_ranks([polite, stubborn, stopped], 1.0) == []
    assert 1.0 <= time.monotonic() - begun < 5
    assert [first.wait(), second.wait()] == [5, -signal.SIGKILL]
    assert third.wait() in (-signal.SIGKILL, -signal.SIGTERM)  # the kernel takes either of the two that are pending


def test_a_job_that_moves_again_is_not_ended(tmp_path: Path) -> None:
    """The last look decides: the rank that was stuck when its hang was captured has got somewhere since."""
    rank, process = rank_of("import time; print('up', flush=True); time.sleep(60)")
    polling = Polling(tmp_path)
    polling.ranks.by_number[0] = rank
    recovery = Recovery(polling)
    ender = RankEnder(OnHang(kill=True, grace_s=0.1), polling, recovery, RecoveredStalls(), RankActivity(), print)
    try:
        recovery.begin(tmp_path)
        assert ender.still_stuck()
        rank.position.moves += 1
        ender.end([rank])
        assert process.poll() is None
        rank.position.moves -= 1
        ender.end([rank])
        assert process.wait(5) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()
        polling.close()


class StuckJob:
    """One rank of this node that is stuck, a hang that was captured, and the verdict on it."""

    def __init__(
        self, tmp_path: Path, rank: WatchedRank, on_hang: OnHang, *, looked_at: bool = True, **verdict: object
    ) -> None:
        self.said: list[str] = []
        self.ended: list[int] = []
        self.hang = tmp_path
        self.value = {"outcome": "hang", "kind": "absent", "confidence": "high", "culprits": [{"rank": 0}], **verdict}
        self.polling = Polling(tmp_path)
        self.polling.ranks.by_number[0] = rank
        self.recovery = Recovery(self.polling)
        self.recovered = RecoveredStalls()
        self.activity = RankActivity()
        for ago in (9, 6, 3, 0) if looked_at else ():
            self.activity.look([rank], time.monotonic() - ago)
        self.elsewhere: set[int] = set()
        self.recovery.begin(tmp_path)
        self.ender = RankEnder(
            on_hang,
            self.polling,
            self.recovery,
            self.recovered,
            self.activity,
            self.said.append,
            lambda: self.elsewhere,
        )

    def is_safe(self, incident: Path) -> bool:
        return incident == self.hang

    def done_for_s(self, incident: Path) -> float:
        return 60.0 if incident == self.hang else 0.0

    def verdict(self, incident: Path) -> dict[str, object]:
        return self.value if incident == self.hang else {}

    def turn_after(self, seconds: float) -> bool:
        """Whether the ranks are ended at a turn when the job has stood still for so long."""
        self.recovery.stalled_s = lambda: seconds  # type: ignore[method-assign]
        self.ender.end = lambda ranks: None  # type: ignore[method-assign]
        self.ender.turn(self)  # type: ignore[arg-type]
        return bool(self.ender.pids)


@pytest.fixture
def sleeping() -> Iterator[WatchedRank]:
    rank, process = rank_of("import time; print('up', flush=True); time.sleep(60)")
    yield rank
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("verdict", "pause", "at_s"),
    [
        ({}, 0.0, 300.0),
        ({"confidence": "medium"}, 0.0, 300.0),
        ({"confidence": "low"}, 0.0, 600.0),
        ({"kind": "unknown", "culprits": [], "confidence": "low"}, 0.0, 600.0),
        ({}, 900.0, 900.0),
        ({"kind": "dead"}, 0.0, 0.0),
        ({"kind": "dead", "confidence": "low"}, 0.0, 600.0),
        ({}, 0.0, 300.0),
        ({"confidence": None}, 0.0, 600.0),
    ],
)
def test_a_job_is_ended_no_sooner_than_is_safe(
    tmp_path: Path, sleeping: WatchedRank, verdict: dict[str, object], pause: float, at_s: float
) -> None:
    """By default after five minutes, later than its slowest pause so far, and twice as late where nobody is sure; a
    rank that has ended does not come back. When that will be is said once, before."""
    job = StuckJob(tmp_path, sleeping, OnHang(kill=True), **verdict)
    if pause:
        job.recovered.add([("default_pg", "all_reduce")], pause)
    if at_s:
        assert not job.turn_after(at_s - 20)
        assert not job.turn_after(at_s - 10)
        assert job.said == ["--on-hang kill: will end the job in 20s unless it resumes"]
    assert job.turn_after(at_s + 0.1)


def test_a_rank_that_nobody_could_look_at_twice_is_not_ended(tmp_path: Path, sleeping: WatchedRank) -> None:
    """An agent that got no time on a busy machine does not know that a rank does not work, and waits until it does."""
    job = StuckJob(tmp_path, sleeping, OnHang(kill=True), looked_at=False)
    assert not job.turn_after(1e6)
    begun = time.monotonic()
    job.activity.look([sleeping], begun - 4)
    job.activity.look([sleeping], begun)
    assert not job.turn_after(1e6)
    job.activity.look([sleeping], begun + 4)
    assert job.turn_after(1e6)


@pytest.mark.parametrize("kind", ["pause", "slow", "desync", "wrong", "ok"])
def test_what_is_no_hang_is_never_ended(tmp_path: Path, sleeping: WatchedRank, kind: str) -> None:
    """A pause, a slow job and a healthy one are let be, however long they last."""
    job = StuckJob(tmp_path, sleeping, OnHang(kill=True), outcome=kind)
    assert not job.turn_after(1e6)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_rank_that_works_is_waited_for(tmp_path: Path, where: str) -> None:
    """Here or on another node; unless the user says otherwise, or the verdict is on what work says nothing about."""
    rank, process = rank_of("print('up', flush=True)\nwhile True: pass")
    try:
        accused = 0 if where == "here" else 5
        culprits = [{"rank": accused}]
        job = StuckJob(tmp_path, rank, OnHang(kill=True), culprits=culprits)
        if where == "here":
            until = time.monotonic() + 20
            while not job.activity.works(rank, time.monotonic()) and time.monotonic() < until:
                job.activity.look([rank], time.monotonic())
                time.sleep(0.2)
        else:
            job.elsewhere = {accused}
        assert not job.turn_after(1e6)
        assert job.said == [
            f"--on-hang kill: rank {accused} is still working: the job will not be ended in the meantime"
        ]
        other = StuckJob(tmp_path, rank, OnHang(kill=True), kind="gpu", culprits=culprits)
        other.activity, other.elsewhere = job.activity, job.elsewhere
        assert other.turn_after(1e6)
        told = StuckJob(tmp_path, rank, OnHang(kill=True, kill_working=True), culprits=culprits)
        told.elsewhere = {accused}
        assert told.turn_after(1e6)
    finally:
        process.kill()
        process.wait()


def test_a_rank_that_waits_does_not_work(tmp_path: Path, sleeping: WatchedRank) -> None:
    """Sleeping costs nothing, and so does being asked for its state."""
    activity = RankActivity()
    for ago in (9, 6, 3, 0):
        activity.look([sleeping], time.monotonic() - ago)
    assert not activity.works(sleeping, time.monotonic())


@pytest.mark.parametrize(
    ("outcome", "works", "stopped"), [("wait", False, True), ("wait", True, False), ("hang", False, False)]
)
def test_a_rank_that_works_no_longer_is_looked_at_again(
    tmp_path: Path, sleeping: WatchedRank, outcome: str, works: bool, stopped: bool
) -> None:
    """What was said of it, that it works, is not so any more."""
    job = StuckJob(tmp_path, sleeping, OnHang(), outcome=outcome)
    job.activity.works = lambda rank, now: works  # type: ignore[method-assign]
    assert job.ender.stopped_working(job) is stopped  # type: ignore[arg-type]
    job.polling.ranks.by_number.clear()
    assert not job.ender.stopped_working(job)  # type: ignore[arg-type]


def test_a_rank_that_polls_is_not_ended_by_default(tmp_path: Path) -> None:
    """Whether a loop that polls gets anywhere is not known: the job is left alone, which is said, unless asked."""
    code = "import os, time; print('up', flush=True)\nwhile not os.path.exists('/nowhere'): time.sleep(0.1)"
    rank, process = rank_of(code)
    try:
        for on_hang, ends in ((OnHang(kill=True), False), (OnHang(kill=True, kill_working=True), True)):
            job = StuckJob(tmp_path, rank, on_hang, looked_at=False)
            begun = time.monotonic()
            job.activity.look([rank], begun - 9)
            time.sleep(0.5)
            for ago in (6, 3, 0):
                job.activity.look([rank], begun - ago)
            assert job.turn_after(900.0) is ends
            assert any("polling" in line for line in job.said) is not ends
            job.polling.close()
    finally:
        process.kill()
        process.wait()
