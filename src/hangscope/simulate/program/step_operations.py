"""The words of a program: one operation that a rank puts on its GPU stream, and the model that it trains."""

from __future__ import annotations

from dataclasses import dataclass

from hangscope.simulate.program.training_sites import Site

TRAIN = "train"
CHECKPOINT = "checkpoint"
ELSEWHERE = "elsewhere"
"""The kinds of steps; the last is one of training, called from another place in the code."""


@dataclass(frozen=True, slots=True)
class OpPart:
    """One operation inside a coalesced batch, or the one transfer of a plain send or recv. `peer`: group position."""

    site: Site
    peer: int = -1


@dataclass(frozen=True, slots=True)
class Op:
    """One thing that a rank puts on its GPU stream.

    `gap_us`: computation on the GPU before it; `cpu_us`: time the CPU takes to get there.
    `fence`: the CPU waits for the GPU afterwards. `background`: later work does not wait for it; `join`: it waits for
    all background work first. `split`: (group position, elements) sent to one peer beyond the even share.
    """

    site: Site
    role: int
    algorithm: str
    size: int
    parts: tuple[OpPart, ...] = ()
    root: int = 0
    gap_us: float = 0.0
    cpu_us: float = 80.0
    fence: bool = False
    background: bool = False
    join: bool = False
    split: tuple[int, int] | None = None

    @property
    def p2p(self) -> bool:
        return self.algorithm == "p2p"

    @property
    def batch(self) -> bool:
        return self.site.closing


@dataclass(frozen=True, slots=True)
class Model:
    """The size of the imaginary model and how it is trained."""

    layers: int = 4
    microbatches: int = 1
    hidden: int = 4096
    tokens: int = 4096
    data_parallel: str = "fsdp"
    """"fsdp" (gather and scatter), "ddp" (all_reduce of buckets) or "coalesced" (gather and scatter in batches)."""
    plain_p2p: bool = False
    overlap: bool = False
    """Gradients are reduced in the background, on the group's own stream."""
