"""Which processes are ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hangscope.recorder.live import find_ranks


def test_of_processes_that_claim_a_rank_the_launchers_child_is_it(tmp_path: Path) -> None:
    """A rank's helper processes inherit RANK."""
    sleeper = (sys.executable, "-c", "import time; print(1, flush=True); time.sleep(30)")
    code = f"import subprocess, time; p = subprocess.Popen({sleeper!r}); print(p.pid, flush=True); time.sleep(30)"
    rank = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert rank.stdout is not None
        helper = int(rank.stdout.readline())
        claims = [find_ranks.RankProcess(helper, 3), find_ranks.RankProcess(rank.pid, 3)]
        assert [process.pid for process in find_ranks.one_per_rank(claims)] == [rank.pid]
    finally:
        os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()
        assert rank.stdout is not None
        rank.stdout.close()


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"SLURM_JOB_ID": "424242", "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, (3, 1, 8)),
        (
            {
                "SLURM_JOB_ID": "424242",
                "SLURM_PROCID": "5",
                "SLURM_LOCALID": "1",
                "SLURM_STEP_NUM_TASKS": "8",
                "SLURM_STEP_NUM_NODES": "2",
            },
            (5, 1, 8),
        ),
        ({"SLURM_JOB_ID": "424241", "SLURM_JOB_ID_HET_GROUP_1": "424242", "RANK": "3"}, (3, None, None)),
        (
            {"SLURM_JOB_ID": "424242", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"},
            None,
        ),
        ({"SLURM_JOB_ID": "424242", "SLURM_STEP_ID": "7", "RANK": "3"}, None),
        ({"SLURM_JOB_ID": "4242", "RANK": "3"}, None),
    ],
    ids=["torchrun's", "one task a rank", "heterogeneous", "a launcher, one a node", "our own step", "another job's"],
)
def test_ranks_of_a_slurm_job_are_found_by_its_number(
    environ: dict[str, str], found: tuple[int, int | None, int | None] | None
) -> None:
    """Nothing but the job's number is known: whose rank a process is, its environment says."""
    code = "import time; print(1, flush=True); time.sleep(30)"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={"SLURM_STEP_ID": "0", **environ}
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        ranks = find_ranks.ranks_of_slurm_job("424242", "7")
        assert [(each.rank, each.local_rank, each.world_size) for each in ranks if each.pid == process.pid] == (
            [found] if found is not None else []
        )
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_two_jobs_below_one_shell_are_told_apart(tmp_path: Path) -> None:
    """Each has a rank 0: the ranks beside one of them are those that meet at the same address and port."""
    port_of = {"a": "29500", "b": "29501"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"],
            env={**os.environ, "RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": port_of[job]},
        )
        for job in "ab"
        for rank in "01"
    ]
    try:
        for at, (first, second) in enumerate((started[:2], started[2:])):
            found = find_ranks.ranks_below(os.getpid(), started[2 * at + 1].pid)
            assert [(each.rank, each.pid) for each in found] == [(0, first.pid), (1, second.pid)]
    finally:
        for each in started:
            each.kill()
            each.wait()
