"""A new release of torch, whose recorder the table of layouts does not know, is noticed by who looks after us."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "release" / "recorder_layouts.py"


@pytest.mark.parametrize(
    ("newest", "status", "said"),
    [("2.99.1", 1, "torch 2.99 is not in the table"), ("2.15.9", 0, "the table knows every release of torch")],
)
def test_a_release_that_the_table_does_not_know_fails_the_weekly_check(
    newest: str, status: int, said: str, tmp_path: Path
) -> None:
    """pip's own list of releases decides, here that of a directory; a patch of a known release has its layout."""
    for version in ("1.13.1", "2.13.0", newest):
        with zipfile.ZipFile(tmp_path / f"torch-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"torch-{version}.dist-info/METADATA", f"Name: torch\nVersion: {version}\n")
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    words = [sys.executable, str(SCRIPT), "--check"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **index}, timeout=60, check=False)
    assert (done.returncode, said in done.stdout) == (status, True), done.stderr


def test_an_index_that_does_not_answer_is_no_good_news(tmp_path: Path) -> None:
    """Where pip knows of no torch at all, the check says so, and fails in another way."""
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    words = [sys.executable, str(SCRIPT), "--check"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **index}, timeout=60, check=False)
    assert done.returncode == 2
    assert "error: pip tells no releases of torch" in done.stderr
