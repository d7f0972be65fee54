"""The forge's workflows, as far as they can be held without the forge: what they call is there; they may do little."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAY_WRITE = {
    ("site.yml", "push"): {"contents"},
    ("release.yml", "publish"): {"id-token", "attestations", "contents"},
}
"""The only jobs that have more than the right to read."""


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]


def commands(path: Path) -> str:
    """Everything that a workflow has a shell do."""
    return "\n".join(step["run"] for job in jobs(path).values() for step in job["steps"] if "run" in step)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_by_its_hash(path: Path) -> None:
    """What others may change under a tag's name is not run: an action goes by its commit, its version beside it."""
    used = re.findall(r"uses: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []
    for line in re.findall(r"pip install (.*)", commands(path)):
        assert line.startswith("--require-hashes -r ")


def test_an_action_has_one_version() -> None:
    """All workflows use the same release of an action."""
    used = {one for path in WORKFLOWS for one in re.findall(r"uses: (\S+)", path.read_text(encoding="utf-8"))}
    assert len(used) == len({one.partition("@")[0] for one in used})


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_has_the_rights_it_needs_and_no_more(path: Path) -> None:
    """All may read the code; who may write is listed here, publishing waits for a person, and no password is kept."""
    text = path.read_text(encoding="utf-8")
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    assert "secrets." not in text
    for name, job in jobs(path).items():
        granted = job.get("permissions", {})
        assert {right for right, how in granted.items() if how == "write"} == MAY_WRITE.get((path.name, name), set())
        assert "id-token" not in granted or job["environment"] == "release"
        assert job["timeout-minutes"] <= 60
        installs = [
            step["run"] for step in job["steps"] if re.search(r"\b(pip|make|npm|apt-get)\b", step.get("run", ""))
        ]
        assert not (granted and installs), "who may write installs nothing, and builds nothing"
        for step in job["steps"]:
            if "checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_calls_exists(path: Path) -> None:
    """Every target of the Makefile, every script and every file that a workflow names is in the repository."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    said = commands(path)
    targets = [word for line in re.findall(r"\bmake ([a-z -]+)", said) for word in line.split()]
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
    files = re.findall(r"(?<![\w/])((?:\.ci|\.github|release|docs)/[\w./-]+|[A-Z]+\.md)", said)
    assert [name for name in files if not (ROOT / name).is_file()] == []
    assert all(os.access(ROOT / name, os.X_OK) for name in files if name.startswith(".ci/"))
    assert targets or files


def test_what_the_publishing_job_runs_runs(tmp_path: Path) -> None:
    """The bill of materials lists what lies in dist with its checksums; notes are a version's part of the changelog."""
    for name in ("hangscope-0.1.0-py3-none-any.whl", "hangscope-0.1.0.tar.gz"):
        (tmp_path / name).write_bytes(b"x")
    script = [sys.executable, str(ROOT / "release" / "bill_of_materials.py")]
    subprocess.run([*script, str(tmp_path), "--out", str(tmp_path / "bill.json")], check=True, timeout=60)
    bill = yaml.safe_load((tmp_path / "bill.json").read_text())
    component = bill["metadata"]["component"]
    assert (bill["bomFormat"], component["version"], len(component["components"])) == ("CycloneDX", "0.1.0", 2)
    assert {"numpy", "click", "rich", "jinja2"} <= {part["name"] for part in bill["components"]}
    notes = [sys.executable, str(ROOT / "release" / "release_notes.py")]
    version = re.findall(r"^## \[(.+)\].*\n\n(?!## )", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    done = subprocess.run([*notes, version], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(f"# hangscope {version}\n\n### ")
    assert not re.search(r"^## ", done.stdout, re.MULTILINE)
    done = subprocess.run([*notes, "v9.9.9"], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "says nothing about 9.9.9" in done.stderr) == (1, True)


def test_what_builds_the_wheels_is_pinned_with_all_that_it_needs() -> None:
    """Every line of the builder's requirements names one release and its checksum."""
    lines = (ROOT / ".github" / "tools" / "cibuildwheel.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    assert [line for line in pinned if not re.fullmatch(r"[\w-]+==[\d.]+ --hash=sha256:[0-9a-f]{64}", line)] == []
    assert any(line.startswith("cibuildwheel==") for line in pinned)
