"""The questions to this node's ranks: how often, and to whom."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.live.watched_rank import WatchedRank


def test_a_dear_poll_makes_no_threshold_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much a poll costs, a threshold of seconds is not missed, nor is the next attempt."""
    clock = iter(range(1000))
    monkeypatch.setattr("hangscope.recorder.live.polling.time.thread_time", lambda: float(next(clock)))
    rank = subprocess.Popen(["sleep", "30"])
    try:
        for stall_after, expected in ((3.0, 1.0), (10.0, 2.0), (None, 5.0)):
            polling = Polling(tmp_path, stall_after)
            polling.ranks.by_number[0] = WatchedRank.of(RankProcess(rank.pid, 0))
            polling.turn(None)
            assert polling.interval == expected
    finally:
        rank.kill()
        rank.wait()
    polling.note_ends()
    assert polling.interval == 1.0
