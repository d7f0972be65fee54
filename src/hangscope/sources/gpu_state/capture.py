"""nvidia-smi's report, of a node that has GPUs."""

from __future__ import annotations

from hangscope.sources.gpu_state import nvidia_smi
from hangscope.sources.gpu_state.schema import NAME
from hangscope.sources.saving import Saving

WHAT = "GPU state"


def save(node: Saving, sample: int) -> None:
    """Once: it takes seconds where a driver is slow."""
    del sample
    if node.has_gpus:
        text, why = nvidia_smi.report()
        if text is None:
            node.gap(why)
        else:
            node.write(NAME, text)
