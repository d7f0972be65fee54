"""A release in one command, in a scratch repository: what is checked, changed, tagged and undone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHANGES = (
    "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A thing that people see.\n\n## [0.1.0] - 2026-01-01\n\n- First.\n"
)


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with a version, a changelog and dependencies."""
    about = tmp_path / "src" / "hangscope" / "__about__.py"
    about.parent.mkdir(parents=True)
    about.write_text('"""The version."""\n\n__version__ = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    (tmp_path / ".gitignore").write_text("dist/\n")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\ndependencies = [\n    "numpy>=1.24",\n    "rich",\n]\n'
    )
    git(tmp_path, "init", "-q", "-b", "main")
    for key, value in (("user.name", "A"), ("user.email", "a@example.org")):
        git(tmp_path, "config", key, value)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "Begin")
    return tmp_path


def release(clone: Path, version: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "release" / "make_release.py"), version, "--root", str(clone), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_release_commits_tags_and_says_what_changed(clone: Path) -> None:
    """Version, changelog with its date, notes, bill of materials and tag come from one command; nothing is pushed."""
    done = release(clone, "0.2.0", "--without", "docs", "--without", "wheels")
    assert done.returncode == 0, done.stderr
    assert '__version__ = "0.2.0"' in (clone / "src" / "hangscope" / "__about__.py").read_text()
    changelog = (clone / "CHANGELOG.md").read_text()
    assert (
        changelog.index("## [Unreleased]") < changelog.index("## [0.2.0] - ") < changelog.index("- A thing that people")
    )
    notes = (clone / "dist" / "notes.md").read_text()
    assert notes == "# hangscope 0.2.0\n\n### Added\n\n- A thing that people see.\n"
    assert git(clone, "tag", "-l", "--format=%(contents)", "v0.2.0").strip() == notes.strip()
    assert git(clone, "log", "--format=%s").splitlines() == ["Release 0.2.0", "Begin"]
    assert git(clone, "rev-parse", "v0.2.0^{commit}") == git(clone, "rev-parse", "HEAD")
    bill = json.loads((clone / "dist" / "hangscope-0.2.0.cdx.json").read_text())
    assert [part["name"] for part in bill["components"]] == ["numpy", "rich"]
    assert bill["metadata"]["component"]["version"] == "0.2.0"


def test_what_cannot_be_released_is_refused_and_nothing_changes(clone: Path) -> None:
    """A version that is none, or not newer; a tag that is there; changes that are not committed; nothing to say."""
    git(clone, "tag", "v0.3.0")
    for version, why in (("two", "no version"), ("0.1.0", "not after"), ("0.0.9", "not after"), ("0.3.0", "already")):
        done = release(clone, version)
        assert (done.returncode, why in done.stderr) == (1, True), done.stderr
    (clone / "CHANGELOG.md").write_text(CHANGES.replace("### Added\n\n- A thing that people see.\n\n", ""))
    assert "not committed" in release(clone, "0.2.0").stderr
    git(clone, "commit", "-qam", "Say nothing")
    assert "says nothing" in release(clone, "0.2.0").stderr
    assert git(clone, "tag").split() == ["v0.3.0"]
    assert git(clone, "log", "--format=%s").splitlines() == ["Say nothing", "Begin"]


def test_a_release_whose_build_fails_is_taken_back(clone: Path) -> None:
    """Where the docs or the wheels cannot be built, commit and version are as before, and there is no tag."""
    done = release(clone, "0.2.0", "--without", "wheels")
    assert done.returncode == 1
    assert "nothing was released" in done.stdout
    assert git(clone, "log", "--format=%s").splitlines() == ["Begin"]
    assert git(clone, "tag") == ""
    assert git(clone, "status", "--porcelain") == ""
