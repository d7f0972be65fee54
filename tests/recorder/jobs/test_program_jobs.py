"""Jobs of several real programs: `snapshot` follows the wait of a rank through all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from live_scripts import program_jobs


@pytest.mark.parametrize("name", ["http_circle", "reward_server_stopped", "fifo_without_writer"])
def test_the_program_that_holds_a_rank_up_is_named(tmp_path: Path, name: str) -> None:
    """Started without hangscope and given by their pids; the whole table is tests/live_scripts/program_jobs.py."""
    (job,) = (each for each in program_jobs.JOBS if each.name == name)
    with program_jobs.running(job) as (_, pids):
        said = program_jobs.looked(job, pids, tmp_path / name)
    assert program_jobs.judged(job.truth, said) == ""
