"""A real job in a directory that others have filled with what they could think of: it is judged, and it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from .conftest import Starter

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TRAIN = Path(__file__).with_name("train.py")
NOBODY = 65534


def plant(run: Path, secret: Path) -> None:
    """Pipes, links, a terabyte, nonsense, and, where the machine allows, another user who claims to be rank 0."""
    secret.write_text("mine\n")
    nodes = run / "nodes"
    for name in ("aapipe", "aahuge", "aaother", "aanonsense"):
        (nodes / name).mkdir(parents=True)
    for name in ("status.json", "node.json", "agent.json"):
        os.mkfifo(nodes / "aapipe" / name)
    (nodes / "aahuge/rank_0.log").touch()
    os.truncate(nodes / "aahuge/rank_0.log", 1 << 40)
    (nodes / "aalink").symlink_to("/")
    (nodes / "aafile").write_text("x")
    (nodes / "aanonsense/status.json").write_bytes(b"[" * 1_000_000)
    (nodes / "aanonsense/node.json").write_text(json.dumps({"node": "\x1b[2J", "ranks": [5, None], "complete": True}))
    if os.geteuid() == 0:
        claim = {"node": "x", "live": [{"rank": 0}], "world_size": 64, "nodes": 9, "pause_ago_s": 0.0, "ended": None}
        (nodes / "aaother/status.json").write_text(json.dumps(claim))
        os.chown(nodes / "aaother/status.json", NOBODY, NOBODY)
        os.utime(nodes / "aaother/status.json", (time.time() + 1000,) * 2)
    for name in ("verdict.json", "verdict.txt", "verdict.html", "incident.json"):
        (run / name).symlink_to(secret)


@pytest.mark.parametrize("fault", ("sleep", "kill"))
def test_a_job_among_hostile_neighbours_is_judged_and_ends(fault: str, start: Starter, tmp_path: Path) -> None:
    """The verdict names the rank, no link is written through, nothing raw is printed, and the end comes in seconds."""
    run, secret = tmp_path / "run", tmp_path / "secret"
    plant(run, secret)
    job = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", TRAIN, "--fault", fault)
    started = start.run(run, *job, "--at", "10", options=("--stall-after", "3", "--job", "j", "--node", "ours"))
    if fault == "sleep":
        started.until(lambda: "the verdict on" in started.err, 90, "verdict")
        started.process.send_signal(signal.SIGTERM)
        ended = time.monotonic()
    else:
        started.until(lambda: "fault at" in started.out, 60, "fault")
        ended = time.monotonic()
    status = started.wait(90)
    assert time.monotonic() - ended < 45
    assert status not in (0, 70)
    assert secret.read_text() == "mine\n"
    assert "the verdict on" in started.err
    ours = [line for line in started.err.splitlines() if line.startswith("hangscope: ")]
    assert re.search(r"rank 1\b", "\n".join(ours))
    assert all(line.isprintable() for line in ours)
    value = json.loads((run / "verdict.json").read_text())
    assert [culprit["rank"] for culprit in value["culprits"]] == [1]
