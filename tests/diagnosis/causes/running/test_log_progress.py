"""A job whose log shows it moving is well, and a failure that stopped it is not hidden by that."""
# ruff: noqa: E501  (log lines are quoted whole)

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hangscope
from kits.pasted_logs import short, timeout, verdict_on

STEPS = "".join(
    f"iteration {number}/500 | elapsed time per iteration (ms): 1200.3 | lm loss: 8.1\n" for number in range(100, 104)
)
LOSSES = "".join(f"{{'loss': 2.7, 'learning_rate': 1e-05, 'epoch': 0.{number}}}\n" for number in range(1, 5))
SERVED = (
    "Avg prompt throughput: 12.0 tokens/s, Avg generation throughput: 31.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs\n"
    * 3
)
HEALTHY = {
    "steps": STEPS,
    "losses": LOSSES,
    "a server": SERVED,
    "a non-fatal Xid that it outlives": f"[1.0] NVRM: Xid (PCI:0000:b3:00): 63, pid=4711, name=python, Row Remapper\n{STEPS}",
    "a wait of vLLM's that it outlives": f"INFO No available shared memory broadcast block found in 60 seconds.\n{SERVED}",
    "a warning as it ends": f"{LOSSES}{{'train_runtime': 1201.2, 'train_loss': 2.41}}\n[rank0]:[W501 10:00:06.1 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not called before program exit\n",
}
FAILED = {
    "a timeout behind the steps": STEPS + timeout(3),
    "out of memory": f"{STEPS}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.12 GiB.\n",
    "a process that ended, while others count on": f"srun: error: gpu-n24: task 5: Segmentation fault\n{STEPS}",
    "a launcher that ends all": f"WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers\n{STEPS}",
}


@pytest.mark.parametrize("text", HEALTHY.values(), ids=HEALTHY)
def test_a_job_that_moves_is_well(text: str) -> None:
    """With the line that shows it, and no advice to record."""
    found = verdict_on(text)
    assert short(found) == ("ok", "none", [])
    assert found.facts and found.confidence == "medium" and not found.next_steps


@pytest.mark.parametrize("text", FAILED.values(), ids=FAILED)
def test_a_failure_is_not_hidden_by_progress(text: str) -> None:
    """What ended a process, or the job, is told."""
    assert short(verdict_on(text))[0] in ("hang", "crash")


def rank_logs(folder: Path, steps: dict[int, int]) -> Path:
    """One log a rank, which counts to so many steps."""
    for rank, last in steps.items():
        lines = (f"step {step} loss 2.{step} lr 0.1\n" for step in range(1, last + 1))
        (folder / f"rank_{rank}.log").write_text("".join(lines))
    return folder


def test_a_log_that_ends_far_before_the_others_is_no_sign_of_health(tmp_path: Path) -> None:
    """Three ranks count to 500 and one to 200: nobody can tell, and OK is not said. A few steps less are."""
    assert short(hangscope.diagnose(rank_logs(tmp_path, {0: 500, 1: 500, 2: 200, 3: 500})))[0] == "unknown"
    assert short(hangscope.diagnose(rank_logs(tmp_path, {0: 500, 1: 500, 2: 495, 3: 500})))[0] == "ok"


@pytest.mark.parametrize("reason", ["stall", "watchdog", "snapshot"])
def test_what_was_saved_of_a_hang_is_not_called_well_for_its_logs(tmp_path: Path, reason: str) -> None:
    """An incident that lost its dumps still says why it was saved: steps in its logs were made before."""
    logs = tmp_path / "nodes/n0/logs"
    logs.mkdir(parents=True)
    rank_logs(logs, dict.fromkeys(range(4), 40))
    (tmp_path / "incident.json").write_text(json.dumps({"schema": "hangscope.incident/1", "reason": reason}))
    assert short(hangscope.diagnose(tmp_path))[0] != "ok"
