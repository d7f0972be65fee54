"""One attempt of one job, with everything that is known about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hangscope.model.basics import Gap
from hangscope.model.facts import Facts, Process
from hangscope.model.operations import Dump, Group, GroupStatus, Operations


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt of one job: every rank that is known to exist, and all evidence about it.

    `ranks` is every rank that anything mentions as a member of the job (dumps, group members, rosters, logs, RAS); a
    rank without a dump is in it too. `nodes` maps rank to host name where something says so.
    """

    ops: Operations
    groups: tuple[Group, ...]
    ranks: tuple[int, ...]
    dumps: Mapping[int, tuple[Dump, ...]]
    status: Mapping[tuple[int, int], GroupStatus]
    """(rank, group index) → that rank's own counters for the group."""
    nodes: Mapping[int, str]
    processes: Mapping[int, Process]
    """One merged view per rank of `facts.processes`."""
    facts: Facts
    gaps: tuple[Gap, ...]
    inputs: tuple[str, ...] = ()
    job_id: str | None = None
    attempt: str | None = None
    reason: str | None = None
    """Why the evidence was taken, where an incident's manifest says so: "stall", "rank-exit", "watchdog", …"""
    recovered_s: float | None = None
    """For how long the job stood still, where the manifest says that it went on by itself afterwards."""
    captured_at_ns: int | None = None
    first_kept: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """(rank, group index) → the oldest collective that a wrapped ring still holds; below it nothing is known."""

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @property
    def stood_still(self) -> bool:
        """Whether the evidence was captured because nothing moved, and the job did not go on since."""
        return self.reason == "stall" and self.recovered_s is None

    @property
    def under_run(self) -> bool:
        """Whether the job's own agent took the evidence: `hangscope run` need not be recommended then."""
        return self.reason in ("stall", "rank-exit", "watchdog", "dump-file", "status")

    def wrapped(self, rank: int) -> bool:
        """Whether that rank's ring lost older entries: what is missing before the oldest kept one says nothing."""
        return any(dump.wrapped for dump in self.dumps.get(rank, ()))
