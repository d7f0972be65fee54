"""What each rank's ring holds, and when it is dumped."""

from __future__ import annotations

from typing import Any

from hangscope.simulate import Spec, simulate
from kits.simulated_dumps import SMALL, entries_of


def test_without_timing_no_start_is_ever_seen() -> None:
    """As in a job without TORCH_NCCL_ENABLE_TIMING: no state "started", no start times, no durations."""
    job = simulate(Spec(**SMALL, fault="absent", timing=False, seed=1))  # type: ignore[arg-type]
    for rank in range(8):
        for entry in entries_of(job, rank):
            assert entry["state"] in ("scheduled", "completed")
            assert entry["time_discovered_started_ns"] is None
            assert "duration_ms" not in entry


def test_a_dead_rank_may_leave_an_old_dump() -> None:
    """The stale dump ends before the peers' last common operation."""
    job = simulate(Spec(ranks=8, fault="dead", stale_dump=True, culprits=(3,), seed=2, entries=100, steps=30))
    old, fresh = entries_of(job, 3), entries_of(job, 0)
    assert old[-1]["record_id"] < fresh[-1]["record_id"] - 3
    assert all(entry["state"] == "completed" for entry in fresh if entry["record_id"] <= old[-1]["record_id"])


def test_nccl2_leaves_no_dump_of_a_rank_that_waits_for_nobody() -> None:
    """Only ranks whose own operation times out write one, unless a collector asks."""
    alone = simulate(Spec(**SMALL, fault="absent", backend="nccl2", torch="2.15", self_dump=True))  # type: ignore[arg-type]
    asked = simulate(Spec(**SMALL, fault="absent", backend="nccl2", torch="2.15"))  # type: ignore[arg-type]
    assert set(range(8)) - set(alone.dump_ranks) == set(alone.truth["culprits"])  # type: ignore[call-overload]
    assert asked.dump_ranks == list(range(8))
    assert {entry["state"] for entry in entries_of(asked, 0)} <= {"scheduled", "completed"}


def test_a_smaller_ring_holds_the_end_of_a_larger_one() -> None:
    """What a ring of 60 entries keeps is exactly the last 60 of the same job's ring of 600."""
    common: dict[str, Any] = {"ranks": 16, "tp": 2, "pp": 4, "fault": "absent", "seed": 7, "steps": 60}
    large, small = simulate(Spec(**common, entries=600)), simulate(Spec(**common, entries=60))
    for rank in range(16):
        assert entries_of(large, rank)[-60:] == entries_of(small, rank)


def test_rings_wrap_at_unequal_rates() -> None:
    """Pipeline stages record different numbers of operations, so equal record ids are not equal operations."""
    job = simulate(Spec(ranks=8, pp=4, tp=2, fault="none", variant="stopped", entries=100, layers=6, steps=40))
    firsts = {entries_of(job, rank)[0]["record_id"] for rank in range(8)}
    assert len(firsts) > 1
    assert min(firsts) > 0


def test_clocks_differ_by_node_and_not_within_one() -> None:
    """Skew moves all times of a node by one amount within the limit."""
    common: dict[str, Any] = {"ranks": 16, "gpus_per_node": 4, "fault": "none", "variant": "stopped", "entries": 50}
    true, skewed = simulate(Spec(**common)), simulate(Spec(**common, clock_skew_ms=50))
    moved = {}
    for rank in range(16):
        pairs = zip(entries_of(true, rank), entries_of(skewed, rank), strict=True)
        (moved[rank],) = {b["time_created_ns"] - a["time_created_ns"] for a, b in pairs}
    assert all(abs(by) <= 50_000_000 for by in moved.values())
    assert len(set(moved.values())) == 4
    assert len({moved[rank] for rank in range(4)}) == 1
