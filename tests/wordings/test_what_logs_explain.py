# ruff: noqa: E501 - lines of logs
"""The line that explains goes before the line that shouts; and what a log says of itself is no failure of the job."""

import json
from pathlib import Path

import pytest

import hangscope
from hangscope.model import FailureKind

JAX_DIED = """up 0 3
step 4 loss 12.00 0.1 s/it
E1118 21:36:24.690613   26091 coordination_service.cc:1549] [11974702881401110711] Use error polling to propagate the \
following error to all tasks: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):
1
The tasks have crashed. Check the task logs for an earlier error, or scheduler events (e.g. preemption, eviction) to debug \
further. [type.googleapis.com/tensorflow.CoordinationServiceError='']
F1118 21:36:24.690700   26102 client.h:80] Terminating process because the JAX distributed service detected fatal errors. \
This most likely indicates that another task died; see the other task logs for more details.
./launch.sh: line 5: 29821 Aborted                 python -u job.py
"""
HCCL = """EI0006: 2024-08-05-18:15:21.270.506 Getting socket times out. Reason: Remote Rank did not send the data in time.
Traceback (most recent call last):
  File "/w/train.py", line 14, in <module>
    main()
ValueError: HCCL broken
"""
IGNORED = """step 10 loss 2.1 1.2 s/it
step 20 loss 2.0 1.2 s/it
Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f1d2c>
Traceback (most recent call last):
  File "/opt/torch/utils/data/dataloader.py", line 1663, in __del__
    self._shutdown_workers()
AssertionError: can only test a child process
"""
TIMEOUT = (
    "[rank{rank}]:[E1115 02:30:11.204 ProcessGroupNCCL.cpp:685] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=42, OpType={op}, NumelIn=8, NumelOut=8, Timeout(ms)={ms}) ran for 600031 milliseconds before timing out.\n"
)
TORCHRUN = """[rank0]: up
[rank1]: up
W0902 15:10:48.626000 819 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 825 closing signal SIGTERM
E0902 15:10:49.013000 819 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 1 \
(pid: 826) of binary: /usr/bin/python
"""


def diagnosed(tmp_path: Path, text: str) -> hangscope.Diagnosis:
    log = tmp_path / "job.log"
    log.write_text(text, encoding="utf-8")
    return hangscope.diagnose(log)


def test_the_task_that_stopped_is_accused_and_not_those_that_its_end_aborted(tmp_path: Path) -> None:
    """JAX aborts every process when one is gone: those aborts are effects."""
    found = diagnosed(tmp_path, JAX_DIED)
    assert ([c.rank for c in found.culprits], found.kind) == ([1], "dead")


def test_an_exception_behind_its_reason_accuses_no_one(tmp_path: Path) -> None:
    """HCCL's sentence about a peer explains the traceback below it."""
    found = diagnosed(tmp_path, HCCL)
    assert (found.kind, found.culprits) == ("unknown", ())
    assert "EI0006" in found.why[0].text


def test_an_exception_that_python_ignores_ends_nothing(tmp_path: Path) -> None:
    """What is printed below "Exception ignored in" did not stop the job."""
    assert diagnosed(tmp_path, IGNORED).outcome == "ok"


def test_a_timeout_of_a_millisecond_is_a_setting(tmp_path: Path) -> None:
    """No one waits a millisecond for a collective: it is no hang."""
    found = diagnosed(tmp_path, TIMEOUT.format(rank=0, op="ALLREDUCE", ms=1))
    assert not found.hang
    assert "1 ms" in found.headline


def test_a_damaged_name_makes_no_mismatch(tmp_path: Path) -> None:
    """An operation's name that lost its end on the way into a paste is not another operation."""
    text = TIMEOUT.format(rank=0, op="ALLREDUCE", ms=600000) + TIMEOUT.format(rank=1, op="ALLREDU", ms=600000)
    assert diagnosed(tmp_path, text).kind == "unknown"


