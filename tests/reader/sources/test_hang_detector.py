"""What Ray Train's hang detector (2.60) leaves in hang_detector/stack_traces: py-spy's stacks, or Python's listing."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.reader.load import load

SITE = "/x/lib/python3.11/site-packages"
SPY = """Process {pid}: ray::RayTrainWorker
Python v3.11.7 (/x/bin/python3.11)

Thread {pid} (idle): "MainThread"
    syscall (libc.so.6)
    Worker.main_loop (ray/_private/worker.py:1069)
    <module> (ray/_private/workers/default_worker.py:323)
Thread 77 (idle): "TrainingThread(train_fn)"
    pthread_cond_wait (libc.so.6)
{frames}
    Thread.run (threading.py:982)
"""
LISTED = """[py-spy unavailable: py-spy not installed; Python-only traceback follows]

# Thread 140001
  File "{site}/ray/_private/workers/default_worker.py", line 323, in <module>
    worker.main_loop()
  File "{site}/ray/_private/worker.py", line 1069, in main_loop
    self.core_worker.run_task_loop()


# Thread 140002
  File "/x/lib/python3.11/threading.py", line 982, in run
    self._target(*self._args, **self._kwargs)
{frames}
"""
PLACES = {
    "inside": [("loop", "/job/train.py", 60), ("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 9)],
    "outside": [("loop", "/job/train.py", 55), ("load_next_shard", "/job/train.py", 70)],
}


def stack(form: str, where: str, pid: int) -> str:
    if form == "py-spy":
        lines = [f"    {name} ({file}:{line})" for name, file, line in reversed(PLACES[where])]
        return SPY.format(pid=pid, frames="\n".join(lines))
    listed = [f'  File "{file}", line {line}, in {name}\n    some_code()' for name, file, line in PLACES[where]]
    return LISTED.format(site=SITE, frames="\n".join(listed))


@pytest.mark.parametrize("form", ["py-spy", "listed"])
@pytest.mark.parametrize("given", [".", "hang_detector"])
def test_the_rank_outside_of_the_collective_is_named(tmp_path: Path, form: str, given: str) -> None:
    """The folder says that it hangs, the files' names the ranks, and the stacks who stays away, with the line."""
    folder = tmp_path / "run/hang_detector/stack_traces"
    folder.mkdir(parents=True)
    for rank in range(4):
        (folder / f"rank_{rank}.log").write_text(stack(form, "outside" if rank == 2 else "inside", 100 + rank))
    found = diagnose(load([tmp_path / "run" / given]))
    assert (found.outcome, found.kind, [culprit.rank for culprit in found.culprits]) == ("hang", "absent", [2])
    where = found.culprits[0].where
    assert where is not None and (where.file, where.line) == ("/job/train.py", 70)


def test_a_rank_whose_stack_did_not_come_accuses_nobody(tmp_path: Path) -> None:
    """A placeholder in place of a stack leaves open where that rank is, so nobody is named."""
    folder = tmp_path / "hang_detector/stack_traces"
    folder.mkdir(parents=True)
    for rank in range(3):
        (folder / f"rank_{rank}.log").write_text(stack("py-spy", "inside", 100 + rank))
    (folder / "rank_3.log").write_text("stack dump timed out after 30s")
    assert not diagnose(load([tmp_path])).culprits


def test_the_same_stacks_elsewhere_are_no_proof_of_a_hang(tmp_path: Path) -> None:
    """Stacks that somebody took by hand of a job say nothing of whether it hangs."""
    folder = tmp_path / "stacks"
    folder.mkdir()
    for rank in range(3):
        (folder / f"rank_{rank}.log").write_text(stack("py-spy", "outside" if rank == 2 else "inside", 100 + rank))
    assert not diagnose(load([tmp_path])).culprits
