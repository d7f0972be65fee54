"""A rank that is elsewhere while all others wait for their GPUs: a replayed graph, or kernels that wait for a flag."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis import Diagnosis, diagnose
from hangscope.model import Facts, Frame, Job, Process, Source, ThreadStack
from kits.small_jobs import Op, job

D = "default_pg"
CUDA = "/opt/venv/lib/python3.12/site-packages/torch/cuda/__init__.py"
C10D = "/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
PYNCCL = "/opt/venv/lib/python3.12/site-packages/vllm/distributed/device_communicators/pynccl.py"
IN_SYNCHRONIZE = ("synchronize", CUDA)
IN_PROMPTS = ("fetch_prompts", "/workspace/serve.py")


def stack(rank: int, *inner: tuple[str, str]) -> ThreadStack:
    frames = [Frame(name, file, 10) for name, file in inner]
    frames.append(Frame("generate", "/workspace/serve.py", 50))
    return ThreadStack(rank, None, "main", tuple(frames), Source(f"stacks/{rank}.txt"), main=True)


def stood_still(*elsewhere: int, place: tuple[str, str] = IN_PROMPTS, reason: str | None = "stall") -> Job:
    """Four ranks that finished all that was recorded, and wait for their GPUs, but some."""
    stacks = tuple(stack(rank, place if rank in elsewhere else IN_SYNCHRONIZE) for rank in range(4))
    ranks = {rank: [Op(D) for _ in range(5)] for rank in range(4)}
    return replace(job({D: range(4)}, ranks, facts=Facts(stacks=stacks)), reason=reason)


def accused(found: Diagnosis) -> tuple[str, list[int], str]:
    return found.outcome, [culprit.rank for culprit in found.culprits], found.confidence


@pytest.mark.parametrize("rank", range(4))
def test_the_rank_that_is_elsewhere_is_named_with_its_line(rank: int) -> None:
    """Whichever it is; stacks alone carry no more than medium."""
    found = diagnose(stood_still(rank))
    assert accused(found) == ("hang", [rank], "medium")
    assert "fetch_prompts" in found.headline


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(stood_still(), id="nobody is elsewhere"),
        pytest.param(stood_still(1, 2), id="half of them are"),
        pytest.param(stood_still(2, place=("all_reduce", PYNCCL)), id="it communicates past the recorder"),
        pytest.param(stood_still(2, place=("barrier", C10D)), id="it waits in a collective"),
    ],
)
def test_nobody_is_named_where_the_stacks_do_not_tell(given: Job) -> None:
    """Those in `synchronize` may have work on their GPUs, and who waits itself holds nobody up."""
    assert accused(diagnose(given))[1] == []


def test_without_a_stall_a_wait_for_the_gpu_is_how_jobs_run() -> None:
    """A folder of stacks that nobody took because of a stall says nothing by it."""
    assert diagnose(stood_still(2, reason=None)).outcome == "ok"


def test_a_job_that_stood_still_is_not_well() -> None:
    """Everything recorded is finished, and yet it was captured because of a stall: nobody can say OK to that."""
    assert accused(diagnose(stood_still())) == ("unknown", [], "low")
    moved = replace(stood_still(), processes={rank: Process(rank, "n", 100 + rank, moved=True) for rank in range(4)})
    assert diagnose(moved).outcome == "ok"