def test_links_and_status_lines_of_terminals_are_undone(tmp_path: Path) -> None:
    """What a chat and a terminal multiplexer made of a line does not hide it."""
    line = TIMEOUT.format(rank=0, op="ALLREDUCE", ms=600000).rstrip("\n")
    chat = line.replace("ProcessGroupNCCL.cpp:685", "[ProcessGroupNCCL.cpp:685](http://ProcessGroupNCCL.cpp:685)")
    found = diagnosed(tmp_path, f'  12 │ {chat}\n[train] 0:python3* 1:bash-  "gpu-7" 10:22 18-Nov-26\n')
    assert found.first_reported is not None
    assert found.first_reported.rank == 0


def test_a_gpu_that_hangs_is_no_progress(tmp_path: Path) -> None:
    """From an epoch to a step is no progress, and a log with a GPU's hang is never OK."""
    steps = "{'loss': 0.45, 'epoch': 1.22}\n 41%|####   | 366/903 [5:15:39<6:53:09, 46.16s/it]"
    assert diagnosed(tmp_path, f"{steps}\n").outcome == "unknown"
    hung = diagnosed(tmp_path, f"{steps}HW Exception by GPU node-9 (Agent handle: 0x631) reason :GPU Hang\n")
    assert (hung.outcome, hung.kind) == ("crash", "gpu")


def test_a_local_rank_is_the_rank_where_one_launcher_started_all(tmp_path: Path) -> None:
    """torchrun's local rank is the rank on the evidence of as many ranks as it has workers; else it has no rank."""
    assert [c.rank for c in diagnosed(tmp_path, TORCHRUN).culprits] == [1]
    found = diagnosed(tmp_path, TORCHRUN.partition("[rank1]: up\n")[2])
    (culprit,) = json.loads(json.dumps(found.to_dict()))["culprits"]
    assert (culprit["rank"], culprit["local_rank"], culprit["pid"]) == (None, 1, 826)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("HW Exception by GPU node-9 (Agent handle: 0x1) reason :GPU Hang", "device", "GPU node-9"),
        ("rank [10.31.4.17/1]: rank [10.31.4.17/5] status[LOST] by rank [10.31.4.17/1]", "node", "10.31.4.17"),
        ("(Worker_TP2 pid=77) RuntimeError: CUDA error: an illegal memory access was encountered", "pid", 77),
    ],
)
def test_programs_are_told_what_the_sentence_says(line: str, field: str, value: object, tmp_path: Path) -> None:
    """A culprit without a rank stands in the JSON with what names it."""
    (culprit,) = diagnosed(tmp_path, line + "\n").to_dict()["culprits"]
    assert culprit["rank"] is None
    assert culprit[field] == value


def test_text_that_says_nothing_known_is_answered(tmp_path: Path) -> None:
    """A log in which no line is known is "cannot tell", with what was looked for; only no text at all is an error."""
    found = diagnosed(tmp_path, "our workers sit there since noon and nothing moves\n")
    assert (found.outcome, found.exit_status) == ("unknown", 3)
    assert any("looked for" in finding.text for finding in found.why)
    (tmp_path / "job.log").write_text("lr: 0.1\n")
    with pytest.raises(hangscope.NotFoundError):
        hangscope.diagnose(tmp_path / "job.log")


def test_who_held_the_memory_is_shown_beside_who_was_killed(tmp_path: Path) -> None:
    """Ray's table tells of the process that filled the node, which need not be the one that was killed."""
    text = (
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
        "Memory on the node (IP: 192.168.0.107, ID: fc2b) where the task (actor ID: f9cc, name=Env, pid=4331, memory "
        "used=2.22GB) was running was 59.49GB / 62.58GB (0.95). Top 10 memory users:\n"
        "PID\tMEM(GB)\tCOMMAND\n3872\t41.05\tpython preprocess.py\n4331\t2.22\tray::Env\n"
    )
    found = diagnosed(tmp_path, text)
    assert any("41.05" in finding.text for finding in found.why)
    kinds = {failure.kind for failure in hangscope.load(tmp_path).facts.failures}
    assert kinds == {FailureKind.HOST_OOM, FailureKind.MEMORY_HELD}
