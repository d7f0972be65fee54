"""The fourth training program behind the recorded cases: communicators that some ranks never join.

    startup.py SCENARIO

PyTorch makes a communicator at the first call that needs it, and records the call only afterwards: whoever waits for
the others there is in no dump. As in train.py, the rank at fault notes what goes wrong just before it happens.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch.distributed as dist
from train_tools import FOREVER, RANK, end_step, injected, new_group, play, zeros


def join_default() -> None:
    """Rank 3 is still busy before its first collective; the others make the communicator of all five ranks."""
    grads = zeros(65536)
    if RANK == 3:
        injected("join_default", "all_reduce", seq=None)
        time.sleep(FOREVER)  # <join_default.culprit>
    dist.all_reduce(grads)  # <join_default.op>
    end_step(0)


def join_killed() -> None:
    """Rank 1 is killed before its first collective, while the others make the communicator of all four ranks."""
    grads = zeros(65536)
    if RANK == 1:
        time.sleep(4)
        injected("join_killed", "all_reduce", seq=None)
        os.kill(os.getpid(), signal.SIGKILL)  # <join_killed.culprit>
    dist.all_reduce(grads)  # <join_killed.op>
    end_step(0)


def join_group() -> None:
    """Ranks 1, 3 and 4 use their group for the first time in step 3; rank 3 does not come."""
    some = new_group([1, 3, 4], "experts")
    grads, tokens = zeros(65536), zeros(4096)
    for step in range(6):
        if RANK in (1, 3, 4) and step >= 3:
            if RANK == 3 and step == 3:
                injected("join_group", "all_reduce", some, seq=None)
                time.sleep(FOREVER)  # <join_group.culprit>
            dist.all_reduce(tokens, group=some)  # <join_group.op>
        dist.all_reduce(grads)
        end_step(step)


def join_split() -> None:
    """Groups are split off the first communicator, which takes all four ranks; rank 2 does not come to new_group."""
    grads = zeros(65536)
    for step in range(3):
        dist.all_reduce(grads)
        end_step(step)
    if RANK == 2:
        injected("join_split", "new_group", seq=None)
        time.sleep(FOREVER)  # <join_split.culprit>
    pair = new_group([0, 1], "evaluators")  # <join_split.op>
    for step in range(3, 6):
        if RANK in (0, 1):
            dist.all_reduce(grads, group=pair)
        dist.all_reduce(grads)
        end_step(step)


SCENARIOS: dict[str, Any] = {
    scenario.__name__: scenario for scenario in (join_default, join_killed, join_group, join_split)
}


if __name__ == "__main__":
    play(SCENARIOS, split=("join_split",), cold=("join_default", "join_killed"))
