"""`snapshot --ray` and `collect --ray` on a real cluster of three nodes, of jobs that know nothing of hangscope."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]

JOBS = Path(__file__).parents[1] / "live_scripts" / "ray_jobs.py"
PATIENT = {"RAY_raylet_start_wait_time_s": "120"}
"""Ray gives its own start 30 s, which a machine that is busy with other tests does not keep."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of three nodes, without a dashboard."""
    pytest.importorskip("ray")
    os.environ.update(PATIENT)
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    for _ in range(2):
        started.add_node(num_cpus=2)
    yield str(started.address)
    started.shutdown()


@contextmanager
def running(job: str, address: str, log: Path) -> Iterator[None]:
    """A job of `ray_jobs.py` whose fault is there."""
    environ = {**os.environ, "RAY_ADDRESS": address}
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, JOBS, job], env=environ, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        until = time.monotonic() + 120
        while "READY" not in log.read_text():
            assert time.monotonic() < until and process.poll() is None, log.read_text()
            time.sleep(0.2)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def hangscope(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hangscope", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def verdict(incident: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((incident / "verdict.json").read_text())
    return found


def test_the_driver_leads_to_the_actor_and_its_line(address: str, tmp_path: Path) -> None:
    """Driver, two actors that wait, and the one that they wait for; and collect brings the session's logs of it all."""
    with running("chain", address, tmp_path / "log"):
        taken = hangscope("snapshot", "--ray", address, "--dir", tmp_path / "hang")
        fetched = hangscope("collect", "--ray", address, "-o", tmp_path / "collected")
    assert taken.returncode == 0, taken.stderr
    assert taken.stdout.strip() == str(tmp_path / "hang")
    found = verdict(tmp_path / "hang")
    if any("py-spy" in gap["why"] for gap in found["gaps"]):
        pytest.skip("py-spy may not look at processes here")
    assert [actor["class"] for actor in found["actors"]] == ["Loader"]
    assert found["actors"][0]["where"]["code"] == "return os.read(read_end, 1)"
    assert sum("waits in ray.get for" in item["text"] for item in found["why"]) == 3
    assert fetched.returncode == 0, fetched.stderr
    assert list((tmp_path / "collected").rglob("cluster.json"))
    assert list((tmp_path / "collected").rglob("worker-*.err"))


def test_what_no_node_can_give_accuses_nobody(address: str, tmp_path: Path) -> None:
    """A full cluster answers too, and the wait for resources is said as such."""
    with running("starved", address, tmp_path / "log"):
        taken = hangscope("snapshot", "--ray", address, "--dir", tmp_path / "hang")
    assert taken.returncode == 0, taken.stderr
    found = verdict(tmp_path / "hang")
    assert (found["kind"], found["culprits"], found["actors"]) == ("resources", [], [])


def test_an_unknown_job_is_refused(address: str) -> None:
    """A job that the cluster does not know is an error with a hint."""
    done = hangscope("snapshot", "--ray", address, "--job", "7f000000")
    assert done.returncode == 2
    assert "knows no job 7f000000" in done.stderr


def test_where_nothing_listens_the_cure_is_said() -> None:
    """No cluster at the address: one line, and what to give instead."""
    pytest.importorskip("ray")
    done = hangscope("snapshot", "--ray", "127.0.0.1:1")
    assert done.returncode == 2
    assert "no Ray cluster answers at 127.0.0.1:1" in done.stderr
    assert "hint:" in done.stderr
