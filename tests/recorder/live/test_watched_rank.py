"""One rank as the agent knows it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

from hangscope.processes.linux_process import ProcessHandle
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.rank_position import RankPosition
from hangscope.recorder.live.thread_waits import StackFrame, ThreadWait
from hangscope.recorder.live.watched_rank import ENDING_S, WatchedRank


def in_init(number: int, since: float, *, world_size: int, call: str = "init_process_group") -> WatchedRank:
    wait = ThreadWait(call, StackFrame("/job/train.py", 3, "main"), None, in_init=call == "init_process_group")
    process = RankProcess(
        os.getpid(), number, world_size=world_size, restart=1, handlers=frozenset(("hangscope_progress",))
    )
    position = RankPosition(since=since, samples=2, wait=wait)
    return WatchedRank(process, ProcessHandle(os.getpid()), position=position, quiet_since=since, shares_store=True)


def test_a_rank_of_a_later_start_may_find_the_addresses_of_the_one_before() -> None:
    """Only over torchrun's shared store, and only until it has joined."""
    rank = in_init(0, 0.0, world_size=2)
    assert rank.may_find_old_addresses
    rank.groups = [{"name": "0"}]
    assert not rank.may_find_old_addresses
    first = in_init(0, 0.0, world_size=2)
    first.process = replace(first.process, restart=0)
    own = in_init(0, 0.0, world_size=2)
    own.shares_store = False
    assert not first.may_find_old_addresses
    assert not own.may_find_old_addresses


def sleeper(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words or ("sleep", "60"))


def test_a_rank_that_is_ending_has_some_seconds_for_it(tmp_path: Path) -> None:
    """Its companion took the socket away at exit. Who does that and never ends is a hang again."""
    ends = sleeper()
    try:
        (tmp_path / "s").touch()
        rank = WatchedRank.of(RankProcess(ends.pid, 0, socket=str(tmp_path / "s")))
        assert not rank.is_ending(100.0)
        (tmp_path / "s").unlink()
        assert rank.is_ending(100.0)
        assert rank.is_ending(100.0 + ENDING_S - 1)
        assert not rank.is_ending(100.0 + ENDING_S)
    finally:
        ends.kill()
        ends.wait()
