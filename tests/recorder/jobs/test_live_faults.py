"""Every way in which a rank can go wrong, with real processes: each ends in a verdict that names the rank."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import hangscope

from .conftest import Started, Starter, free_port, node_file, rank_row

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TRAIN = Path(__file__).with_name("train.py")
THRESHOLD_S = 3.0
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")


class Hang:
    """A job that went wrong under `hangscope run`, with the verdict that came."""

    def __init__(self, started: Started, incident: Path) -> None:
        self.started = started
        self.incident = incident
        started.until(lambda: (incident / "verdict.txt").exists(), 60, "verdict")
        self.verdict: dict[str, Any] = json.loads((incident / "verdict.json").read_text())
        self.culprits = [culprit["rank"] for culprit in self.verdict["culprits"]]
        at = re.search(r"fault at ([\d.]+)", started.out)
        assert at is not None
        self.seconds = (incident / "verdict.txt").stat().st_mtime - float(at[1])


@pytest.fixture
def hang(start: Starter, tmp_path: Path) -> Any:
    def make(fault: str, *, ranks: int = 2) -> Hang:
        incident = tmp_path / fault
        job = (*TORCHRUN, f"--nproc-per-node={ranks}", TRAIN, "--fault", fault)
        started = start.run(
            incident, *job, options=("--stall-after", str(THRESHOLD_S), "--job", "j1", "--attempt", "2")
        )
        return Hang(started, incident)

    yield make
    start.end()


def assert_in_time(found: Hang) -> None:
    assert found.seconds < THRESHOLD_S + 10


def test_a_rank_that_sleeps_is_named_with_its_code_line(hang: Any) -> None:
    """A rank stuck in user code is the culprit, and the verdict shows the line, in seconds and not after a timeout."""
    found = hang("sleep", ranks=3)
    assert (found.verdict["kind"], found.culprits) == ("absent", [1])
    assert "stuck_in_loader" in (found.incident / "verdict.txt").read_text()
    assert_in_time(found)
    manifest = json.loads((found.incident / "incident.json").read_text())
    assert (manifest["job"], manifest["attempt"], manifest["reason"]) == ("j1", "2", "stall")
    assert manifest["world_size"] == 3
    assert {
        f"nodes/{node_file(found.incident)['node']}/stacks/rank_{r}.{s}.txt" for r in range(3) for s in (1, 2)
    } <= set(manifest["files"])
    assert f"hangscope: the verdict on {found.incident}" in found.started.err
    page = found.incident / "verdict.html"
    found.started.until(lambda: str(page) in found.started.err, 30, "page")
    assert "stuck_in_loader" in page.read_text()


def test_a_rank_that_raises_is_named_with_its_exception(hang: Any) -> None:
    """The exception that ended a rank is the verdict, not the broken connections that its peers then saw."""
    found = hang("raise")
    assert (found.verdict["kind"], found.culprits) == ("dead", [1])
    assert "a batch that cannot be read" in (found.incident / "verdict.txt").read_text()
    assert rank_row(found.incident, 1)["exit_status"] == 1
    assert_in_time(found)


def test_a_rank_killed_with_sigkill_is_named(hang: Any) -> None:
    """Although torchrun, and not we, is its parent, the signal that ended a rank is known. What it said while it moved
    is not taken for where it ended."""
    found = hang("kill")
    assert (found.verdict["kind"], found.culprits) == ("dead", [1])
    assert rank_row(found.incident, 1)["exit_status"] == -9
    assert not list(found.incident.glob("nodes/*/dumps/last_rank_1.json"))
    assert_in_time(found)


def test_a_rank_stopped_with_sigstop_is_named(hang: Any) -> None:
    """A frozen process is told from a slow one by the kernel's own word for its state."""
    found = hang("stop")
    assert (found.verdict["kind"], found.culprits) == ("frozen", [1])
    assert rank_row(found.incident, 1)["state"] == "T"
    assert rank_row(found.incident, 1)["server_answers"] is None  # nobody asks it
    assert_in_time(found)


