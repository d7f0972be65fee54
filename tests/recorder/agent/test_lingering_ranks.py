"""A rank that stays behind when the others have ended."""

from __future__ import annotations

import subprocess
import time

from hangscope.recorder.agent.lingering_ranks import LingeringRanks
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.watched_rank import WatchedRank


def sleeper(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words or ("sleep", "60"))


def test_a_rank_that_stays_behind_is_said_once() -> None:
    """Long after the others ended with 0, if it uses no CPU; after a failure there is other trouble to tell of."""
    done, stays = sleeper("true"), sleeper()
    try:
        ranks = [WatchedRank.of(RankProcess(each.pid, number)) for number, each in enumerate((done, stays))]
        lingering = LingeringRanks()
        while not ranks[0].note_end():
            done.poll()
            time.sleep(0.01)
        ranks[0].exit_status = 0
        assert lingering.line(ranks, 0.0) is None
        time.sleep(0.1)
        said = lingering.line(ranks, 0.01)
        assert said is not None
        assert said.startswith(f"rank 1 (pid {stays.pid}) still runs 0 s after rank 0 exited with status 0, and is")
        assert lingering.line(ranks, 0.01) is None
        ranks[0].exit_status, again = 1, LingeringRanks()
        assert [again.line(ranks, 0.01) for _ in range(3)] == [None] * 3
    finally:
        stays.kill()
        stays.wait()
