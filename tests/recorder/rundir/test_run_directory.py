"""The run's directory as several agents share it: who joins, who marks, who leads."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from hangscope.recorder.rundir import run_directory
from hangscope.recorder.rundir.job_identity import JobIdentity
from hangscope.recorder.rundir.run_directory import PeerAgent, sees_all


def test_nodes_of_one_job_join_and_others_do_not(tmp_path: Path) -> None:
    """An unnamed job takes the name of the node that came first; another job gets a directory of its own."""
    root, first = run_directory.claim(tmp_path / "d", JobIdentity("made-1", "0", "a", made=True))
    again, second = run_directory.claim(tmp_path / "d", JobIdentity("made-2", "0", "b", made=True))
    assert (again, second.job) == (root, "made-1")
    other, _ = run_directory.claim(tmp_path / "d", JobIdentity("real", "0", "b"))
    assert other == tmp_path / "d/run-2"
    assert first.job == "made-1"


def test_two_agents_on_one_host_get_two_folders(tmp_path: Path) -> None:
    """One `run` per rank is allowed too."""
    assert [run_directory.claim_node(tmp_path, "host").name for _ in range(3)] == ["host", "host-2", "host-3"]


def test_only_one_agent_marks_a_stall(tmp_path: Path) -> None:
    """The first one's reason is everybody's."""
    assert run_directory.mark(tmp_path, node="a", reason="stall", detail="x")
    assert not run_directory.mark(tmp_path, node="b", reason="watchdog", detail="y")
    marked = run_directory.marked(tmp_path)
    assert marked is not None
    assert (marked.by, marked.reason, marked.detail) == ("a", "stall", "x")


def write_status(root: Path, name: str, ranks: list[int], *, age: float = 0.0, **fields: object) -> Path:
    folder = root / "nodes" / name
    folder.mkdir(parents=True)
    value = {"node": name, "world_size": 4, "live": [{"rank": rank} for rank in ranks], "ended": None, **fields}
    (folder / run_directory.STATUS).write_text(json.dumps(value))
    then = time.time() - age
    os.utime(folder / run_directory.STATUS, (then, then))
    return folder


def test_the_lowest_rank_that_lives_leads(tmp_path: Path) -> None:
    """Rank 0's agent is silent: the next one diagnoses."""
    write_status(tmp_path, "a", [0, 1], age=100)
    own = write_status(tmp_path, "b", [2, 3])
    agents = run_directory.peers(tmp_path, own)
    assert run_directory.leader(agents) == own
    assert run_directory.sees_all(agents)


def test_a_part_of_the_job_is_known_as_a_part(tmp_path: Path) -> None:
    """Four ranks in the world and two in this directory: the others are elsewhere."""
    own = write_status(tmp_path, "a", [0, 1], local_world_size=2)
    assert not run_directory.sees_all(run_directory.peers(tmp_path, own))


def agent(node: str, ranks: tuple[int, ...], nodes: int | None = None, **meets_at: str) -> PeerAgent:
    places = tuple((rank, meets_at.get(f"r{rank}", "")) for rank in ranks)
    return PeerAgent(Path(node), node, ranks, len(ranks), 4, nodes, places, fresh=True, ended=False)


def test_a_job_on_all_its_nodes_is_seen_whole_though_a_rank_is_missing() -> None:
    """Where its nodes are counted, who is nowhere is missing; where not, it may be on a node that is not here."""
    assert sees_all([agent("a", (0, 1, 2), nodes=1)])
    assert sees_all([agent("a", (0, 1), nodes=2), agent("b", (2,), nodes=2)])
    assert not sees_all([agent("a", (0, 1), nodes=2)])
    assert not sees_all([agent("a", (0, 1, 2))])
