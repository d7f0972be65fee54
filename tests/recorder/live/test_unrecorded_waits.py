"""Ranks that are stuck in a wait which no recorder counts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hangscope.processes.linux_process import ProcessHandle
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.rank_position import RankPosition
from hangscope.recorder.live.thread_waits import StackFrame, ThreadWait
from hangscope.recorder.live.unrecorded_waits import UnrecordedWaits
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.live.worker_server import Asker

TORCH = "/env/lib/python3.12/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
SCHEDULE = f"{TORCH}/distributed/pipelining/schedules.py"


def thread(*frames: tuple[str, int, str], main: bool = True, number: int = 7) -> dict[str, Any]:
    listed = [{"filename": file, "line": line, "name": name} for file, line, name in frames]
    return {"os_thread_id": number, "main": main, "frames": listed}


IN_USER_CODE = thread(("/job/train.py", 8, "exchange"), ("/job/train.py", 3, "<module>"))
IN_PIPELINE = thread((SCHEDULE, 9, "_wait_batch_p2p"), (SCHEDULE, 5, "step"), ("/job/train.py", 3, "<module>"))
IN_COLLECTIVE = thread(
    (C10D, 9, "all_reduce"), (f"{TORCH}/distributed/c10d_logger.py", 8, "wrapper"), ("/t.py", 3, "m")
)


@pytest.mark.parametrize(("given", "found"), [(IN_COLLECTIVE, True), (IN_USER_CODE, False), (IN_PIPELINE, False)])
def test_a_rank_that_is_busy_inside_a_collective_is_noticed(given: Any, found: bool, tmp_path: Path) -> None:
    """A thread that takes all of a core and gives it away again and again, as NCCL's does while it waits for a peer."""
    code = "import time\nwhile True:\n    sum(range(300000)); time.sleep(0.001)"
    with subprocess.Popen([sys.executable, "-c", code]) as spins, socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(str(tmp_path / "s"))
            asked: dict[str, Any] = {"socket": str(tmp_path / "s"), "handlers": frozenset(("hangscope_stacks",))}
            rank, waits = (
                WatchedRank(RankProcess(spins.pid, 0, world_size=2, **asked), ProcessHandle(spins.pid)),
                UnrecordedWaits(),
            )
            began = time.monotonic()
            while time.monotonic() < began + 5.0:
                now = time.monotonic()
                waits.turn([rank], Asker(), 2.0, now)
                waits.take(rank, {"threads": [given]}, now)
                time.sleep(0.5)
            assert bool(waits.stuck([rank], (), 2.0, time.monotonic())) is found
        finally:
            spins.kill()


def test_ranks_that_all_connect_may_take_longer() -> None:
    """Nobody is missing while every rank is at work inside a collective; where one stands elsewhere, it is."""

    def busy(number: int, **stands: Any) -> WatchedRank:
        wait = ThreadWait("all_reduce", StackFrame("/job/train.py", 3, "main"), None, polls=True)
        position = RankPosition(since=0.0, samples=3, wait=wait, spins=True, **stands)
        return WatchedRank(
            RankProcess(os.getpid(), number, world_size=2),
            ProcessHandle(os.getpid()),
            position=position,
            quiet_since=0.0,
            still_since=0.0,
        )

    waits, elsewhere = UnrecordedWaits(), busy(1)
    assert waits.stuck([busy(0), busy(1)], (), 10.0, now=39.0) == []
    assert len(waits.stuck([busy(0), busy(1)], (), 10.0, now=41.0)) == 2
    elsewhere.position = RankPosition(since=0.0, samples=3, outside=True)
    assert [stuck_rank.rank.number for stuck_rank in waits.stuck([busy(0), elsewhere], (), 10.0, now=11.0)] == [0]


IN_COMPILER = thread(
    ("/usr/lib/python3.12/threading.py", 355, "wait"),
    (f"{TORCH}/_inductor/async_compile.py", 9, "wait"),
    (f"{TORCH}/_inductor/compile_fx.py", 9, "_compile_fx_inner"),
    (f"{TORCH}/_dynamo/convert_frame.py", 9, "__call__"),
    (f"{TORCH}/_dynamo/eval_frame.py", 9, "compile_wrapper"),
    ("/job/train.py", 3, "<module>"),
)


@pytest.mark.parametrize("works", (True, False))
def test_a_compiler_counts_while_it_works(works: bool) -> None:
    """In processes of its own, for the rank's threads wait; one that waits for a lock is no reason to be patient."""
    worker = "while True: pass" if works else "import time; time.sleep(60)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}])"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as process:
        try:
            rank = WatchedRank(RankProcess(process.pid, 0, world_size=2), ProcessHandle(process.pid))
            waits = UnrecordedWaits()
            time.sleep(0.5)
            for _ in range(3):
                waits.take(rank, {"threads": [IN_COMPILER]}, time.monotonic())
                time.sleep(0.5)
            assert rank.position.prepares is works
            waits.take(rank, {"threads": [IN_USER_CODE]}, time.monotonic())
            assert rank.position.prepares is False
        finally:
            os.killpg(process.pid, 9)


