"""Nodes that went silent in the middle of the job."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hangscope.recorder.rundir import run_directory
from hangscope.recorder.rundir.node_answers import NodeAnswers, Reply
from hangscope.recorder.rundir.run_directory import RunFolders
from hangscope.recorder.rundir.silent_nodes import silent_nodes


def write(root: Path, node: str, rank: int, launched: int, *, ago_s: float = 0.0, ended: int | None = None) -> Path:
    folder = root / "nodes" / node
    folder.mkdir(parents=True)
    group = {"recorder": "gloo", "group": "dp", "name": "0", "enqueued": launched, "completed": launched, "still_s": 1}
    row = {"rank": rank, "pid": 10 + rank, "state": "S", "rate": 2.0, "groups": [group]}
    value = {"schema": "hangscope.status/1", "node": node, "job": "j", "attempt": "0", "world_size": 2, "ended": ended}
    (folder / "agent.json").write_text(json.dumps({"node": node}))
    (folder / "status.json").write_text(json.dumps({**value, "live": [row]}))
    then = time.time() - ago_s
    os.utime(folder / "status.json", (then, then))
    return folder


def network(replies: dict[str, Reply]) -> Callable[[str], Reply]:
    """What each machine would reply now; one that is not listed cannot be asked. The mapping may change."""
    return lambda node: replies.get(node, Reply.UNKNOWN)


@pytest.mark.parametrize(
    ("other", "silent"),
    [
        ({"launched": 100, "ago_s": 30.0}, True),
        ({"launched": 100, "ago_s": 2.0}, False),
        ({"launched": 100, "ago_s": 30.0, "ended": 0}, False),
        ({"launched": 20, "ago_s": 3000.0}, False),
    ],
    ids=["silent where the others are", "it writes on", "it has ended", "its agent was killed long before"],
)
def test_only_a_node_that_was_with_the_others_is_named(other: dict[str, float], silent: bool, tmp_path: Path) -> None:
    """An agent that is silent says something of its node only where its ranks had not gone on without it."""
    own = write(tmp_path, "a", 0, 101)
    write(tmp_path, "b", 1, **other)  # type: ignore[arg-type]
    found = silent_nodes(RunFolders(tmp_path, own), tmp_path, NodeAnswers(RunFolders(tmp_path, own), network({})))
    assert [(row["node"], row["ranks"]) for row in found.get("nodes", [])] == ([("b", [1])] if silent else [])


@pytest.mark.parametrize(("noticed_s", "silent"), [(9.0, True), (2.0, False), (14.0, False)])
def test_a_young_job_has_no_pace_yet(noticed_s: float, silent: bool, tmp_path: Path) -> None:
    """A node that wrote its first status, and no other once the trouble was noticed, is lost; not one that had been
    silent for longer, nor one that wrote since."""
    own = write(tmp_path, "a", 0, 1000)
    write(tmp_path, "b", 1, 3, ago_s=11.0)
    found = silent_nodes(
        RunFolders(tmp_path, own), tmp_path, NodeAnswers(RunFolders(tmp_path, own), network({})), noticed_s
    )
    assert bool(found) is silent


UP = Reply.ANSWERS
DOWN = Reply.NO_ANSWER


@pytest.mark.parametrize(
    ("before", "now", "machine"),
    [
        ({"b": UP}, {"b": DOWN}, "no answer"),
        ({"b": UP}, {"b": UP}, "answers"),
        ({"b": DOWN}, {"b": DOWN}, "not known"),
        ({}, {}, "not known"),
        ({"b": UP}, {}, "not known"),
        ({}, {"b": DOWN, "c": UP}, "no answer"),
        ({}, {"b": DOWN, "c": DOWN}, "not known"),
        ({"b": UP, "c": UP}, {"b": DOWN, "c": DOWN}, "not known"),
    ],
    ids=[
        "it answered when the job began",
        "its agent was killed",
        "a firewall drops all",
        "names are not known here",
        "its name is gone",
        "another node answers",
        "a firewall between all",
        "our own network is gone",
    ],
)
def test_a_node_is_lost_only_where_its_machine_would_answer(
    before: dict[str, Reply], now: dict[str, Reply], machine: str, tmp_path: Path
) -> None:
    """An agent that was killed, or stopped, leaves a machine that answers; where nobody can tell, it is said so."""
    own = write(tmp_path, "a", 0, 101)
    write(tmp_path, "b", 1, 100, ago_s=30.0)
    replies = dict(before)
    answers = NodeAnswers(RunFolders(tmp_path, own), network(replies))
    if "c" in now:
        write(tmp_path, "c", 2, 101)
    answers.look()
    assert answers._asking is not None
    answers._asking.join()
    replies.clear()
    replies.update(now)
    found = silent_nodes(RunFolders(tmp_path, own), tmp_path, answers)
    assert [(row["node"], row["machine"]) for row in found["nodes"]] == [("b", machine)]


def test_a_machine_with_another_agent_that_writes_is_not_lost(tmp_path: Path) -> None:
    """With one agent a rank, the machine lives where any of its agents does, and is not even asked."""
    own = write(tmp_path, "a", 0, 101)
    beside = write(tmp_path, "b", 1, 100, ago_s=30.0)
    write(tmp_path, "b-2", 2, 101)
    for folder in (beside, tmp_path / "nodes" / "b-2"):
        file = folder / "status.json"
        times = (file.stat().st_atime, file.stat().st_mtime)
        file.write_text(json.dumps({**json.loads(file.read_text()), "node": "b"}))
        os.utime(file, times)
    answers = NodeAnswers(RunFolders(tmp_path, own), network({"b": DOWN, "b-2": UP}))
    found = silent_nodes(RunFolders(tmp_path, own), tmp_path, answers)
    assert [(row["node"], row["ranks"], row["machine"]) for row in found["nodes"]] == [("b", [1], "answers")]


def test_who_went_silent_does_not_diagnose(tmp_path: Path) -> None:
    """Where the agent of the lowest rank is lost, the next one gives the verdict; one that ended still may."""
    own = write(tmp_path, "a", 1, 101)
    write(tmp_path, "b", 0, 100, ago_s=10.0)
    assert run_directory.leader(run_directory.peers(tmp_path, own)) == own
    ended = write(tmp_path, "c", 0, 100, ago_s=10.0, ended=0)
    assert run_directory.leader(run_directory.peers(tmp_path, own)) == ended
