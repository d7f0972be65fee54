"""Ranks in the names of files and folders."""

from __future__ import annotations

import pytest

from hangscope.reader.ranks_in_paths import rank_of_dump, rank_of_log, worker_of


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
