"""How a job comes together and how it ends: ranks that never came, that look elsewhere, that linger, that Ray ends."""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import SOURCE, Started, Starter, free_port

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SCRIPTS = Path(__file__).parents[2] / "live_scripts"
LINGERS = Path(__file__).with_name("lingers.py")


@pytest.fixture(scope="module")
def jobs(start: Starter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Path, Started]]]:
    """All at once: most of their time they wait."""
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


def test_a_rank_that_never_came_is_named(jobs: dict[str, tuple[Path, Started]]) -> None:
    """Three ranks were announced, and rank 1 was started twice: rank 2 is missing, and both facts are said."""
    kind, ranks, headline = verdict(jobs["twice"])
    assert (kind, ranks) == ("absent", [2])
    assert headline == "rank 2 was never seen; the others are waiting for it in init_process_group"
    text = " ".join((jobs["twice"][0] / "verdict.txt").read_text().split())
    assert re.search(r"whose world size is 3; RANK=1 is set in 2 processes, also in pid \d+", text)


@pytest.mark.skipif(os.geteuid() != 0, reason="py-spy may look at other processes' stacks as root only")
def test_a_backward_that_stands_still_is_noticed_without_a_companion(jobs: dict[str, tuple[Path, Started]]) -> None:
    """DDP waits below Python, and `python -I` has no counters: an idle backward, and where the rank stands, tell."""
    kind, ranks, headline = verdict(jobs["backward"])
    assert (kind, ranks) == ("absent", [2])
    assert headline.startswith("rank 2 is in read_batch (frameworks.py:")


def test_a_rank_that_takes_long_to_end_has_ended(jobs: dict[str, tuple[Path, Started]]) -> None:
    """Its end lasts longer than the threshold: it is waited for, and what is told is that it left."""
    kind, ranks, headline = verdict(jobs["ends slowly"])
    assert (kind, ranks) == ("dead", [1])
    assert headline == "rank 1 exited by itself with status 0 while the others continued"


def test_a_rank_that_outlives_a_finished_job_costs_a_line_and_no_incident(
    jobs: dict[str, tuple[Path, Started]],
) -> None:
    """It may upload something: where it stands is said, nothing is captured, and the status is the job's own."""
    incident, started = jobs["stays"]
    assert started.wait(120) == 0
    assert re.search(r"rank 1 \(pid \d+\) still runs \d+ s after rank 0 exited with status 0", started.err)
    assert "upload (lingers.py:" in started.err
    assert not incident.exists()


def test_actors_that_ray_ends_after_training_are_no_failure(jobs: dict[str, tuple[Path, Started]]) -> None:
    """Ray ends its actors with status 1, also when all went well: nothing is captured."""
    incident, started = jobs["actors"]
    assert started.wait(120) == 0
    assert started.err.count("hangscope:") == 1
    assert "watching 2 of 2 ranks" in started.err
    assert not incident.exists()
