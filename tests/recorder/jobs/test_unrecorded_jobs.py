"""Hangs that leave no unfinished operation, ranks that nobody told us about, and jobs that only look stuck."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import SOURCE, Started, Starter, free_port, node_file

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

STUCK = Path(__file__).parents[2] / "live_scripts" / "stuck.py"
THRESHOLD_S = 4.0
RANKS = 3
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")


class Job:
    """One job under `hangscope run`."""

    def __init__(self, start: Starter, incident: Path, *words: str | Path, options: tuple[str, ...] = ()) -> None:
        self.incident = incident
        chosen = options or ("--stall-after", str(THRESHOLD_S))
        # Workers of a restarted job find the store of the attempt before otherwise, and Gloo hangs in it (torch 2.13).
        self.started: Started = start.run(incident, *words, options=chosen, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")

    def fault_at(self) -> float:
        found = self.started.until(lambda: re.findall(r"fault at ([\d.]+)", self.started.out), 90, "fault")
        return float(found[-1])

    def noticed_after(self, incident: Path | None = None) -> float:
        """Seconds from the fault to the decision to capture."""
        mark = (incident or self.incident) / "stall.json"
        self.started.until(mark.exists, 60, "stall")
        return float(json.loads(mark.read_text())["at"]) - self.fault_at()

    def verdict(self, incident: Path | None = None) -> dict[str, Any]:
        file = (incident or self.incident) / "verdict.json"
        self.started.until(lambda: file.exists() and (file.with_name("verdict.txt")).exists(), 90, "verdict")
        return dict(json.loads(file.read_text()))


def hangscope(*words: str | Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "hangscope", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, env=environ)


def named(verdict: dict[str, Any]) -> tuple[str, list[int]]:
    return verdict["kind"], [culprit["rank"] for culprit in verdict["culprits"]]


# ---- hangs without an operation --------------------------------------------------------------------------------------

SILENT = ("store", "groups", "ring", "ring_reduce", "pipeline", "wrapper", "forked")


@pytest.fixture(scope="module")
def silent(start: Starter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Job]]:
    """All of them at once: they do nothing but wait."""
    folder = tmp_path_factory.mktemp("silent")
    wrapper = folder / "wrapper.sh"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH=/nowhere exec {sys.executable} {STUCK} "$@"\n')
    wrapper.chmod(0o755)
    words: dict[str, tuple[str | Path, ...]] = {name: (*TORCHRUN, STUCK, name) for name in SILENT[:5]}
    words["wrapper"] = (*TORCHRUN, "--no-python", wrapper, "store")
    words["forked"] = (sys.executable, STUCK, "ring", "--fork", str(RANKS), "--port", free_port())
    yield {name: Job(start, folder / name, *each) for name, each in words.items()}
    start.end()


@pytest.mark.parametrize("name", SILENT)
def test_a_wait_that_no_recorder_counts_is_noticed_and_the_rank_named(name: str, silent: dict[str, Job]) -> None:
    """Store, new_group, point-to-point, pipeline: within ten seconds of the threshold, whoever stands outside is it."""
    job = silent[name]
    assert named(job.verdict()) == ("absent", [2])
    assert job.noticed_after() < THRESHOLD_S + 10
    assert "wait_for_storage" in (job.incident / "verdict.txt").read_text()


def test_ranks_without_a_companion_are_said_and_watched_all_the_same(silent: dict[str, Job]) -> None:
    """A wrapper that sets PYTHONPATH loses the companion, and nobody misses it: the ranks are read from outside."""
    job = silent["wrapper"]
    job.verdict()
    assert "hangscope: watching 3 of 3 ranks from outside\n" in job.started.err
    assert all(row["server_answers"] is None for row in node_file(job.incident)["ranks"])


@pytest.mark.parametrize("name", ["store", "forked"])
def test_watched_ranks_are_counted_once(name: str, silent: dict[str, Job]) -> None:
    """Ranks of torchrun, and forked ones that only their own process can tell apart."""
    silent[name].verdict()
    assert silent[name].started.err.count("hangscope: watching 3 of 3 ranks from outside\n") == 1


# ---- jobs that the launcher ends, or begins anew ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended(start: Starter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Job]]:
    folder = tmp_path_factory.mktemp("ended")
    slow = ("--stall-after", "60")
    jobs = {
        name: Job(start, folder / name, *TORCHRUN, STUCK, fault, *more, options=slow)
        for name, fault, more in (
            ("timeout", "collective", ("--timeout", "5")),
            ("monitored", "monitored", ("--timeout", "5")),
            ("raises", "raises", ()),
            ("shape", "wrong_shape", ()),
        )
    }
    jobs["restarted"] = Job(start, folder / "restarted", *TORCHRUN, "--max-restarts=1", STUCK, "restarted")
    yield jobs
    start.end()


def test_a_group_that_times_out_before_the_threshold_names_who_did_not(ended: dict[str, Job]) -> None:
    """All others gave up and the launcher killed the rest: the one that never came is accused, by what it said last."""
    assert named(ended["timeout"].verdict()) == ("absent", [2])


def test_a_monitored_barrier_names_its_rank(ended: dict[str, Job]) -> None:
    """PyTorch's own line says who failed to pass."""
    assert named(ended["monitored"].verdict()) == ("absent", [2])


