"""Real jobs under every kind of launcher, on one node and on two, with and without hangscope."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import pytest

from .conftest import SOURCE, Starter, free_port

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TRAIN = Path(__file__).with_name("train.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def hangscope(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hangscope", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def test_two_nodes_that_share_a_directory_make_one_incident(start: Starter, tmp_path: Path) -> None:
    """Plain Python on two nodes: both capture when one stalls, and rank 0's node alone gives the verdict."""
    incident = tmp_path / "shared"
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    runs = [
        start.run(
            incident,
            *(sys.executable, TRAIN, "--fault", "sleep", "--at", "60", "--steps", "80"),
            options=("--node", f"node-{name}", "--stall-after", "3"),
            RANK=str(rank),
            **world,
        )
        for rank, name in enumerate("ab")
    ]
    runs[0].until(lambda: "rank 0 step 25" in runs[0].out, 60, "training")
    live = hangscope("watch", incident)
    assert re.search(r"^job \S+, attempt 0: 2 ranks, ", live.stdout)
    assert re.search(r"^1 +node-b +\d+ ", live.stdout, re.MULTILINE)
    runs[0].until(lambda: (incident / "verdict.txt").exists(), 60, "verdict")
    verdict = json.loads((incident / "verdict.json").read_text())
    assert [(each["rank"], each["node"]) for each in verdict["culprits"]] == [(1, "node-b")]
    manifest = json.loads((incident / "incident.json").read_text())
    assert manifest["nodes_expected"] == manifest["nodes_present"] == ["node-a", "node-b"]
    runs[0].until(lambda: "the verdict on" in runs[0].err, 10, "verdict on stderr")
    assert "the verdict on" not in runs[1].err
    assert "rank 1 step 59" in (incident / "nodes" / "node-b" / "logs" / "rank_1.log").read_text()

    taken = hangscope("snapshot", incident)
    assert taken.returncode == 0, taken.stderr
    snapshot = Path(taken.stdout.strip())
    assert snapshot == tmp_path / "shared/snapshot-1"
    assert {path.parent.name for path in snapshot.glob("nodes/*/node.json")} == {"node-a", "node-b"}
    assert "rank 1" in taken.stderr


def test_mp_spawn_in_an_interpreter_without_hangscope(start: Starter, tmp_path: Path) -> None:
    """Spawned ranks say themselves which rank they are, in a virtual environment that knows nothing of hangscope.

    The stall ends by itself: it is captured once, the job goes on, and its status is its own.
    """
    pythons = {}
    for name, extra in (("tool", [str(SOURCE)]), ("job", [])):
        venv.create(tmp_path / name, with_pip=False, symlinks=True)
        [site] = (tmp_path / name).glob("lib/python*/site-packages")
        (site / "shared.pth").write_text("\n".join([*extra, sysconfig.get_path("purelib")]) + "\n")
        pythons[name] = tmp_path / name / "bin" / "python"
    incident = tmp_path / "incident"
    store = f"file://{tmp_path}/store"
    job = (pythons["job"], TRAIN, "--spawn", "2", "--store", store, "--fault", "pause", "--steps", "130")
    words = ("-m", "hangscope", "run", "--dir", incident, "--stall-after", "3", "--node", "n", "--")
    started = start(pythons["tool"], *words, *job, PYTHONPATH="")
    assert started.wait(90) == 0
    assert started.out.count("step") == 260
    assert len(re.findall("saving what every rank is doing", started.err)) == 1
    assert re.search(f"PAUSE, not a hang.*; the evidence is in {incident}", started.err)
    verdict = json.loads((incident / "verdict.json").read_text())
    assert [each["rank"] for each in verdict["culprits"]] == [1]
    assert (verdict["outcome"], verdict["hang"]) == ("pause", False)
    assert "time.sleep" in TRAIN.read_text().splitlines()[line_of(incident) - 1]


def line_of(incident: Path) -> int:
    """The line of train.py in which rank 1's main thread was."""
    [stack] = incident.glob("nodes/*/stacks/rank_1.1.txt")
    match = re.search(r"go_wrong \(\S*train\.py:(\d+)\)", stack.read_text())
    assert match is not None
    return int(match[1])


def test_a_healthy_job_is_the_same_with_and_without_hangscope(start: Starter, tmp_path: Path) -> None:
    """The same lines on stdout and stderr but for one that says who is watched, the same exit status, no incident."""
    job = (*TORCHRUN, TRAIN, "--steps", "15")
    plain = start(*job)
    assert plain.wait(60) == 0
    watched = start.run(tmp_path / "i", *job, options=("--stall-after", "3"))
    assert watched.wait(60) == 0
    assert sorted(watched.out.splitlines()) == sorted(plain.out.splitlines())
    assert (watched.err, plain.err) == ("hangscope: watching 2 of 2 ranks from outside\n", "")
    assert not (tmp_path / "i").exists()


def test_training_goes_on_when_the_agent_is_killed(start: Starter, tmp_path: Path) -> None:
    """SIGKILL of hangscope in the middle of a torchrun job: every rank finishes every step, and its output arrives."""
    started = start.run(tmp_path / "i", *TORCHRUN, TRAIN, "--steps", "50")
    started.until(lambda: "rank 1 step 10" in started.out, 60, "training")
    started.process.kill()
    started.process.wait()
    started.until(lambda: not started.processes(), 60, "end of the job")
    for rank in (0, 1):
        assert f"rank {rank} step 49\n" in started.out
    assert "Traceback" not in started.err


def test_a_failing_job_keeps_its_status(start: Starter, tmp_path: Path) -> None:
    """All ranks exit with 3 together, as some scripts end: torchrun's own status comes out."""
    job = (*TORCHRUN, TRAIN, "--steps", "15", "--status", "3")
    started = start.run(tmp_path / "i", *job, options=("--no-diagnose",))
    assert started.wait(60) == 1
    assert "ChildFailedError" in started.err


def test_the_demo_ends_in_a_verdict_within_a_minute(tmp_path: Path) -> None:
    """From the command to the rank, its code line and the operation that the others wait in."""
    begun = time.monotonic()
    done = hangscope("demo", "--dir", tmp_path / "demo")
    assert time.monotonic() - begun < 60
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("HANG   rank 2 is in wait_for_storage (train.py:")
    assert "never launched all_reduce #12" in " ".join(done.stdout.split()).replace("confidence: high ", "")
    assert "step 11" in done.stderr
