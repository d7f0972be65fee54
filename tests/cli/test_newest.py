"""A directory of several runs, where a run is meant: the newest, and stderr says which."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
HANGSCOPE = [str(Path(sys.executable).with_name("hangscope"))]


def hangscope(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "HANGSCOPE_DIR"}
    return subprocess.run([*HANGSCOPE, *map(str, words)], cwd=cwd, env=environ, capture_output=True, text=True)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """hangscope/ with an incident of each of three jobs, job-2 captured last."""
    for number, (job, day) in enumerate((("job-1", 14), ("job-2", 16), ("job-3", 15))):
        folder = tmp_path / "hangscope" / job
        shutil.copytree(TESTS / "incidents" / ("exit", "sleep", "kill")[number], folder)
        for name in ("truth.json", "verdict.json", "verdict.txt"):
            (folder / name).unlink(missing_ok=True)
        for path in [folder / "incident.json", *folder.glob("nodes/*/node.json")]:
            value = json.loads(path.read_text())
            value.update(job=job, captured_at=f"2026-11-{day}T03:57:12Z")
            path.write_text(json.dumps(value))
    return tmp_path


@pytest.mark.parametrize(
    "words", [["diagnose", "hangscope/"], ["report", "hangscope/", "-o", "out.txt"], ["show", "hangscope"]]
)
def test_the_newest_job_is_read_and_named(runs: Path, words: list[str]) -> None:
    """As the README says it, with three jobs there: the answer is the newest one's, and how to get another is said."""
    done = hangscope(*words, cwd=runs)
    assert done.returncode in (0, 1, 3)
    assert "the newest of 3 jobs: hangscope/job-2" in done.stderr and "--job" in done.stderr
    if words[0] == "diagnose":
        assert done.stdout == hangscope("diagnose", "hangscope/job-2", cwd=runs).stdout


def test_a_bundle_of_a_directory_of_runs_is_that_of_the_newest(runs: Path) -> None:
    """Its name goes to stdout, and stderr says of which job it is."""
    done = hangscope("bundle", "hangscope", cwd=runs)
    assert done.returncode == 0
    assert done.stdout.strip().endswith("job-2.bundle.tar.gz")
    assert "the newest of 3 jobs" in done.stderr


def test_what_is_no_directory_of_runs_is_never_chosen_from(runs: Path) -> None:
    """With --job that job; where files beside the incidents are of a job too, or two paths are given, none."""
    other = hangscope("diagnose", "hangscope", "--job", "job-1", cwd=runs)
    assert other.returncode in (0, 1, 3) and "newest" not in other.stderr
    both = hangscope("diagnose", "hangscope/job-1", "hangscope/job-2", cwd=runs)
    assert both.returncode == 2 and "newest" not in both.stderr


def _status(folder: Path, job: str, age_s: float) -> None:
    node = folder / "nodes" / "n1"
    node.mkdir(parents=True)
    row = {"schema": "hangscope.status/1", "node": "n1", "job": job, "attempt": "0", "ended": True, "ranks": []}
    (node / "status.json").write_text(json.dumps(row))
    os.utime(node / "status.json", (time.time() - age_s,) * 2)


def test_watch_and_snapshot_take_the_newest_run(tmp_path: Path) -> None:
    """`watch hangscope/` shows it; bare `snapshot` finds ./hangscope and fails only because its ranks are gone."""
    _status(tmp_path / "hangscope" / "old", "old", 5000)
    _status(tmp_path / "hangscope" / "new" / "0", "new", 50)
    shown = hangscope("watch", "hangscope/", "--once", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "the newest of 2 runs: hangscope/new/0" in shown.stderr
    assert "new" in shown.stdout
    taken = hangscope("snapshot", cwd=tmp_path)
    assert taken.returncode == 2
    assert "the newest of 2 runs: hangscope/new/0" in taken.stderr
    assert "not a directory of" not in taken.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize(
    ("verb", "cure"),
    [("snapshot", "sudo hangscope snapshot {}"), ("attach", "the same command with `sudo`"), ("watch", "with `sudo`")],
)
def test_a_process_of_another_user_is_said_to_be_one(verb: str, cure: str) -> None:
    """That it may not be read, and what helps; not that it is no rank."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        as_other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *HANGSCOPE, verb]
        at_home = {**os.environ, "HOME": "/"}  # root's own settings are not theirs to read
        done = subprocess.run([*as_other, str(process.pid)], cwd="/", capture_output=True, text=True, env=at_home)
    finally:
        process.kill()
        process.wait()
    if "Permission denied" in done.stderr:
        pytest.skip("this checkout cannot be read by others")
    assert done.returncode == 2
    assert f"{process.pid}: a process of root, which this user may not read" in done.stderr
    assert cure.format(process.pid) in done.stderr