def test_a_rank_that_exits_cleanly_early_is_named(hang: Any) -> None:
    """Status 0 is no excuse: the others still wanted it."""
    found = hang("exit")
    assert rank_row(found.incident, 1)["exit_status"] == 0
    assert (found.verdict["kind"], found.culprits) == ("dead", [1])
    assert_in_time(found)


def test_a_rank_that_holds_the_gil_for_ever_is_named(hang: Any) -> None:
    """Nobody asks it: that one thread keeps its GIL is seen in its memory, as are its recorder and its stack."""
    found = hang("gil")
    row = rank_row(found.incident, 1)
    assert (row["server_answers"], row["python_answers"]) == (None, False)
    assert list(found.incident.glob("nodes/*/dumps/gloo_rank_1.pickle"))
    [stack] = found.incident.glob("nodes/*/stacks/rank_1.1.txt")
    assert re.match(r"# hangscope stacks rank=1 pid=\d+ sample=1 by=(py-spy|memory) at=", stack.read_text())
    assert (found.verdict["kind"], found.culprits) == ("frozen", [1])
    assert_in_time(found)


def test_a_restarted_job_keeps_its_hangs_apart(start: Starter, tmp_path: Path) -> None:
    """The launcher starts the ranks anew after a failure: the second one is an incident of its own beside the first."""
    # Killed, and not raised: over mp.spawn a rank that lost its peer may end before the one that raised, and then
    # nobody ever prints what was raised.
    job = f"{sys.executable} {TRAIN} --spawn 2 --store file://{tmp_path}/store$i --fault kill --at 30"
    loop = ("sh", "-c", f"for i in 1 2; do {job}; done; exit 9")
    started = start.run(tmp_path / "i", *loop, options=("--stall-after", str(THRESHOLD_S)))
    assert started.wait(90) == 9
    pids = []
    for incident in (tmp_path / "i", tmp_path / "i/hang-2"):
        verdict = json.loads((incident / "verdict.json").read_text())
        assert (verdict["kind"], [each["rank"] for each in verdict["culprits"]]) == ("dead", [1])
        pids.append(rank_row(incident, 1)["pid"])
    assert pids[0] != pids[1]


def test_ranks_that_never_find_each_other_are_captured(start: Starter, tmp_path: Path) -> None:
    """A job that hangs in init_process_group has recorded nothing yet; its stacks show it all the same."""
    job = (sys.executable, TRAIN)
    alone = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    options = ("--stall-after", "1", "--node", "n", "--no-diagnose")
    started = start.run(tmp_path / "i", *job, options=options, **alone)
    started.until(lambda: (tmp_path / "i" / "nodes" / "n" / "stacks" / "rank_0.2.txt").exists(), 40, "capture")
    assert re.search(r"hangscope: rank 0: init_process_group unfinished for [4-9]\.\d s; saving", started.err)
    assert "init_process_group" in (tmp_path / "i" / "nodes" / "n" / "stacks" / "rank_0.1.txt").read_text()
    start.end()


def test_counters_of_a_replayed_tree_are_sampled_at_the_start_and_at_the_stall(start: Starter, tmp_path: Path) -> None:
    """With HANGSCOPE_SYSFS the counters come from that tree, and what rose in between is in the incident."""
    port = tmp_path / "sys" / "class" / "infiniband" / "mlx5_3" / "ports" / "1"
    (port / "counters").mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "counters" / "link_downed").write_text("4\n")
    incident = tmp_path / "sleep"
    job = (*TORCHRUN, "--nproc-per-node=2", TRAIN, "--fault", "sleep")
    options = ("--stall-after", str(THRESHOLD_S), "--job", "j1")
    started = start.run(incident, *job, options=options, HANGSCOPE_SYSFS=str(tmp_path / "sys"))
    started.until(lambda: any(incident.glob("nodes/*/counters/start.json")), 30, "first sample")
    (port / "counters" / "link_downed").write_text("6\n")
    (port / "state").write_text("1: DOWN\n")
    Hang(started, incident)
    job_read = hangscope.load([incident])
    assert [(str(p), p.state, p.sampled) for p in job_read.facts.ports] == [("mlx5_3:1", "DOWN", True)]
    assert [(change.counter, change.rise) for change in job_read.facts.counters] == [("link_downed", 2)]
    start.end()
