"""Who is outside of communication, from stacks alone."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import Diagnosis, diagnose
from hangscope.model import Facts, Failure, FailureKind, Frame, Source, ThreadStack
from hangscope.reader.logs.stack_dumps import engine_rank
from kits.small_jobs import job

PYNCCL = Frame("all_reduce", "/site-packages/vllm/distributed/device_communicators/pynccl.py", 140)
SYNC = Frame("synchronize", "/site-packages/torch/cuda/__init__.py", 980)
OWN = Frame("load_adapter", "/srv/adapters.py", 12)
STUCK = Failure(FailureKind.ENGINE_STUCK, "Scheduler watchdog timeout", Source("server.log"), None, None, effect=True)


def verdict(*frames: Frame, stuck: bool = True) -> Diagnosis:
    stacks = tuple(
        ThreadStack(rank, None, "main", (frame, Frame("loop", "/srv/serve.py", 5)), Source(f"{rank}.txt"), main=True)
        for rank, frame in enumerate(frames)
    )
    facts = Facts(stacks=stacks, failures=(STUCK,) if stuck else ())
    return diagnose(job({}, {}, world=range(4), facts=facts))


def test_the_one_outside_is_named_and_never_surely() -> None:
    """All others are in pynccl's all_reduce."""
    found = verdict(PYNCCL, PYNCCL, OWN, PYNCCL)
    assert (found.kind, [c.rank for c in found.culprits], found.confidence) == ("absent", [2], "medium")
    assert "load_adapter" in " ".join(line for finding in found.why for line in finding.detail)


@pytest.mark.parametrize(
    "frames", [(PYNCCL, PYNCCL, SYNC, PYNCCL), (PYNCCL, OWN, OWN, PYNCCL), (PYNCCL, PYNCCL, PYNCCL, PYNCCL)]
)
def test_nobody_is_named_so_who_may_wait_or_where_many_are_outside(frames: tuple[Frame, ...]) -> None:
    """Who waits for its GPU may wait there for a peer; half of the job outside says nothing."""
    found = verdict(*frames)
    assert "inside communication" not in found.confidence_rule
    assert found.confidence == "low"


def test_a_job_that_is_not_known_to_hang_is_left_alone() -> None:
    """One sample of a healthy job looks the same."""
    assert verdict(PYNCCL, PYNCCL, OWN, PYNCCL, stuck=False).confidence == "low"


@pytest.mark.parametrize(
    ("title", "rank"),
    [
        ("sglang::scheduler_TP2", 2),
        ("VLLM::Worker_TP3", 3),
        ("sglang::scheduler_DP0_TP1_EP1", 1),
        ("sglang::scheduler_DP2_TP1", None),
        ("sglang::scheduler_PP1_TP0", None),
        ("VLLM::EngineCore_DP0", None),
        ("python train_TP3.py", None),
    ],
)
def test_an_engines_process_is_known_by_its_title(title: str, rank: int | None) -> None:
    """Where it has one replica and one pipeline stage: otherwise the same number is several ranks'."""
    assert engine_rank(title) == rank
