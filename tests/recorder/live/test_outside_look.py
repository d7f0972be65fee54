"""Ranks that are read from outside: how soon they are looked at once there is something to read."""

from __future__ import annotations

import subprocess
from itertools import pairwise

from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.outside_look import OutsideLook
from hangscope.recorder.live.watched_rank import WatchedRank


def test_a_rank_that_is_long_in_starting_is_still_looked_at_every_few_seconds() -> None:
    """torch may take a minute to load where much is going on: what the job does then is not seen seconds late."""
    with subprocess.Popen(["sleep", "100"]) as process:
        rank, look, looked = WatchedRank.of(RankProcess(process.pid, 0)), OutsideLook(), [0.0]
        for tenth in range(600):
            rank.unread = None
            look.read_counters(rank, tenth / 10)
            looked += [tenth / 10] if rank.unread is not None else []
        rank.forget()
        process.kill()
    pauses = [later - before for before, later in pairwise(looked)]
    assert max(pauses) <= 5.0
    assert max(pause for pause, before in zip(pauses, looked, strict=False) if before < 30.0) <= 3.0
    assert len(looked) < 40
