"""Which kernels a process's GPUs ran, by a core of the GPU."""

from __future__ import annotations

from dataclasses import dataclass

from hangscope.model.basics import Source


@dataclass(frozen=True, slots=True)
class GpuKernel:
    """One launch that had not ended. `name` is its C++ name, `title` the same as it stands in a sentence; `blocks` are
    its blocks that were on the GPU, None where that is not known."""

    name: str
    title: str
    device: int = 0
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    blocks: int | None = None


@dataclass(frozen=True, slots=True)
class GpuCore:
    """What one rank's GPUs ran when they were asked; no kernel where nothing did. `rank` is None until it is known
    whose it is."""

    rank: int | None
    kernels: tuple[GpuKernel, ...]
    source: Source
    pid: int | None = None
    node: str | None = None
    asked_ns: int | None = None
