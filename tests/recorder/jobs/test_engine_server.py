"""An engine's server of three kinds of processes: its workers are the ranks, by their engine's names.

The API server and the engine core are shown and never accused. `tests/live_scripts/engine_server.py` plays it to the
real plugin.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hangscope.processes.programs import py_spy
from hangscope.recorder.setup import blackbox_library
from native.blackbox_build import COMPILER

from .conftest import Started, Starter

PYTHON = getattr(sys, "_base_executable", sys.executable)
"""One in which there is no torch."""
SERVER = Path(__file__).parents[2] / "live_scripts" / "engine_server.py"
OPTIONS = ("--stall-after", "6")
pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(
        blackbox_library.library() is None or COMPILER is None, reason="the black box was not built here"
    ),
]
WORDS: dict[str, tuple[str, ...]] = {
    "one": ("sleep",),
    "replicas": ("sleep", "--workers", "3", "--replicas", "2", "--seconds", "90"),
    "healthy": ("healthy", "--engine", "sglang", "--seconds", "12"),
    "idle": ("idle", "--seconds", "12"),
}


@pytest.fixture(scope="module")
def servers(start: Starter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Started, Path]]]:
    """All at once: they mostly wait."""
    folder = tmp_path_factory.mktemp("engines")
    yield {
        name: (start.run(folder / name, PYTHON, SERVER, *words, options=OPTIONS), folder / name)
        for name, words in WORDS.items()
    }
    start.end()


def verdict_of(server: tuple[Started, Path]) -> dict[str, Any]:
    started, incident = server
    file = incident / "verdict.json"
    started.until(file.exists, 90, "verdict")
    return dict(json.loads(file.read_text()))


def test_a_worker_that_hangs_is_named_as_its_engine_does(servers: dict[str, tuple[Started, Path]]) -> None:
    """Its role, its pid and its line, in the verdict, on the terminal and in the line that says what stalls."""
    verdict = verdict_of(servers["one"])
    (culprit,) = verdict["culprits"]
    assert culprit["rank"] == 2
    assert culprit["role"]["says"] == "TP rank 2 of the engine (Worker_TP2)"
    assert culprit["pid"] and culprit["where"]["function"] == "schedule_requests"
    assert verdict["headline"].startswith("rank 2 (Worker_TP2) is in schedule_requests")
    assert verdict["confidence"] == "medium"
    said = servers["one"][0].err
    assert "vLLM calls them Worker_TP0, Worker_TP1, Worker_TP2, Worker_TP3" in said
    assert re.search(r"rank \d \(Worker_TP\d\): AllReduce #20 unfinished", said)


def test_processes_that_are_no_ranks_are_shown_and_never_accused(servers: dict[str, tuple[Started, Path]]) -> None:
    """The API server and the engine core have their stacks, and are in no list of ranks."""
    verdict = verdict_of(servers["one"])
    others = {each["role"]["name"]: each["pid"] for each in verdict["engine"]["others"]}
    assert set(others) == {"APIServer", "EngineCore_DP0"}
    assert sorted(verdict["engine"]["roles"]) == ["0", "1", "2", "3"]
    assert verdict["completeness"]["ranks"] == 4
    if py_spy() is not None:
        tree = stacks_of(servers["one"][1])
        assert {each["role"]: each["frames"][-1]["name"] for each in tree["others"]} == {
            "APIServer": "wait_for_requests",
            "EngineCore_DP0": "step_workers",
        }


def test_the_same_worker_of_another_replica_is_not_confused_with_it(servers: dict[str, tuple[Started, Path]]) -> None:
    """Two engines whose workers both count from 0: of the six, TP rank 2 of the second one is accused."""
    verdict = verdict_of(servers["replicas"])
    (culprit,) = verdict["culprits"]
    assert culprit["role"]["says"] == "TP rank 2 of the engine (Worker_TP2 of EngineCore_DP1)"
    assert culprit["rank"] == 5
    assert "EngineCore_DP1" in verdict["headline"] and "ranks 3, 4 launched it" in verdict["why"][0]["text"]


@pytest.mark.parametrize("name", ["healthy", "idle"])
def test_a_server_that_is_well_stays_silent(name: str, servers: dict[str, tuple[Started, Path]]) -> None:
    """With requests, and without: an API server that waits is idle."""
    started, incident = servers[name]
    assert started.wait(90) == 0
    assert not (incident / "stall.json").exists()
    assert "HANG" not in started.err


@pytest.mark.skipif(py_spy() is None, reason="py-spy is not installed")
def test_a_snapshot_of_a_server_that_runs_alone_finds_its_workers(start: Starter, tmp_path: Path) -> None:
    """Neither RANK nor a companion: the workers go by their titles, below the server's pid or beside one of theirs."""
    plugin = str(blackbox_library.library())
    words = ("sleep", "--engine", "sglang", "--replicas", "2", "--workers", "2")
    server = start(PYTHON, SERVER, *words, NCCL_PROFILER_PLUGIN=plugin)
    server.until(lambda: "serving as pid" in server.out, 30, "the server")
    (pid,) = re.findall(r"serving as pid (\d+)", server.out)
    given = [sys.executable, "-m", "hangscope", "snapshot", pid, "--dir", str(tmp_path / "it")]
    done = subprocess.run(given, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1, 3), done.stderr
    roles = json.loads((tmp_path / "it" / "verdict.json").read_text())["engine"]["roles"]
    assert {rank: role["name"] for rank, role in roles.items()} == {
        "0": "scheduler_DP0_TP0",
        "1": "scheduler_DP0_TP1",
        "2": "scheduler_DP1_TP0",
        "3": "scheduler_DP1_TP1",
    }


def stacks_of(incident: Path) -> dict[str, Any]:
    words = [sys.executable, "-m", "hangscope", "stacks", "--saved", "--json", str(incident)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    return dict(json.loads(done.stdout))