def in_init(number: int, since: float, *, world_size: int, call: str = "init_process_group") -> WatchedRank:
    wait = ThreadWait(call, StackFrame("/job/train.py", 3, "main"), None, in_init=call == "init_process_group")
    process = RankProcess(
        os.getpid(), number, world_size=world_size, restart=1, handlers=frozenset(("hangscope_progress",))
    )
    position = RankPosition(since=since, samples=2, wait=wait)
    return WatchedRank(
        process,
        ProcessHandle(os.getpid()),
        position=position,
        quiet_since=since,
        still_since=since,
        shares_store=True,
    )


def test_a_start_in_which_everybody_waits_is_late_after_the_threshold() -> None:
    """Ranks start minutes apart: four times that while one has yet to come, or has only just come."""
    waits, both = UnrecordedWaits(), [in_init(0, 0.0, world_size=2), in_init(1, 5.0, world_size=2)]
    assert [stuck_rank.rank.number for stuck_rank in waits.stuck(both, (), 10.0, now=16.0)] == [0, 1]
    assert waits.stuck(both, (), 10.0, now=14.0) == []
    of_three = [in_init(0, 0.0, world_size=3), in_init(1, 0.0, world_size=3)]
    assert waits.stuck(of_three, (), 10.0, now=39.0) == []
    assert len(waits.stuck(of_three, (), 10.0, now=41.0)) == 2
    elsewhere = [in_init(0, 0.0, world_size=2), in_init(1, 0.0, world_size=2, call="new_group")]
    assert [stuck_rank.wait.call for stuck_rank in waits.stuck(elsewhere, (), 10.0, now=20.0)] == ["new_group"]


def waiting(number: int, call: str, *, since: float, still_since: float = 0.0, on_gpu: bool = False) -> WatchedRank:
    wait = ThreadWait(call, StackFrame("/job/train.py", 3, "main"), None, polls=True, on_gpu=on_gpu)
    return WatchedRank(
        RankProcess(os.getpid(), number, world_size=4),
        ProcessHandle(os.getpid()),
        position=RankPosition(since=since, samples=3, wait=wait),
        quiet_since=0.0,
        still_since=still_since,
    )


def elsewhere(number: int, *, since: float, samples: int = 3, outside: bool = True) -> WatchedRank:
    rank = waiting(number, "", since=since)
    rank.position = RankPosition(since=since, samples=samples, outside=outside)
    return rank


def test_the_first_wait_counts_from_when_any_rank_last_got_on() -> None:
    """Down a pipeline the last stage waits for as long as all others take, one by one; but not for ever."""
    waits = UnrecordedWaits()

    def start(moved: float) -> list[WatchedRank]:
        return [waiting(0, "send", since=moved, still_since=moved), *(waiting(n, "recv", since=0.0) for n in (1, 2, 3))]

    def late(ranks: list[WatchedRank], now: float) -> set[int]:
        return {one.rank.number for one in waits.stuck(ranks, (), 10.0, now)}

    assert late(start(moved=35.0), now=40.0) == set()
    assert late(start(moved=25.0), now=40.0) == {0, 1, 2, 3}
    assert late(start(moved=100.0), now=105.0) == {1, 2, 3}
    connects = start(moved=25.0)
    connects[0].position.spins = True
    assert late(connects, now=40.0) == set()
    assert late([*start(moved=25.0)[1:], elsewhere(0, since=0.0)], now=40.0) == {1, 2, 3}
    over = start(moved=35.0)
    counters = {"last_enqueued_collective": 9, "last_completed_collective": 8}
    for rank in over:
        rank.progress.take_counters("nccl", {"0": counters}, now=0.0, now_ns=0)
    assert late(over, now=40.0) == {1, 2, 3}


def test_a_rank_elsewhere_is_missed_where_all_others_wait_for_their_gpus() -> None:
    """A replayed graph inside one node leaves nothing but this: all but one in `synchronize`, for the threshold."""
    waits = UnrecordedWaits()
    peers = [waiting(n, "synchronize", since=0.0, on_gpu=True) for n in (0, 1, 3)]
    found = waits.stuck([*peers, elsewhere(2, since=0.0)], (), 10.0, now=11.0)
    assert [str(one) for one in found] == [f"rank {n} waits in synchronize (train.py:3)" for n in (0, 1, 3)]
    assert waits.stuck([*peers, elsewhere(2, since=0.0)], (), 10.0, now=9.0) == []


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([], id="nobody elsewhere: their GPUs may be at work"),
        pytest.param([elsewhere(2, since=8.0)], id="it came there only now"),
        pytest.param([elsewhere(2, since=0.0, samples=1)], id="seen there once"),
        pytest.param([elsewhere(2, since=0.0, outside=False)], id="in a backward, of which nobody can tell"),
        pytest.param([elsewhere(n, since=0.0) for n in (2, 4)], id="too many are elsewhere"),
        pytest.param([waiting(2, "barrier", since=0.0)], id="it waits itself"),
    ],
)
def test_a_wait_for_the_own_gpu_alone_is_no_hang(others: list[WatchedRank]) -> None:
    """A long kernel keeps a rank in `synchronize`, too: without a rank that is surely elsewhere nothing is said."""
    peers = [waiting(n, "synchronize", since=0.0, on_gpu=True) for n in (0, 1, 3)]
    found = UnrecordedWaits().stuck([*peers, *others], (), 10.0, now=11.0)
    assert not [one for one in found if one.wait.on_gpu]
