"""Which ranks run on this node, from one attempt to the next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
    monkeypatch.setattr("hangscope.recorder.live.find_ranks.ranks_below", lambda pid: found)
    monkeypatch.setattr("hangscope.recorder.process.linux_process.age_s", lambda stat: 1.0)
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
