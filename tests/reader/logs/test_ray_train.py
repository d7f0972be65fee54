"""Logs of Ray Train, and statuses that follow from somebody else's failure: whose exception it is."""

from __future__ import annotations

import json
from pathlib import Path

import hangscope

COLOUR = "\x1b[36m({who} pid={pid})\x1b[0m "
NAN = (
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 22, in train_func',
    "    x, y = read_batch(step)",
    '  File "/job/train.py", line 12, in read_batch',
    '    raise ValueError("loss is NaN")',
    "ValueError: loss is NaN",
)
LOST = (
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 24, in train_func',
    "    loss.backward()",
    "RuntimeError: [/p/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:42215.",
)
DRIVER = ("ray.train.WorkerGroupError: Training failed due to worker errors:", "[Rank 2 Error Snippet]:")


def worker(pid: int, lines: tuple[str, ...]) -> list[str]:
    return [COLOUR.format(who="RayTrainWorker", pid=pid) + line for line in lines]


def test_a_worker_of_ray_is_known_by_its_pid(tmp_path: Path) -> None:
    """Ray puts pids in front of lines: with the ranks' pids, the one that raised is named, and not who lost it."""
    ranks = [{"rank": rank, "pid": 400 + rank, "host": "head", "exit_status": 1} for rank in range(3)]
    (tmp_path / "roster.json").write_text(json.dumps(ranks))
    controller = COLOUR.format(who="TrainController", pid=300) + "[FailurePolicy] RAISE"
    lines = [*worker(402, NAN), *worker(400, LOST), *worker(401, LOST), controller]
    (tmp_path / "driver.log").write_text("\n".join(lines) + "\n")
    job = hangscope.load(tmp_path)
    assert {error.rank: error.type for error in job.facts.errors} == {
        0: "RuntimeError",
        1: "RuntimeError",
        2: "ValueError",
    }
    found = hangscope.diagnose(job)
    assert (found.kind, [culprit.rank for culprit in found.culprits]) == ("dead", [2])
    assert found.headline.startswith("rank 2 ended in read_batch (train.py:12) with ValueError: loss is NaN")


def test_a_pid_that_is_no_rank_names_nobody(tmp_path: Path) -> None:
    """The controller raises too, and without a roster nobody knows which rank a worker is."""
    (tmp_path / "driver.log").write_text("\n".join(worker(402, NAN)) + "\n")
    assert [error.rank for error in hangscope.load(tmp_path).facts.errors] == [None]


def test_ray_trains_driver_says_whose_exception_it_is(tmp_path: Path) -> None:
    """It repeats a worker's traceback under its rank: that is enough without any pid."""
    (tmp_path / "driver.log").write_text("\n".join((*DRIVER, *NAN)) + "\n")
    found = hangscope.diagnose(hangscope.load(tmp_path))
    assert (found.kind, [culprit.rank for culprit in found.culprits]) == ("dead", [2])


def test_an_announcement_is_for_the_next_line_only(tmp_path: Path) -> None:
    """A traceback that begins later, or behind another prefix, is somebody else's."""
    (tmp_path / "driver.log").write_text("\n".join((*DRIVER, "The actor died unexpectedly.", *NAN)) + "\n")
    assert {error.rank for error in hangscope.load(tmp_path).facts.errors} == {None}


def test_a_status_after_a_lost_peer_accuses_nobody(tmp_path: Path) -> None:
    """torchrun reports the first rank that failed; its own exception says that it lost another one."""
    for rank in (0, 1):
        text = "\n".join(f"[rank{rank}]: {line}" for line in LOST)
        (tmp_path / f"rank_{rank}.log").write_text(text + "\n")
    failed = "E1115 20:57:40.408000 11973 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)"
    (tmp_path / "launcher.log").write_text(f"{failed} local_rank: 1 (pid: 11993) of binary: /usr/bin/python\n")
    ranks = [{"rank": rank, "local_rank": rank, "pid": 11992 + rank, "host": "n"} for rank in range(3)]
    (tmp_path / "roster.json").write_text(json.dumps(ranks))
    job = hangscope.load(tmp_path)
    assert all(failure.effect for failure in job.facts.failures)
    assert not {0, 1} & {culprit.rank for culprit in hangscope.diagnose(job).culprits}


def test_an_actor_that_its_watchdog_ended_is_not_accused(tmp_path: Path) -> None:
    """Ray's ActorDiedError comes last: rank 0 died of its own timeout, and rank 3, which launched less, stayed away."""
    of = "ProcessGroupNCCL.cpp"
    groups = "[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    work = "WorkNCCL(SeqNum=151, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000)"
    lines = ["(TrainController pid=12, ip=10.0.0.2) Started training worker group of size 4:"]
    for rank in range(4):
        place = f"(ip=10.0.0.{3 + rank // 2}, pid={100 + rank}) world_rank={rank}"
        lines.append(f"(TrainController pid=12, ip=10.0.0.2) - {place}, local_rank={rank % 2}, node_rank={rank // 2}")
    for rank in range(4):
        prefix = (
            f"(RayTrainWorker pid={100 + rank}, ip=10.0.0.{3 + rank // 2}) [rank{rank}]:[E1117 10:40:00.{rank}00000000"
        )
        mine = groups.format(rank=rank)
        if rank == 3:
            said = "Observed flight recorder dump signal from another rank via TCPStore."
            lines.append(
                f"{prefix} {of}:1893] {mine} {said} Last enqueued NCCL work: 150, last completed NCCL work: 150."
            )
            continue
        lines.append(
            f"{prefix} {of}:632] [Rank {rank}] Watchdog caught collective operation timeout: {work} ran for 600008"
            " milliseconds before timing out."
        )
        status = "PG status: last enqueued work: 151, last completed work: 150"
        lines.append(f"{prefix} {of}:2271] {mine}  failure detected by watchdog at work sequence id: 151 {status}")
    lines += [
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        "\tclass_name: RayTrainWorker",
        "\tactor_id: 02d1bbb06acf5d6e3ab29c6f01000000",
        "\tpid: 100",
        "\tip: 10.0.0.3",
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR",
    ]
    (tmp_path / "driver.log").write_text("\n".join(lines) + "\n")
    found = hangscope.diagnose(hangscope.load(tmp_path))
    assert [culprit.rank for culprit in found.culprits] == [3]
