"""Ranks that were announced and never seen, or look for the others elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.recorder.agent.never_seen import is_loopback, odd_addresses, one_rank_a_run
from hangscope.recorder.rundir.run_directory import PeerAgent


def agent(node: str, ranks: tuple[int, ...], nodes: int | None = None, **meets_at: str) -> PeerAgent:
    places = tuple((rank, meets_at.get(f"r{rank}", "")) for rank in ranks)
    return PeerAgent(Path(node), node, ranks, len(ranks), 4, nodes, places, fresh=True, ended=False)


@pytest.mark.parametrize(
    ("places", "odd"),
    [
        (("h:29500", "h:29500", "h:29501"), [2]),
        (("10.0.0.1:29500", "10.0.0.1:29500", "10.0.0.2:29500"), [2]),
        (("file:///a", "file:///a", "file:///b"), [2]),
        (("10.0.0.1:29500", "10.0.0.1:29500", "head:29500"), None),
        (("localhost:29500", "127.0.0.1:29500", "127.0.0.1:29500"), None),
        (("h:1", "h:2"), None),
        ((), None),
    ],
)
def test_who_looks_for_the_others_elsewhere_is_told_by_the_majority(
    places: tuple[str, ...], odd: list[int] | None
) -> None:
    """Another port, address or file is a mistake; a name may be the same machine, and one against one is nobody's."""
    found = odd_addresses([agent("a", tuple(range(len(places))), **{f"r{rank}": at for rank, at in enumerate(places)})])
    assert found.get("ranks") == odd


def test_which_addresses_nobody_else_can_come_to() -> None:
    """Only this machine's own say that the job has one node; and one `run` a rank never knows its neighbours."""
    assert [is_loopback(text) for text in ("127.0.0.1", "localhost", "::1")] == [True] * 3
    assert not any(map(is_loopback, ("", "10.0.0.1", "head-node", "127.0.0.1:29500")))
    assert one_rank_a_run({"RANK": "3"})
    assert one_rank_a_run({"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "1"})
    assert not one_rank_a_run({"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"})
