"""`--engine ray` on a real cluster of two nodes: the same verdicts, from shared paths, paths of one node and URLs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.errors import HangscopeError
from hangscope.reader.load import load
from hangscope.report.export import to_dict
from hangscope.simulate import random_spec, simulate
from kits.recorded import CASES, all_cases

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]  # one cluster for all

SIMULATED = int(os.environ.get("HANGSCOPE_RAY_JOBS", "20"))
LARGEST = 64
"""Ranks: thousands of small files take their time, and show nothing new."""
SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    """Two nodes of two workers' cores each, and a driver that is connected to them."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = f"{SOURCE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    started.add_node(num_cpus=1)
    ray.init(address=started.address, log_to_driver=False, logging_level="ERROR")
    from hangscope.cluster.ray_engine import RayEngine

    yield RayEngine()
    ray.shutdown()
    started.shutdown()


def verdict(path: Path, engine: object = None) -> dict[str, object]:
    try:
        return to_dict(diagnose(load([path], engine=engine)))  # type: ignore[arg-type]
    except HangscopeError as error:
        return {"error": str(error)}


def test_recorded_cases_have_the_same_verdict(cluster: object) -> None:
    """Every recorded case, with its logs, stacks and rosters, is judged on Ray to the letter as it is here."""
    for case in all_cases():
        assert verdict(CASES / case, cluster) == verdict(CASES / case), case


def test_simulated_jobs_have_the_same_verdict(cluster: object, tmp_path: Path) -> None:
    """So are simulated jobs of all layouts, faults and formats; HANGSCOPE_RAY_JOBS=200 makes it that many."""
    specs = (spec for seed in count() if (spec := random_spec(seed)).ranks <= LARGEST)
    for spec in islice(specs, SIMULATED):
        job = tmp_path / str(spec.seed)
        simulate(spec).write(job)
        assert verdict(job, cluster) == verdict(job), spec.seed


def test_a_path_of_one_node_is_read_there(cluster: object) -> None:
    """``NODE:/path`` is listed and read on that node, and what it says names the node."""
    import ray

    node = next(each["NodeManagerHostname"] for each in ray.nodes())
    found = diagnose(load([f"{node}:{CASES / 'skipped'}"], engine=cluster))  # type: ignore[arg-type]
    here = diagnose(load([CASES / "skipped"]))
    assert (found.kind, found.culprits, found.confidence) == (here.kind, here.culprits, here.confidence)
    assert found.evidence[0].sources[0].file.startswith(f"{node}:/")


def test_a_url_is_read_by_the_tasks(cluster: object) -> None:
    """What fsspec can list is read as if it lay on a disk."""
    found = diagnose(load([f"file://{CASES / 'mesh_absent'}"], engine=cluster))  # type: ignore[arg-type]
    here = diagnose(load([CASES / "mesh_absent"]))
    assert (found.kind, found.culprits, found.operation) == (here.kind, here.culprits, here.operation)


@pytest.mark.parametrize("path", ["no-such-node:/tmp", "/no/such/path", "nosuch://bucket/job"])
def test_what_is_not_there_is_said(cluster: object, path: str) -> None:
    """A node, a path or a store that does not exist is an error of hangscope's own, with a cure."""
    with pytest.raises(HangscopeError) as raised:
        load([path], engine=cluster)  # type: ignore[arg-type]
    assert raised.value.hint


def test_the_command_line_asks_the_cluster(cluster: object) -> None:
    """`hangscope diagnose --engine ray` prints the same JSON as without."""
    import ray

    words = [sys.executable, "-m", "hangscope", "diagnose", str(CASES / "skipped"), "--json"]
    address = ray.get_runtime_context().gcs_address
    far = subprocess.run([*words, "--engine", "ray", "--ray-address", address], capture_output=True, text=True)
    here = subprocess.run(words, capture_output=True, text=True)
    assert (far.returncode, json.loads(far.stdout)) == (here.returncode, json.loads(here.stdout)), far.stderr
    assert not far.stderr


def test_without_ray_the_cure_is_said(tmp_path: Path) -> None:
    """Where Ray is not installed, `--engine ray` names the extra to install."""
    (tmp_path / "ray.py").write_text("raise ImportError('none here')")
    words = [sys.executable, "-m", "hangscope", "diagnose", str(CASES / "skipped"), "--engine", "ray"]
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"}
    done = subprocess.run(words, capture_output=True, text=True, env=environ)
    assert done.returncode == 2
    assert "hangscope[ray]" in done.stderr
