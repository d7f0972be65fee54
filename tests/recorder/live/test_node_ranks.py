"""Which ranks run on this node, from one attempt to the next."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.node_ranks import NodeRanks
from hangscope.recorder.live.worker_server import Asker


@pytest.fixture
def sleeper() -> Iterator[Callable[[], int]]:
    """Starts processes that do nothing; their pids."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> int:
        started.append(subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"]))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def register(sockets: Path, pid: int, **fields: object) -> None:
    (sockets / f"{pid}.json").write_text(json.dumps({"pid": pid, "world_size": 1, "local_world_size": 1, **fields}))


def test_ranks_that_are_started_anew_take_the_place_of_those_before(tmp_path: Path, sleeper: Callable[[], int]) -> None:
    """Said once; the registrations that the first attempt left are not taken for ranks again."""
    ranks, asker, first = NodeRanks(tmp_path), Asker(), sleeper()
    register(tmp_path, first, rank=0, restart=0)
    ranks.look(1.0, None, asker)
    assert [rank.process.pid for rank in ranks] == [first]
    assert not ranks.take_restart()
    second = sleeper()
    register(tmp_path, second, rank=0, restart=1)
    for now in (10.0, 20.0):
        ranks.look(now, None, asker)
        assert [rank.process.pid for rank in ranks] == [second]
    assert ranks.earlier == {first}
    assert [ranks.take_restart(), ranks.take_restart()] == [True, False]
    asker.close()


def test_a_process_that_says_which_rank_it_is_is_believed(tmp_path: Path) -> None:
    """Over the RANK that it was started with; one that is no rank of its own yet becomes one."""
    ranks, me = NodeRanks(tmp_path), os.getpid()
    register(tmp_path, me, rank=3, spawned=True)
    ranks.identify(me, {"rank": None})
    assert len(ranks) == 0
    ranks.identify(me, {"rank": 1, "world_size": 4})
    [rank] = ranks
    ranks.renumber(rank, {"rank": 2, "world_size": 4})
    assert {number: each.process.world_size for number, each in ranks.by_number.items()} == {2: 4}


def test_a_process_without_a_companion_is_a_rank_only_once_none_can_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its companion may still be importing torch; a helper that inherited RANK is no second rank."""
    found = [RankProcess(os.getpid(), 0, world_size=1)]
    monkeypatch.setattr("hangscope.recorder.live.find_ranks.ranks_below", lambda pid, beside: found)
    monkeypatch.setattr("hangscope.processes.linux_process.age_s", lambda stat: 1.0)
    monkeypatch.setattr("hangscope.recorder.live.companion_hook.cannot_come", lambda pid: False)
    ranks, asker = NodeRanks(tmp_path), Asker()
    ranks.look(1.0, os.getpid(), asker)
    assert len(ranks) == 0
    monkeypatch.setattr("hangscope.recorder.live.companion_hook.cannot_come", lambda pid: True)
    ranks.look(100.0, os.getpid(), asker)
    assert len(ranks) == 1
    found[:] = [RankProcess(os.getppid(), 0, world_size=1)]
    ranks.look(200.0, os.getpid(), asker)
    assert [rank.process.pid for rank in ranks] == [os.getpid()]
    asker.close()


def test_replicas_that_say_the_same_numbers_are_not_confused(tmp_path: Path, sleeper: Callable[[], int]) -> None:
    """Each says that it is rank 0 of its own job: the first is watched, the other is known not to be, until it can."""
    ranks, first, second = NodeRanks(tmp_path), sleeper(), sleeper()
    for pid in (first, second):
        register(tmp_path, pid, spawned=True)
        ranks.identify(pid, {"rank": 0, "world_size": 1})
    assert [rank.process.pid for rank in ranks] == [first]
    now = time.monotonic()
    assert ranks.strangers(now) == {}, "a script that starts its ranks anew has both for a moment"
    assert set(ranks.strangers(now + 30)) == {second}
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    ranks.identify(second, {"rank": 0, "world_size": 1})
    assert [rank.process.pid for rank in ranks] == [first], "its end was not noted so far"
    assert ranks.by_number[0].note_end()
    ranks.identify(second, {"rank": 0, "world_size": 1})
    assert [rank.process.pid for rank in ranks] == [second]
    assert ranks.strangers(now + 60) == {}


def test_workers_of_an_engine_are_ranks_by_their_titles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no companion runs in any of them; with one, each says itself which rank it is."""
    me = os.getpid()
    monkeypatch.setattr("hangscope.processes.linux_process.command_line", lambda pid: ["VLLM::Worker_TP3"])
    monkeypatch.setattr("hangscope.processes.linux_process.descendants", lambda pid: iter(()))
    monkeypatch.setattr("hangscope.recorder.live.find_ranks.ranks_below", lambda pid, beside: [])
    monkeypatch.setattr("hangscope.recorder.live.companion_hook.cannot_come", lambda pid: True)
    ranks, asker = NodeRanks(tmp_path), Asker()
    ranks.look(1.0, me, asker)
    assert [(rank.number, rank.said) for rank in ranks] == [(3, "rank 3 (Worker_TP3)")]
    beside = NodeRanks(tmp_path)
    register(tmp_path, me, spawned=True)
    beside.look(1.0, me, asker)
    assert len(beside) == 0
    asker.close()
