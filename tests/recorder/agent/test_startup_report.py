"""Which ranks are watched, as it is said after the start."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hangscope.processes import linux_process
from hangscope.recorder.agent.startup_report import StartupReport
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.polling import Polling
from hangscope.sources.cannot_read import NO_TORCH


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--nnodes=2",), "torchrun expects 2 nodes"),
        (("--nnodes", "1:4"), "torchrun expects 1:4 nodes"),
        (("--nnodes=1",), "nothing is watched"),
    ],
)
def test_where_no_rank_starts_it_is_said_what_torchrun_waits_for(
    words: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    """It starts none before all nodes have come, which looks like a job that nobody watches."""
    (tmp_path / "torchrun").write_text("import time; time.sleep(60)")
    launcher = subprocess.Popen([sys.executable, str(tmp_path / "torchrun"), *words])
    try:
        while words[-1] not in linux_process.command_line(launcher.pid):  # empty for a moment after exec
            time.sleep(0.01)
        report = StartupReport(environ_rank=False)
        assert report.line([], "", 0.0, launcher.pid) is None
        assert told in (report.line([], "", 61.0, launcher.pid) or "")
    finally:
        launcher.kill()
        launcher.wait()


def test_a_companion_that_comes_late_is_taken_all_the_same(tmp_path: Path) -> None:
    """A rank whose import of torch took so long that it was watched from outside is asked from then on, and said."""
    polling, report, me = Polling(tmp_path), StartupReport(environ_rank=False), os.getpid()
    polling.ranks.add(RankProcess(me, 0, world_size=1, local_world_size=1))
    assert (report.line(list(polling), "", 0.0) or "").startswith("watching 0 of 1 ranks. not rank 0")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        registration = {"pid": me, "rank": 0, "world_size": 1, "local_world_size": 1, "socket": str(tmp_path / "s")}
        (tmp_path / f"{me}.json").write_text(json.dumps(registration))
        polling.ranks.look(1.0, None, polling._asker)
        assert polling.ranks.by_number[0].process.registered
        assert report.line(list(polling), "", 1.0) == "watching 1 of 1 ranks"
        assert report.line(list(polling), "", 2.0) is None
    polling.close()


@pytest.mark.parametrize(("first", "said"), [(True, "watching 1 of 1 ranks here, 8 in the job"), (False, None)])
def test_of_one_task_a_rank_only_the_first_says_that_all_is_well(first: bool, said: str | None, tmp_path: Path) -> None:
    """Slurm started as many tasks as the job has ranks: each sees one, and eight lines would say the same."""
    polling, report = Polling(tmp_path), StartupReport(environ_rank=False, tasks=8, first=first)
    polling.ranks.add(RankProcess(os.getpid(), 3, world_size=8, socket=str(tmp_path / "s"), registered=True))
    assert report.line(list(polling), "", 0.0) == said
    polling.close()


@pytest.mark.parametrize(
    ("by_box", "said"), [(True, "watching 1 of 1 ranks. 1 without torch.distributed"), (False, "")]
)
def test_only_a_rank_that_may_load_torch_yet_is_waited_for(by_box: bool, said: str, tmp_path: Path) -> None:
    """One that calls NCCL has begun: who is watched is said before it can hang."""
    polling, report = Polling(tmp_path), StartupReport(environ_rank=False)
    polling.ranks.add(RankProcess(os.getpid(), 0, world_size=1, by_box=by_box))
    (rank,) = polling
    rank.unread = (NO_TORCH, "")
    line = report.line([rank], "", 0.0) or ""
    assert line.startswith(said) and bool(line) == bool(said)
    polling.close()
