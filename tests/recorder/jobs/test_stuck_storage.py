"""A real job whose ranks read from a file system that does not answer: noticed, captured and named, in time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kits import hung_mount

from .conftest import Starter

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not hung_mount.possible(), reason="needs root, /dev/fuse and the right to mount"),
]
SCRIPT = Path(__file__).with_name("stuck_read.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3")


def test_ranks_that_read_from_a_silent_server_are_named_with_it(start: Starter, tmp_path: Path) -> None:
    """The verdict has both ranks, the mount, its type and the line; the capture does not wait for the mount."""
    place = tmp_path / "data"
    place.mkdir()
    incident = tmp_path / "i"
    with hung_mount.silent(place):
        started = start.run(incident, *TORCHRUN, SCRIPT, place, "1", "2", options=("--stall-after", "4"))
        started.until((incident / "verdict.json").exists, 90, "verdict")
        verdict = json.loads((incident / "verdict.json").read_text())
        node = json.loads(next(incident.glob("nodes/*/node.json")).read_text())
    blocked = {row["rank"]: row["file_waits"] for row in node["ranks"]}
    assert [wait["path"] for wait in blocked[1]] == [f"{place}/shard-1.bin"]
    assert blocked[0] == []
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [1, 2]
    where = f"blocked on fuse.hung hung mounted at {place} in load_shard (stuck_read.py:10)"
    assert verdict["headline"].startswith(f"ranks 1, 2 are {where}, and ")
    assert verdict["next_steps"][0].startswith(f"storage: check the server of fuse.hung hung mounted at {place} on ")
