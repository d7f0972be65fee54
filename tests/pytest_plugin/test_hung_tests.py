"""`pytest --hangscope`: real tests that hang, run by a pytest of their own, and what their failures say."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from kits.processes_of import end_all, processes_with

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.jobs, pytest.mark.xdist_group("pytest_plugin")]

SUITE = Path(__file__).with_name("suite.py")
SOURCE = Path(__file__).parents[2] / "src"
BY_NAME = ("-p", "hangscope.pytest_plugin.plugin")
INSTALLED = any(each.name == "hangscope" for each in entry_points(group="pytest11"))
PLUGIN = () if INSTALLED else BY_NAME
"""A checkout that was installed before the plugin came has no entry point yet."""
LIMIT_S = 3
WAIT_S = 400
LINE = "rank 1 is in stuck_in_loader (suite.py:13)"


@dataclass
class Run:
    """One run of the suite by a pytest of its own."""

    process: subprocess.Popen[str]
    folder: Path
    mark: str

    def output(self) -> str:
        try:
            self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running:\n{(self.folder / 'out').read_text()[-3000:]}")
        return (self.folder / "out").read_text()

    def properties(self) -> dict[str, str]:
        root = ElementTree.parse(self.folder / "junit.xml")
        return {each.attrib["name"]: each.attrib["value"] for each in root.iter("property")}

    def failure(self) -> str:
        root = ElementTree.parse(self.folder / "junit.xml")
        return "".join(each.text or "" for kind in ("failure", "error") for each in root.iter(kind))


def start(folder: Path, name: str, *words: str, torchrun: bool = False) -> Run:
    place = folder / name
    place.mkdir()
    head = [sys.executable, "-m"]
    if torchrun:
        head += ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    common = ["pytest", *PLUGIN, "--hangscope", "--hangscope-dir", str(place / "hangs"), "-p", "no:cacheprovider"]
    (place / "pytest.ini").write_text("[pytest]\ntimeout_func_only = true\n")
    common += ["-p", "no:hypothesispytest", "-q", f"--rootdir={place}", "-c", str(place / "pytest.ini")]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "HANGSCOPE"))}
    environ = {**inherited, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "HANGSCOPE_TEST": str(place)}
    with (place / "out").open("w") as out:
        process = subprocess.Popen(
            [*head, *common, *words],
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            env=environ,
            cwd=place,
            text=True,
        )
    return Run(process, place, str(place))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """All of them at once: most of what they do is wait."""
    folder = tmp_path_factory.mktemp("hung")
    limit = f"--timeout={LIMIT_S}"
    junit = {name: f"--junitxml={folder}/{name}/junit.xml" for name in ("spawned", "own", "worker")}
    made = {
        "spawned": start(folder, "spawned", limit, junit["spawned"], f"{SUITE}::test_spawned_ranks"),
        "ranks": start(folder, "ranks", limit, f"{SUITE}::test_as_a_rank", torchrun=True),
        "worker": start(
            folder,
            "worker",
            limit,
            "--timeout-method=thread",
            "-n1",
            "--max-worker-restart=0",
            junit["worker"],
            f"{SUITE}::test_no_ranks",
        ),
        "own": start(
            folder,
            "own",
            "-p",
            "no:timeout",
            "--hangscope-timeout=3",
            junit["own"],
            f"{SUITE}::test_that_is_quick",
            f"{SUITE}::test_no_ranks",
        ),
    }
    yield made
    for run in made.values():
        end_all(run.mark)
        run.process.wait()


def test_the_verdict_is_in_the_failure_and_in_the_properties(runs: dict[str, Run]) -> None:
    """Ranks of mp.spawn below pytest: rank, line and confidence, in the text and in JUnit's file; pytest-timeout's own
    sentence keeps its number."""
    run = runs["spawned"]
    text = run.output()
    assert LINE in text
    assert f"Timeout (>{LIMIT_S}.0s) from pytest-timeout." in text
    assert LINE in run.failure()
    found = run.properties()
    assert (found["hangscope_outcome"], found["hangscope_kind"]) == ("hang", "absent")
    assert (found["hangscope_culprits"], found["hangscope_confidence"]) == ("1", "high")
    assert (Path(found["hangscope_incident"]) / "verdict.json").exists()


def test_pytest_as_a_rank_of_torchrun(runs: dict[str, Run]) -> None:
    """Each rank's failure has the verdict on the whole job, and one of them took it for all."""
    run = runs["ranks"]
    text = run.output()
    assert text.count(LINE) >= 2, text[-4000:]
    assert len(list((run.folder / "hangs").glob("*/incident/verdict.json"))) == 1


