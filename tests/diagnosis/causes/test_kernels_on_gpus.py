"""What cores of the GPUs say of a hang, and what they must not be taken to say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis import Diagnosis, diagnose
from hangscope.model import Facts, Frame, GpuCore, GpuKernel, Process, Source, ThreadStack
from hangscope.sources.gpu_core.demangle import demangle, title
from kits.gpu_cores import ALL_REDUCE, SPIN
from kits.small_jobs import START, Op, job

GEMM = "ampere_sgemm_128x64_nn"
CUSTOM = "_ZN4vllm26cross_device_reduce_1stageI6__halfLi2EEEvPT_i"
SYNC = Frame("synchronize", "/site-packages/torch/cuda/__init__.py", 980)
OWN = Frame("fetch_prompts", "/srv/train.py", 94)
WORLD = range(4)


def core(rank: int, *mangled: str, late_s: float = 0.0) -> GpuCore:
    names = [demangle(name) for name in mangled]
    kernels = tuple(GpuKernel(name, title(name), 0, (1, 1, 1), (128, 1, 1), 1) for name in names)
    source = Source(f"nodes/a/gpu/rank_{rank}.json")
    return GpuCore(rank, kernels, source, 100 + rank, "a", START + int((60 + late_s) * 1e9))


def stack(rank: int, frame: Frame) -> ThreadStack:
    frames = (frame, Frame("step", "/srv/train.py", 60))
    return ThreadStack(rank, 100 + rank, "main", frames, Source(f"nodes/a/stacks/rank_{rank}.1.txt"), main=True)


def verdict(
    *cores: GpuCore,
    stacks: tuple[ThreadStack, ...] = (),
    ops: dict[int, list[Op]] | None = None,
    gpus: dict[int, str] | None = None,
    stall: bool = True,
    timing: bool = False,
) -> Diagnosis:
    processes = {r: Process(r, "a", gpu=gpu) for r, gpu in (gpus or {}).items()}
    groups = {"dp": list(WORLD)} if ops else {}
    facts = Facts(gpu_cores=cores, stacks=stacks)
    made = job(groups, ops or {}, world=WORLD, facts=facts, processes=processes, timing=timing)
    return diagnose(replace(made, reason="stall" if stall else None))


def accused(found: Diagnosis) -> tuple[str, list[int], str]:
    return str(found.kind), [c.rank for c in found.culprits], found.confidence


LAUNCHED = {r: [Op("dp"), Op("dp", state="scheduled")] for r in WORLD}
INSIDE = [core(r, ALL_REDUCE) for r in WORLD]


def with_rank_2(*mangled: str) -> list[GpuCore]:
    return [*INSIDE[:2], core(2, *mangled), INSIDE[3]]


def test_a_kernel_that_never_ends_is_named() -> None:
    """All launched the all_reduce; rank 2's GPU is still in the kernel before it, and its peers are inside NCCL's."""
    found = verdict(*with_rank_2(SPIN), ops=LAUNCHED)
    assert accused(found) == ("gpu", [2], "high")
    assert found.headline == (
        "rank 2's GPU runs at::cuda::spin_kernel; the other 3 are inside ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    )
    assert found.gpu_cores[2].kernels[0].name == "at::cuda::(anonymous namespace)::spin_kernel(long)"


def test_without_a_recording_one_look_is_not_sure() -> None:
    """Nothing shows that rank 2 launched it: its kernel may be one of many; if its CPU waits for it, that is more."""
    assert accused(verdict(*with_rank_2(GEMM))) == ("gpu", [2], "low")
    assert accused(verdict(*with_rank_2(SPIN), stacks=(stack(2, SYNC),))) == ("gpu", [2], "medium")


def test_a_rank_that_waits_for_its_own_kernel_is_gpu_and_not_absent() -> None:
    """The recorder shows that rank 2 never launched what the others are in; it waits for a kernel of its own."""
    ops = {**LAUNCHED, 2: [Op("dp")]}
    found = verdict(*with_rank_2(SPIN), ops=ops, stacks=(stack(2, SYNC),))
    assert accused(found) == ("gpu", [2], "medium")
    assert "runs at::cuda::spin_kernel and does not finish it" in found.headline


def test_a_busy_rank_that_never_launched_stays_absent() -> None:
    """A rank that evaluates runs kernels, too: what the recorder shows stays, with the kernel beside it."""
    ops = {**LAUNCHED, 2: [Op("dp")]}
    found = verdict(*with_rank_2(GEMM), ops=ops, stacks=(stack(2, OWN),))
    assert accused(found)[:2] == ("absent", [2])
    assert "Rank 2's GPU runs ampere_sgemm_128x64_nn; the other 3 are inside ncclDevKernel" in found.summary


def test_an_empty_gpu_in_a_replayed_graph_is_the_absent_one() -> None:
    """No recorder sees the replay: the peers are inside NCCL's kernel, and rank 2 has nothing on its GPU."""
    stacks = tuple(stack(rank, OWN if rank == 2 else SYNC) for rank in WORLD)
    found = verdict(*with_rank_2(), stacks=stacks)
    assert accused(found) == ("absent", [2], "medium")
    assert "Nothing runs on rank 2's GPU; the other 3 are inside ncclDevKernel_AllReduce" in found.summary
    assert "fetch_prompts" in found.headline


