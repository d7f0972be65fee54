"""What is done about a hang, and what is announced, where a job runs on two nodes that share a directory."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from .conftest import Started, Starter, free_port

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PAUSING = Path(__file__).with_name("pausing.py")


def two_nodes(start: Starter, incident: Path, *words: str, options: tuple[str, ...]) -> list[Started]:
    """Plain Python, one rank a node, each under a `run` of its own."""
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    return [
        start.run(
            incident,
            *(sys.executable, PAUSING, *words),
            options=("--node", f"node-{name}", "--job", "j", *options),
            RANK=str(rank),
            **world,
        )
        for rank, name in enumerate("ab")
    ]


@pytest.fixture(scope="module")
def jobs(start: Starter, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Started]]]:
    """Both at once: they mostly wait."""
    folder = tmp_path_factory.mktemp("nodes")
    told = f"echo $HANGSCOPE_CULPRITS >> {folder}/told"
    kill = ("--stall-after", "4", "--on-hang", "kill", "--on-hang", told, "--grace", "2", "--kill-after", "6")
    hung = two_nodes(start, folder / "hung", "--hang-at", "20", options=kill)
    # Rank 0 announces its pause; rank 1, on the other node, is the one that is seen to wait.
    words = ("--announce-at", "30", "--seconds", "10", "--steps", "40")
    announced = two_nodes(start, folder / "announced", *words, options=("--stall-after", "4"))
    return {"hung": (folder / "hung", hung), "announced": (folder / "announced", announced)}


def test_a_hung_job_is_ended_on_both_nodes_once_the_evidence_is_safe(
    jobs: dict[str, tuple[Path, list[Started]]],
) -> None:
    """Each agent ends its own rank, and only once, unless it is gone with its peer; the command is told once."""
    incident, runs = jobs["hung"]
    assert [started.wait(90) for started in runs] == [75, 75]  # also where Gloo raised before we ended its rank
    for number, started in enumerate(runs):
        said = re.findall(r"--on-hang kill: rank (.*) gets SIGTERM", started.err)
        assert said == [str(number)] or (said == [] and number == 0)
        assert started.err.count("saving what every rank is doing") == 1
    verdict = json.loads((incident / "verdict.json").read_text())
    assert (verdict["outcome"], [(each["rank"], each["node"]) for each in verdict["culprits"]]) == (
        "hang",
        [(1, "node-b")],
    )
    assert verdict["completeness"]["dumps"] == verdict["completeness"]["stacks"] == 2
    assert (incident.parent / "told").read_text() == "1\n"
    assert not (incident / "hang-2").exists()


def test_the_last_line_is_the_verdict_on_each_node(jobs: dict[str, tuple[Path, list[Started]]]) -> None:
    """Also on the node that gave none: of a pod's output its status keeps the end."""
    incident, runs = jobs["hung"]
    assert [started.wait(90) for started in runs] == [75, 75]
    headline = json.loads((incident / "verdict.json").read_text())["headline"]
    for started in runs:
        last = started.err.splitlines()[-1]
        assert last.startswith(f"hangscope: the hang (absent): {headline}; node node-b; confidence: ")


def test_a_pause_that_one_node_announces_holds_on_the_other(jobs: dict[str, tuple[Path, list[Started]]]) -> None:
    """The rank that waits is on another node than the one that said why: nothing is captured on either."""
    incident, runs = jobs["announced"]
    for started in runs:
        assert started.wait(90) == 0
        assert "saving what every rank is doing" not in started.err
    assert runs[0].out == f"result {2 * sum(range(40))}\n"
    assert not incident.exists()
