"""`--on-hang kill`: ranks are ended, with time to do so by themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hangscope.recorder.agent.end_ranks import RankEnder, end_ranks
from hangscope.recorder.agent.on_hang import OnHang
from hangscope.recorder.agent.recovery import Recovery
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.live.watched_rank import WatchedRank


def rank_of(code: str) -> tuple[WatchedRank, subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
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
    ender = RankEnder(OnHang(kill=True, grace_s=0.1), polling, recovery, print)
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
