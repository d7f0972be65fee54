"""Ranks in the names of files and folders."""

from __future__ import annotations

from pathlib import Path

import pytest

import hangscope
from hangscope.model.ranks_in_paths import rank_of_dump, rank_of_log, worker_of


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3),
        ("/tmp/x/comm_lib_trace_rank_1023", 1023),
        ("nccl_trace_rank_container-node02_5", 5),
        ("gpu-a017_12.json", 12),
        ("trace_rank_3.json.gz", 3),
        ("rank3_dump.pickle", 3),
        ("RANK=4.pkl", 4),
        ("rank5_node3", 5),
        ("node_rank_2_trace_7", 7),
        ("bundle.tar.gz!nodes/a/dumps/last_rank_11.json", 11),
        ("rank_7/dump.pickle", 7),
        ("dump.pickle", None),
        ("dump_20260101123000", None),
    ],
)
def test_a_dumps_name_says_its_rank(name: str, rank: int | None) -> None:
    """A number after the word rank, or at the very end, whatever stands before it."""
    assert rank_of_dump(name) == rank


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("logs/rank_3.log", 3),
        ("rank3.out", 3),
        ("rank=3.log", 3),
        ("rank_3/stderr.log", 3),
        ("node_rank_3.log", None),
        ("local_rank_3.log", None),
        ("frank_3.log", None),
        ("train_7.log", None),
        ("rank_9999999.log", None),
        ("rank_99999999999999999999.log", None),
        ("rank_\u0663.log", None),
    ],
)
def test_a_logs_name_says_its_rank(path: str, rank: int | None) -> None:
    """A log is of the rank that its name or its folder's name says with that word; other numbers name nobody."""
    assert rank_of_log(tuple(path.split("/"))) == rank


@pytest.mark.parametrize(
    ("path", "local_rank"),
    [
        ("attempt_0/3/stderr.log", 3),
        ("run/attempt_12/0/error.json", 0),
        ("attempt_0/3", None),
        ("attempt_0/x/stderr.log", None),
        ("attempt/3/stderr.log", None),
    ],
)
def test_torchruns_folders_say_the_local_rank(path: str, local_rank: int | None) -> None:
    """torchrun names a worker's folder by its local rank, below the attempt's."""
    assert worker_of(tuple(path.split("/"))) == local_rank


@pytest.mark.parametrize("attempt", ["attempt_99999999999999999999", "attempt_\u0663", "attempt_"])
def test_a_folders_name_that_is_no_number_costs_nothing(attempt: str, tmp_path: Path) -> None:
    """A folder may be called anything: what is no attempt's number is no attempt, and its files are read."""
    folder = tmp_path / attempt / "\u0664"
    folder.mkdir(parents=True)
    (folder / "rank_\u0663.log").write_text("[rank3]: ValueError: bad sample\n")
    (tmp_path / "attempt_1" / "0").mkdir(parents=True)
    (tmp_path / "attempt_1" / "0" / "stderr.log").write_text("[rank3]: ValueError: bad sample\n")
    assert [culprit.rank for culprit in hangscope.diagnose(tmp_path).culprits] == [3]