def test_a_test_that_takes_its_xdist_worker_with_it(runs: dict[str, Run]) -> None:
    """pytest-timeout's thread ends the whole worker: the crash that xdist reports has the verdict."""
    run = runs["worker"]
    text = run.output()
    assert "crashed while running" in text
    assert "waits_for_nobody" in run.failure().partition("No distributed job was diagnosed")[2]
    assert run.properties() == {"hangscope_outcome": "unknown"}


def test_without_pytest_timeout_and_without_ranks(runs: dict[str, Run]) -> None:
    """hangscope's own limit ends the test and what it started; where nothing is distributed, its stacks are what is
    said, and no culprit."""
    run = runs["own"]
    text = run.output()
    assert "Timeout (>3s) from --hangscope-timeout." in text
    assert "No distributed job was diagnosed" in run.failure()
    assert "waits_for_nobody" in run.failure().partition("No distributed job")[2]
    assert run.properties() == {"hangscope_outcome": "unknown"}
    assert "1 failed, 1 passed" in text
    assert not processes_with(run.mark)


def test_off_it_loads_nothing(tmp_path: Path) -> None:
    """Without the option pytest has loaded the options alone, and starts no process."""
    (tmp_path / "test_off.py").write_text(
        "import sys\n"
        "def test_off():\n"
        "    ours = {name for name in sys.modules if name.startswith('hangscope')}\n"
        "    assert 'hangscope.pytest_plugin.plugin' in ours\n"
        "    assert not {'hangscope.pytest_plugin.hung_tests', 'hangscope.processes'} & ours\n"
        "    assert not {'numpy', 'torch', 'click', 'rich'} & set(sys.modules)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environ.pop("PYTEST_ADDOPTS", None)
    words = [sys.executable, "-m", "pytest", *BY_NAME, "-q", "-c", os.devnull, "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_a_quick_suite_costs_next_to_nothing(tmp_path: Path) -> None:
    """With the option and a limit two hundred empty tests pass as they do without, and the watcher ends with them."""
    (tmp_path / "test_many.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(200))\ndef test_one(n):\n    assert n >= 0\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "HANGSCOPE_TEST": str(tmp_path)}
    environ.pop("PYTEST_ADDOPTS", None)
    words = [sys.executable, "-m", "pytest", *PLUGIN, "--hangscope", "--hangscope-timeout=60", "-q", "-c", os.devnull]
    done = subprocess.run(
        [*words, "-p", "no:cacheprovider", str(tmp_path)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
    )
    assert "200 passed" in done.stdout, done.stdout + done.stderr
    assert not (tmp_path / "hangscope").exists()
    until = time.monotonic() + 20
    while processes_with(str(tmp_path)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not processes_with(str(tmp_path))


def test_a_limit_that_is_none_is_an_error(tmp_path: Path) -> None:
    """It is said before any test runs."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nhangscope = true\nhangscope_timeout = soon\n")
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGIN, "-q"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
    )
    assert done.returncode == 4
    assert "hangscope_timeout = soon: not a number of seconds" in done.stderr


def test_the_wheel_brings_the_plugin() -> None:
    """pytest finds it by itself, under the name by which `-p no:hangscope` leaves it out."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nhangscope = "hangscope.pytest_plugin.plugin"' in text
