"""Ranks inside communication that the flight recorder does not see: waiting or working there, and not surely absent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.evidence.unrecorded_calls import not_in_any_group, unrecorded_call
from hangscope.model import BlackBox, BlackBoxComm, Facts, Frame, Group, Job, Source, ThreadStack
from kits.small_jobs import Op, job

D = "default_pg"
SITE = "/opt/venv/lib/python3.12/site-packages"
INSIDE = {
    "pynccl": ("all_reduce", f"{SITE}/vllm/distributed/device_communicators/pynccl.py"),
    "custom all_reduce": ("custom_all_reduce", f"{SITE}/vllm/distributed/device_communicators/custom_all_reduce.py"),
    "DeepEP": ("dispatch", f"{SITE}/deep_ep/buffer.py"),
    "NVSHMEM": ("barrier_all", f"{SITE}/nvshmem/core/collective.py"),
    "FlashInfer": ("trtllm_allreduce_fusion", f"{SITE}/flashinfer/comm/trtllm_ar.py"),
    "symmetric memory": ("barrier", f"{SITE}/torch/distributed/_symmetric_memory/__init__.py"),
    "KV transfer": ("transfer_sync", f"{SITE}/mooncake/engine.py"),
    "MSCCL++": ("all_reduce", f"{SITE}/sglang/srt/distributed/device_communicators/pymscclpp.py"),
    "all2all": ("dispatch", f"{SITE}/vllm/distributed/device_communicators/all2all.py"),
    "sgl-kernel": ("all_reduce", f"{SITE}/sgl_kernel/allreduce.py"),
}
GPU = {
    "graph": ("replay", f"{SITE}/torch/cuda/graphs.py"),
    "synchronize": ("synchronize", f"{SITE}/torch/cuda/__init__.py"),
    "event": ("Event.synchronize", f"{SITE}/torch/cuda/streams.py"),
}


def stack(rank: int, *inner: tuple[str, str], line: int = 50) -> ThreadStack:
    frames = [Frame(name, file, 10) for name, file in inner]
    frames.append(Frame("generate", "/workspace/serve.py", line))
    return ThreadStack(rank, None, "main", tuple(frames), Source(f"stacks/{rank}.txt"), main=True)


def waits_for_rank_2(*stacks: ThreadStack, boxes: tuple[BlackBox, ...] = ()) -> Job:
    """Ranks 0, 1 and 3 wait in an all_reduce that rank 2 has not launched, by all recordings."""
    return waits_for(2, *stacks, boxes=boxes)


def waits_for(awaited: int, *stacks: ThreadStack, boxes: tuple[BlackBox, ...] = (), dumps: range = range(4)) -> Job:
    done = [Op(D) for _ in range(5)]
    ranks = {rank: [*done, *([Op(D, state="started")] if rank != awaited else [])] for rank in dumps}
    return job({D: range(4)}, ranks, facts=Facts(stacks=stacks, blackboxes=boxes))


def box(rank: int, *sizes: int) -> BlackBox:
    comms = tuple(
        BlackBoxComm(n, f"{n:#x}", rank, size, 1, "", True, 0, 7, {"AllReduce": (6, 0)}) for n, size in enumerate(sizes)
    )
    return BlackBox(Source(f"{rank}.ncclbb"), "a", 100 + rank, rank, "", 0, None, None, None, comms, (), (), ())


def test_a_rank_in_its_own_code_is_absent() -> None:
    """Nothing is in doubt where its stack shows it elsewhere."""
    found = diagnose(waits_for_rank_2(stack(2)))
    assert (found.kind, [c.rank for c in found.culprits], found.confidence) == ("absent", [2], "high")


@pytest.mark.parametrize("where", INSIDE)
def test_a_rank_in_communication_that_is_not_recorded_is_not_surely_absent(where: str) -> None:
    """It may wait there for another rank: low, and the call is named."""
    found = diagnose(waits_for_rank_2(stack(2, INSIDE[where])))
    assert found.confidence == "low"
    assert "may wait there" in found.confidence_rule
    assert any("which the flight recorder does not see" in finding.text for finding in found.why)


@pytest.mark.parametrize("where", GPU)
def test_a_rank_that_waits_for_its_gpu_is_not_surely_absent(where: str) -> None:
    """What runs there, a kernel that never ends or a graph with a collective in it, no recording says."""
    found = diagnose(waits_for_rank_2(stack(2, GPU[where])))
    assert found.confidence == "medium"
    assert any("what runs there is not recorded" in finding.text for finding in found.why)


def test_without_its_stack_a_rank_of_such_a_job_is_not_surely_absent() -> None:
    """Another rank is seen in such communication, or a box has a communicator that no group explains."""
    assert diagnose(waits_for_rank_2()).confidence == "high"
    assert diagnose(waits_for_rank_2(stack(0, INSIDE["pynccl"]))).confidence == "medium"
    assert diagnose(waits_for_rank_2(boxes=(box(0, 4),))).confidence == "high"
    assert diagnose(waits_for_rank_2(boxes=(box(0, 4, 4),))).confidence == "medium"


def test_communicators_of_groups_and_of_pairs_are_explained() -> None:
    """torch.distributed makes one a group, and one a pair of ranks for point-to-point calls."""
    groups = [Group(0, "0", D, (0, 1, 2, 3), "nccl"), Group(1, "1", "tp", (0, 1, 2), "nccl")]
    assert not not_in_any_group([box(0, 4, 3, 2, 2, 2)], groups)
    assert not_in_any_group([box(0, 4, 3, 3)], groups)
    assert not_in_any_group([box(0, 8)], groups)
    unused = replace(box(0, 8).comms[0], ops=0)
    assert not not_in_any_group([replace(box(0), comms=(unused,))], groups)


def test_the_names_of_the_users_own_functions_are_nothing() -> None:
    """A `synchronize` or `replay` of the user's own is no wait for a GPU."""
    assert unrecorded_call(None) is None
    assert unrecorded_call(stack(0, ("synchronize", "/workspace/util.py"), ("replay", "/workspace/buffer.py"))) is None


@pytest.mark.parametrize("where", [*INSIDE, *GPU])
@pytest.mark.parametrize("awaited", range(4))
def test_nobody_inside_such_communication_is_accused_for_sure(where: str, awaited: int) -> None:
    """Whichever rank it is, whatever else is missing: stacks of the others, boxes, its own dump or another's."""
    inside = {**INSIDE, **GPU}[where]
    others = [rank for rank in range(4) if rank != awaited]
    in_collective = ("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py")
    of_others = (
        [],
        [stack(rank, inside) for rank in others],
        [stack(rank, in_collective) for rank in others],
        [stack(others[0], line=77)],
    )
    for theirs in of_others:
        for boxes in ((), (box(awaited, 4),), tuple(box(rank, 4, 4) for rank in range(4))):
            for dumps in (range(4), range(3), range(1, 4)):
                found = diagnose(waits_for(awaited, stack(awaited, inside), *theirs, boxes=boxes, dumps=dumps))
                assert found.confidence != "high" or not found.culprits