@pytest.mark.parametrize(
    ("cores", "stacks", "gpus"),
    [
        pytest.param(with_rank_2(), (), dict.fromkeys(WORLD, "0000:9d:00.0"), id="four ranks on one GPU"),
        pytest.param(with_rank_2(), (stack(2, SYNC),), {}, id="it waits for its GPU"),
        pytest.param(with_rank_2(), (), {}, id="no stack"),
    ],
)
def test_an_empty_gpu_that_may_be_a_mistake_is_low(
    cores: list[GpuCore], stacks: tuple[ThreadStack, ...], gpus: dict[int, str]
) -> None:
    """Several processes on one GPU may get an empty core; a rank that waits for its GPU contradicts it."""
    found = verdict(*cores, stacks=stacks, gpus=gpus)
    assert found.confidence == "low"


def test_an_empty_gpu_of_a_rank_that_launched_accuses_nobody() -> None:
    """The recorder shows it inside: its empty core is the weaker word."""
    found = verdict(*with_rank_2(), ops=LAUNCHED)
    assert accused(found)[1] == []
    assert found.confidence == "low"


def test_who_was_asked_later_is_not_empty() -> None:
    """Its peers' contexts were gone by then, and with them what it may have waited in."""
    cores = [*INSIDE[:2], core(2, late_s=4.0), INSIDE[3]]
    assert accused(verdict(*cores))[1] == []


def test_all_inside_the_same_kernel_accuses_nobody() -> None:
    """Nobody stays away and nobody's GPU is elsewhere: the network or the GPUs, with the kernel's name."""
    stacks = tuple(stack(rank, OWN if rank == 2 else SYNC) for rank in WORLD)
    alone = verdict(*INSIDE, stacks=stacks)
    assert accused(alone) == ("unknown", [], "low")
    assert "all 4 GPUs are inside ncclDevKernel_AllReduce_Sum_f32_RING_LL" in alone.headline
    recorded = verdict(*INSIDE, ops=LAUNCHED)
    assert accused(recorded) == ("network", [], "medium")
    assert "inside ncclDevKernel_AllReduce_Sum_f32_RING_LL" in recorded.summary


def test_a_kernel_of_nccl_contradicts_an_absent_rank() -> None:
    """By its recording rank 2 never launched it, and its GPU is inside NCCL: it may wait itself, and that is said."""
    ops = {**LAUNCHED, 2: [Op("dp")]}
    found = verdict(*INSIDE, ops=ops)
    assert accused(found) == ("absent", [2], "low")
    assert "may wait itself" in found.confidence_rule


def test_missing_cores_accuse_nobody() -> None:
    """A rank whose core did not come is not known: neither empty nor elsewhere."""
    for cores in ([INSIDE[0]], INSIDE[:3], [core(2)], []):
        assert accused(verdict(*cores, ops=LAUNCHED))[1] == []
        assert accused(verdict(*cores, stacks=(stack(0, SYNC),)))[1] == []


def test_other_kernels_that_wait_for_peers_are_not_accused() -> None:
    """A reduce of vLLM's own waits for its peers like NCCL's: who runs it is not stuck by itself."""
    assert accused(verdict(*with_rank_2(CUSTOM), ops=LAUNCHED))[1] == []
    assert accused(verdict(*with_rank_2(GEMM, ALL_REDUCE), ops=LAUNCHED))[1] == []


def test_a_job_that_is_not_known_to_hang_is_not_accused_surely() -> None:
    """A healthy job looks the same for a moment."""
    found = verdict(*with_rank_2(SPIN), stall=False)
    assert found.confidence == "low"


def test_an_old_core_is_of_another_hang() -> None:
    """A core from long before the capture says nothing of this hang."""
    old = [core(r, SPIN if r == 2 else ALL_REDUCE, late_s=-100_000.0) for r in WORLD]
    made = job({"dp": list(WORLD)}, LAUNCHED, world=WORLD, facts=Facts(gpu_cores=tuple(old)), timing=False)
    found = diagnose(replace(made, captured_at_ns=START))
    assert found.gpu_cores == ()
    assert accused(found)[1] == []


def test_half_of_the_job_elsewhere_is_nobodys_fault() -> None:
    """Three of four run their own kernels: they are not the few that hold up the rest."""
    cores = [core(0, ALL_REDUCE), *(core(r, GEMM) for r in (1, 2, 3))]
    assert accused(verdict(*cores))[1] == []
