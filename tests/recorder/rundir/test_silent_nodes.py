"""Nodes that went silent in the middle of the job."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from hangscope.recorder.rundir.run_directory import RunFolders
from hangscope.recorder.rundir.silent_nodes import silent_nodes


def write(root: Path, node: str, rank: int, launched: int, *, ago_s: float = 0.0, ended: int | None = None) -> Path:
    folder = root / "nodes" / node
    folder.mkdir(parents=True)
    group = {"recorder": "gloo", "group": "dp", "name": "0", "enqueued": launched, "completed": launched, "still_s": 1}
    row = {"rank": rank, "pid": 10 + rank, "state": "S", "rate": 2.0, "groups": [group]}
    value = {"schema": "hangscope.status/1", "node": node, "job": "j", "attempt": "0", "world_size": 2, "ended": ended}
    (folder / "agent.json").write_text("{}")
    (folder / "status.json").write_text(json.dumps({**value, "live": [row]}))
    then = time.time() - ago_s
    os.utime(folder / "status.json", (then, then))
    return folder


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
    found = silent_nodes(RunFolders(tmp_path, own), tmp_path)
    assert [(row["node"], row["ranks"]) for row in found.get("nodes", [])] == ([("b", [1])] if silent else [])


@pytest.mark.parametrize(("noticed_s", "silent"), [(9.0, True), (2.0, False), (14.0, False)])
def test_a_young_job_has_no_pace_yet(noticed_s: float, silent: bool, tmp_path: Path) -> None:
    """A node that wrote its first status, and no other once the trouble was noticed, is lost; not one that had been
    silent for longer, nor one that wrote since."""
    own = write(tmp_path, "a", 0, 1000)
    write(tmp_path, "b", 1, 3, ago_s=11.0)
    found = silent_nodes(RunFolders(tmp_path, own), tmp_path, noticed_s)
    assert bool(found) is silent
