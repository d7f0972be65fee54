"""Communication that the flight recorder does not see, by what ranks' stacks, black boxes and logs show of it.

The recorder sees what goes through torch.distributed. Engines call NCCL themselves (pynccl), reduce with kernels of
their own (custom all_reduce, FlashInfer, symmetric memory), exchange tokens by DeepEP or NVSHMEM, and replay CUDA
graphs that hold collectives. A rank in there has launched nothing that is recorded, and may wait for a peer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hangscope.model import BlackBox, Frame, Group, ThreadStack

_INNERMOST = 24
_LONGEST_PATH = 400


@dataclass(frozen=True, slots=True)
class UnrecordedCall:
    """What a rank is inside of. `waits_for_gpu`: only for its own GPU, whatever runs there."""

    what: str
    frame: Frame
    waits_for_gpu: bool = False


_MODULES: Sequence[tuple[re.Pattern[str], str]] = tuple(
    (re.compile(pattern), what)
    for pattern, what in (
        (r"(^|/)pynccl\w*\.py$|(^|/)cupy/cuda/nccl|(^|/)cupyx/distributed/", "NCCL called past torch.distributed"),
        (r"(^|/)nccl/(core|bindings)/", "NCCL called past torch.distributed"),
        (r"(^|/)py_?mscclpp\w*\.py$|(^|/)mscclpp/", "MSCCL++"),
        (r"(^|/)sgl_kernel/allreduce\.py$|(^|/)aiter/(dist|ops/\w*all_reduce)", "a custom all_reduce"),
        (r"(^|/)device_communicators/(all2all|mnnvl_compat|cuda_communicator)\w*\.py$", "the engine's communication"),
        (r"(^|/)(mori|uccl|hybrid_ep|nixl_ep)(/|\w*\.py$)", "an exchange of tokens between experts"),
        (r"(^|/)(custom_all_reduce|quick_all_reduce|flashinfer_all_reduce)\w*\.py$", "a custom all_reduce"),
        (r"(^|/)all_reduce_utils\.py$", "a custom all_reduce"),
        (r"(^|/)deep_?ep/|(^|/)deepep\w*\.py$|(^|/)pplx_kernels/", "DeepEP"),
        (r"nvshmem", "NVSHMEM"),
        (r"(^|/)flashinfer/comm/", "FlashInfer's communication"),
        (r"(^|/)torch/distributed/_symmetric_memory/|(^|/)symm_mem\w*\.py$", "symmetric memory"),
        (r"(^|/)(nixl|mooncake)(/|_\w+\.py$|\w*\.py$)", "a KV cache transfer"),
        (r"(^|/)shm_broadcast\.py$", "the engine's message queue"),
        (r"(^|/)tensorrt_llm/_torch/distributed/", "TensorRT-LLM's communication"),
        (r"(^|/)jax/(_src/(distributed|interpreters/pxla)|experimental/multihost_utils)\.py$", "JAX"),
    )
)
_GPU_WAITS: Sequence[tuple[re.Pattern[str], frozenset[str], str]] = (
    (
        re.compile(r"(^|/)jax/_src/(array|api)\.py$"),
        frozenset(("_value", "block_until_ready")),
        "a wait for a value of JAX's",
    ),
    (re.compile(r"(^|/)torch/cuda/graphs\.py$"), frozenset(("replay",)), "the replay of a CUDA graph"),
    (
        re.compile(r"(^|/)torch/(cuda|accelerator)/(__init__|streams)\.py$"),
        frozenset(("synchronize", "wait", "wait_stream", "wait_event")),
        "a wait for its GPU",
    ),
)


def unrecorded_call(stack: ThreadStack | None) -> UnrecordedCall | None:
    """The communication of another library, or the wait for its GPU, that a thread is inside of."""
    frames = stack.frames[:_INNERMOST] if stack is not None else ()
    for frame in frames:
        path = frame.filename[-_LONGEST_PATH:].replace("\\", "/")
        for pattern, what in _MODULES:
            if pattern.search(path):
                return UnrecordedCall(what, frame)
        function = frame.name.rpartition(".")[2]
        for pattern, functions, what in _GPU_WAITS:
            if function in functions and pattern.search(path):
                return UnrecordedCall(what, frame, waits_for_gpu=True)
    return None


def not_in_any_group(boxes: Iterable[BlackBox], groups: Iterable[Group]) -> bool:
    """Whether a box shows a communicator in use that no recorded group explains, by the ranks that are in it.

    Who makes communicators past torch.distributed often makes them of the same ranks as a group: then a process has
    more of that size than there are groups of it.
    """
    sizes: dict[int, int] = {}
    for group in groups:
        if group.members is not None:
            sizes[len(group.members)] = sizes.get(len(group.members), 0) + 1
    for box in boxes:
        used: dict[int, int] = {}
        for comm in box.comms:
            if comm.live and comm.ops and comm.size > 1:
                used[comm.size] = used.get(comm.size, 0) + 1
        # c10d makes communicators of two ranks for point-to-point calls, beside those of its groups.
        if any(count > sizes.get(size, 0) for size, count in used.items() if size > 2):
            return True
    return False
