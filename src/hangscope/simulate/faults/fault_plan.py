"""One fault at one place: what every planner gives, and where the outcome of the run is noted."""

from __future__ import annotations

from dataclasses import dataclass, field

from hangscope.simulate.program.step_operations import Op


@dataclass(slots=True)
class FaultPlan:
    """One fault at one place. Numbers count within the rank's program of the fault's step."""

    kind: str
    variant: str
    rank: int = -1
    number: int = 0
    hang: bool = True
    culprits: list[int] = field(default_factory=list)
    accept: list[list[int]] = field(default_factory=list)
    accept_kinds: list[str] = field(default_factory=list)
    link: tuple[int, int] | None = None
    step_kind: str = ""
    programs: dict[int, tuple[Op, ...]] = field(default_factory=dict)
    """rank → what it runs instead of its program in the fault's step."""
    cpu_stops: dict[int, int] = field(default_factory=dict)
    inside_batch: frozenset[int] = frozenset()
    gpu_stops: dict[int, int] = field(default_factory=dict)
    late_cpu_ns: dict[int, int] = field(default_factory=dict)
    late_gpu_ns: dict[int, int] = field(default_factory=dict)
    members_disagree: bool = False
    """In the group of that operation, from there on."""
    steps_more: int = 0
    """So many steps more than the others the rank makes at the end, so that all end together."""
