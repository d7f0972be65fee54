"""How a job comes together and how it ends: ranks that never came, that look elsewhere, that linger, that Ray ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangscope.recorder.agent.lingering_ranks import LingeringRanks
from hangscope.recorder.agent.never_seen import elsewhere, is_own_machine, one_rank_a_run
from hangscope.recorder.agent.startup_report import StartupReport
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.watched_rank import LEAVES_S, WatchedRank
from hangscope.recorder.process import linux_process
from hangscope.recorder.rundir.run_directory import PeerAgent, sees_all

from .conftest import SOURCE, Started, Starter, free_port

torch = pytest.mark.torch
SCRIPTS = Path(__file__).parents[2] / "live_scripts"
LINGERS = Path(__file__).with_name("lingers.py")


def agent(node: str, ranks: tuple[int, ...], nodes: int | None = None, **meets_at: str) -> PeerAgent:
    places = tuple((rank, meets_at.get(f"r{rank}", "")) for rank in ranks)
    return PeerAgent(Path(node), node, ranks, len(ranks), 4, nodes, places, fresh=True, ended=False)


# ---- without torch ---------------------------------------------------------------------------------------------------


def test_a_job_on_all_its_nodes_is_seen_whole_though_a_rank_is_missing() -> None:
    """Where its nodes are counted, who is nowhere is missing; where not, it may be on a node that is not here."""
    assert sees_all([agent("a", (0, 1, 2), nodes=1)])
    assert sees_all([agent("a", (0, 1), nodes=2), agent("b", (2,), nodes=2)])
    assert not sees_all([agent("a", (0, 1), nodes=2)])
    assert not sees_all([agent("a", (0, 1, 2))])


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
    found = elsewhere([agent("a", tuple(range(len(places))), **{f"r{rank}": at for rank, at in enumerate(places)})])
    assert found.get("ranks") == odd


def test_which_addresses_nobody_else_can_come_to() -> None:
    """Only this machine's own say that the job has one node; and one `run` a rank never knows its neighbours."""
    assert [is_own_machine(text) for text in ("127.0.0.1", "localhost", "::1")] == [True] * 3
    assert not any(map(is_own_machine, ("", "10.0.0.1", "head-node", "127.0.0.1:29500")))
    assert one_rank_a_run({"RANK": "3"})
    assert one_rank_a_run({"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "1"})
    assert not one_rank_a_run({"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"})


def sleeper(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words or ("sleep", "60"))


def test_a_rank_that_stays_behind_is_said_once() -> None:
    """Long after the others ended with 0, if it uses no CPU; after a failure there is other trouble to tell of."""
    done, stays = sleeper("true"), sleeper()
    try:
        ranks = [WatchedRank.of(RankProcess(each.pid, number)) for number, each in enumerate((done, stays))]
        leaving = LingeringRanks()
        while not ranks[0].note_end():
            done.poll()
            time.sleep(0.01)
        ranks[0].exit_status = 0
        assert leaving.line(ranks, 0.0) is None
        time.sleep(0.1)
        said = leaving.line(ranks, 0.01)
        assert said is not None
        assert said.startswith(f"rank 1 (pid {stays.pid}) has not ended, 0 s after rank 0 did with status 0, and does")
        assert leaving.line(ranks, 0.01) is None
        ranks[0].exit_status, again = 1, LingeringRanks()
        assert [again.line(ranks, 0.01) for _ in range(3)] == [None] * 3
    finally:
        stays.kill()
        stays.wait()


def test_a_rank_that_is_ending_has_some_seconds_for_it(tmp_path: Path) -> None:
    """Its companion took the socket away at exit. Who does that and never ends is a hang again."""
    ends = sleeper()
    try:
        (tmp_path / "s").touch()
        rank = WatchedRank.of(RankProcess(ends.pid, 0, socket=str(tmp_path / "s")))
        assert not rank.leaves(100.0)
        (tmp_path / "s").unlink()
        assert rank.leaves(100.0)
        assert rank.leaves(100.0 + LEAVES_S - 1)
        assert not rank.leaves(100.0 + LEAVES_S)
    finally:
        ends.kill()
        ends.wait()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--nnodes=2",), "torchrun was told of 2 nodes"),
        (("--nnodes", "1:4"), "torchrun was told of 1:4 nodes"),
        (("--nnodes=1",), "nothing is watched"),
    ],
)
def test_where_no_rank_starts_it_is_said_what_torchrun_waits_for(
    words: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    """It starts none before all nodes have come, which looks like a job that nobody watches."""
    (tmp_path / "torchrun").write_text("import time; time.sleep(60)")
    launcher = subprocess.Popen([sys.executable, str(tmp_path / "torchrun"), *words])
    try:
        while words[-1] not in linux_process.command_line(launcher.pid):  # empty for a moment after exec
            time.sleep(0.01)
        roll = StartupReport(environ_rank=False)
        assert roll.line([], "", 0.0, launcher.pid) is None
        assert told in (roll.line([], "", 61.0, launcher.pid) or "")
    finally:
        launcher.kill()
        launcher.wait()


# ---- real jobs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jobs(start: Starter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Path, Started]]]:
    """All at once: most of their time they wait."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("start-and-end")
    python = sys.executable
    isolated = folder / "isolated.sh"
    isolated.write_text(f'#!/bin/sh\nexec {python} -I {SCRIPTS / "frameworks.py"} "$@"\n')
    isolated.chmod(0o755)
    torchrun = (python, "-m", "torch.distributed.run", "--standalone")
    loop = "for r in {ranks}; do RANK=$r WORLD_SIZE={size} MASTER_ADDR=127.0.0.1 MASTER_PORT={port} {job} & done; wait"
    twice = loop.format(ranks="0 1 1", size=3, port=free_port(), job=f"{python} {SCRIPTS / 'shapes.py'} start")
    actor = f"bash -c 'exec -a ray::Worker {python} {LINGERS} 0 --after --actor'"
    words: dict[str, tuple[str, tuple[str | Path, ...]]] = {
        "twice": ("2", ("sh", "-c", twice)),
        "backward": ("3", (*torchrun, "--nproc-per-node=3", "--no-python", isolated, "ddp", "--hang")),
        "ends slowly": ("3", (*torchrun, "--nproc-per-node=2", LINGERS, "7")),
        "stays": ("1", (*torchrun, "--nproc-per-node=2", LINGERS, "12", "--after")),
        "actors": ("9", ("sh", "-c", loop.format(ranks="0 1", size=2, port=free_port(), job=actor))),
    }
    started = {}
    for name, (threshold, command) in words.items():
        # A process of another name does not find the packages of its interpreter.
        path = os.pathsep.join((str(SOURCE), sysconfig.get_path("purelib")))
        options = ("--stall-after", threshold)
        started[name] = (folder / name, start.run(folder / name, *command, options=options, PYTHONPATH=path))
    yield started
    start.end()


def verdict(job: tuple[Path, Started]) -> tuple[str, list[int], str]:
    incident, started = job
    started.until((incident / "verdict.txt").exists, 120, "verdict")
    value = json.loads((incident / "verdict.json").read_text())
    return value["kind"], [culprit["rank"] for culprit in value["culprits"]], value["headline"]


@torch
def test_a_rank_that_never_came_is_named(jobs: dict[str, tuple[Path, Started]]) -> None:
    """Three ranks were announced, and rank 1 was started twice: rank 2 is missing, and both facts are said."""
    kind, ranks, headline = verdict(jobs["twice"])
    assert (kind, ranks) == ("absent", [2])
    assert headline == "rank 2 was never seen, and the others wait for it in init_process_group"
    text = " ".join((jobs["twice"][0] / "verdict.txt").read_text().split())
    assert re.search(r"whose world size is 3; RANK=1 is set in 2 processes, also in pid \d+", text)


@torch
@pytest.mark.skipif(os.geteuid() != 0, reason="py-spy may look at other processes' stacks as root only")
def test_a_backward_that_stands_still_is_noticed_without_a_companion(jobs: dict[str, tuple[Path, Started]]) -> None:
    """DDP waits below Python, and `python -I` has no counters: an idle backward, and where the rank stands, tell."""
    kind, ranks, headline = verdict(jobs["backward"])
    assert (kind, ranks) == ("absent", [2])
    assert headline.startswith("rank 2 is in read_batch (frameworks.py:")


@torch
def test_a_rank_that_takes_long_to_end_has_ended(jobs: dict[str, tuple[Path, Started]]) -> None:
    """Its end lasts longer than the threshold: it is waited for, and what is told is that it left."""
    kind, ranks, headline = verdict(jobs["ends slowly"])
    assert (kind, ranks) == ("dead", [1])
    assert headline == "rank 1 exited by itself with status 0 while the others went on"


@torch
def test_a_rank_that_outlives_a_finished_job_costs_a_line_and_no_incident(
    jobs: dict[str, tuple[Path, Started]],
) -> None:
    """It may upload something: where it stands is said, nothing is captured, and the status is the job's own."""
    incident, started = jobs["stays"]
    assert started.wait(120) == 0
    assert re.search(r"rank 1 \(pid \d+\) has not ended, \d+ s after rank 0 did with status 0", started.err)
    assert "upload (lingers.py:" in started.err
    assert not incident.exists()


@torch
def test_actors_that_ray_ends_after_training_are_no_failure(jobs: dict[str, tuple[Path, Started]]) -> None:
    """Ray ends its actors with status 1, also when all went well: nothing is captured."""
    incident, started = jobs["actors"]
    assert started.wait(120) == 0
    assert started.err.count("hangscope:") == 1
    assert "watching 2 of 2 ranks" in started.err
    assert not incident.exists()
