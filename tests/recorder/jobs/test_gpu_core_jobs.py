"""GPU cores of real jobs whose ranks play the driver's part: asked at the end of a hung job, or by hand."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from kits.gpu_cores import ALL_REDUCE, Kernel, core

from .conftest import Started, Starter

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

JOB = Path(__file__).with_name("gpu_job.py")
HANGSCOPE = (sys.executable, "-m", "hangscope")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
SENTENCE = "rank 1's GPU; the other one is inside ncclDevKernel_AllReduce_Sum_f32_RING_LL"


@pytest.fixture
def cores(tmp_path: Path) -> Path:
    made = tmp_path / "cores"
    made.mkdir()
    (made / "0.core").write_bytes(core([Kernel(ALL_REDUCE, 2)]))
    (made / "1.core").write_bytes(core([]))
    return made


def finished(started: Started, status: int) -> str:
    """What a verb printed."""
    assert started.wait(120) == status, started.err
    return started.out


def kernels(incident: Path) -> dict[int, list[str]]:
    tables = [json.loads(path.read_text()) for path in incident.glob("nodes/*/gpu/rank_*.json")]
    return {table["rank"]: [grid["kernel"] for grid in table["grids"]] for table in tables}


def test_the_gpus_are_asked_before_a_hung_job_is_ended(start: Starter, tmp_path: Path, cores: Path) -> None:
    """Both ranks' kernels are saved although each fails by it, the verdict names them and not that failure, and the
    cores' directory is gone with the run."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    options = ("--gpu-core", "--stall-after", "5", "--on-hang", "kill", "--kill-after", "7s", "--grace", "3")
    started = start.run(tmp_path / "i", *TORCHRUN, JOB, cores, options=options, TMPDIR=str(temporary))
    assert started.wait(150) == 75
    assert kernels(tmp_path / "i") == {0: [ALL_REDUCE], 1: []}
    verdict = json.loads((tmp_path / "i" / "verdict.json").read_text())
    assert (verdict["outcome"], [each["rank"] for each in verdict["culprits"]]) == ("hang", [1])
    assert SENTENCE in verdict["summary"]
    assert [each["rank"] for each in verdict["gpu_cores"]] == [0, 1]
    log = "".join(path.read_text() for path in (tmp_path / "i").glob("nodes/*/logs/*.log"))
    assert "unspecified launch failure" in log
    again = json.loads(finished(start(*HANGSCOPE, "diagnose", tmp_path / "i", "--json"), 1))
    assert again["kind"] == verdict["kind"]
    assert [each["rank"] for each in again["culprits"]] == [1]
    assert not list(temporary.rglob("*.core"))
    assert not list(temporary.rglob("*.pipe"))


def test_a_snapshot_asks_the_gpus_only_when_told_to(start: Starter, tmp_path: Path, cores: Path) -> None:
    """Without --gpu the job goes on; with it the kernels are in the verdict, and what it costs was said before."""
    started = start.run(tmp_path / "i", *TORCHRUN, JOB, cores, options=("--gpu-core", "--stall-after", "4"))
    started.until(lambda: (tmp_path / "i" / "verdict.txt").exists(), 90, "verdict")
    assert finished(start(*HANGSCOPE, "snapshot", tmp_path / "i", "--no-diagnose"), 0)
    assert started.process.poll() is None
    asked = start(*HANGSCOPE, "snapshot", "--gpu", tmp_path / "i")
    incident = Path(finished(asked, 0).strip())
    assert "warning: --gpu ends the CUDA contexts" in asked.err
    assert kernels(incident) == {0: [ALL_REDUCE], 1: []}
    assert re.search(r"nothing runs\s+on\s+rank 1's\s+GPU", asked.err, re.IGNORECASE)
    assert started.wait(60) != 0


def test_what_fails_because_its_gpu_was_asked_is_no_crash(start: Starter, tmp_path: Path, cores: Path) -> None:
    """Asked of a job that has not stalled yet: the snapshot is all there is, whole at the end, and a line says why."""
    started = start.run(tmp_path / "i", *TORCHRUN, JOB, cores, options=("--gpu-core", "--stall-after", "300"))
    started.until(lambda: "watching 2 of 2 ranks" in started.err, 60, "ranks")
    incident = Path(finished(start(*HANGSCOPE, "snapshot", "--gpu", tmp_path / "i"), 0).strip())
    assert started.wait(60) != 0
    assert "the job failed because `snapshot --gpu` had asked its GPUs" in started.err
    assert not (tmp_path / "i" / "verdict.txt").exists()
    [node] = incident.glob("nodes/*/node.json")
    assert json.loads(node.read_text())["gpu_cores"]["ranks"] == [0, 1]
    again = json.loads(finished(start(*HANGSCOPE, "diagnose", tmp_path / "i", "--json"), 1))
    assert (again["outcome"], [each["rank"] for each in again["culprits"]]) == ("hang", [1])