def test_a_rank_that_raises_is_not_outrun_by_the_launchers_kill(ended: dict[str, Job]) -> None:
    """The exit that the agent saw is the cause, and nobody who was killed for it is accused."""
    assert named(ended["raises"].verdict()) == ("dead", [2])
    assert "does not respond" not in (ended["raises"].incident / "verdict.txt").read_text()


def test_a_wrong_shape_accuses_nobody_who_called_as_most_did(ended: dict[str, Job]) -> None:
    """Gloo ends whoever got too much, and the launcher the rest: a mismatch, and only rank 2 alone at high."""
    verdict = ended["shape"].verdict()
    kind, ranks = named(verdict)
    assert kind == "mismatch"
    assert ranks == [2] or verdict["confidence"] != "high"


def test_a_hang_after_a_restart_is_an_incident_of_its_own(ended: dict[str, Job]) -> None:
    """The first attempt's failure and the second's hang each name their own rank; `watch` shows who runs now."""
    job = ended["restarted"]
    second = job.incident / "hang-2"
    assert named(job.verdict()) == ("dead", [2])
    assert named(job.verdict(second)) == ("absent", [0])
    assert job.noticed_after(second) < THRESHOLD_S + 10
    pids = {row["rank"]: row["pid"] for row in node_file(second)["ranks"]}
    shown = hangscope("watch", job.incident, "--once").stdout
    assert all(re.search(rf"^{rank} +\S+ +{pid} ", shown, re.MULTILINE) for rank, pid in pids.items())
    assert "exitcode" not in (second / "nodes").joinpath(node_file(second)["node"], "logs/launcher.log").read_text()


# ---- snapshots -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running(start: Starter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("running")
    never = ("--stall-after", "300")
    jobs: dict[str, Any] = {
        name: Job(start, folder / name, *TORCHRUN, STUCK, name, "--seconds", "80", options=never)
        for name in ("jitter", "slow")
    }
    jobs["quiet"] = Job(start, folder / "quiet", *TORCHRUN, STUCK, "quiet", "--seconds", "24")
    jobs["bare"] = start(*TORCHRUN, STUCK, "pipeline")
    jobs["empty"] = Job(start, folder / "empty", "sleep", "100")
    jobs["folder"] = folder
    jobs["bare"].until(lambda: "fault at" in jobs["bare"].out, 90, "fault")
    yield jobs
    start.end()


def first_word(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stderr.split()[0]


def test_a_job_that_moves_is_never_taken_for_hung(running: dict[str, Any]) -> None:
    """At any moment some rank waits for another; between two looks all got on. The pid of `run` itself will do."""
    for _ in range(2):
        assert first_word(hangscope("snapshot", str(running["jitter"].started.process.pid))) in ("OK", "SLOW")


def test_a_rank_that_is_three_times_slower_is_slow(running: dict[str, Any]) -> None:
    """Nothing hangs, and one rank keeps the others waiting."""
    done = hangscope("snapshot", running["slow"].incident)
    assert first_word(done) == "SLOW"
    assert "rank 2 keeps the others waiting" in " ".join(done.stderr.split())


def test_a_hung_job_without_run_is_told_by_its_stacks(running: dict[str, Any]) -> None:
    """No recorder, no companion: who stands outside while the others wait in a pipeline is named."""
    folder = running["folder"] / "snapshot"
    assert first_word(hangscope("snapshot", str(running["bare"].process.pid), "--dir", folder)) == "HANG"
    assert named(json.loads((folder / "verdict.json").read_text())) == ("absent", [2])


def test_a_run_without_a_rank_is_an_error(running: dict[str, Any]) -> None:
    """There is nothing to snapshot, and that is said."""
    done = hangscope("snapshot", running["empty"].incident)
    assert done.returncode == 2
    assert "its agents see no ranks" in done.stderr


def test_compute_and_a_slow_start_are_no_stall(running: dict[str, Any]) -> None:
    """Seconds of download before any call, of compute and of sleep without a collective: nothing is captured."""
    started = running["quiet"].started
    assert started.wait(90) == 0
    assert "saving" not in started.err
