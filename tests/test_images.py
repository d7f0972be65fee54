"""The images' recipe: small, pinned by who builds it, not root. `make images` builds and tries them with buildah."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECIPE = (ROOT / "containers" / "Containerfile").read_text(encoding="utf-8")


def test_images_run_as_a_user_of_their_own_and_fetch_nothing() -> None:
    """Every stage ends as a user that is not root, the base can be given by digest, and no step asks the network."""
    assert re.findall(r"^FROM (\S+) AS (\w+)", RECIPE, re.MULTILINE) == [
        ("${BASE}", "hangscope"),
        ("hangscope", "sidecar"),
    ]
    assert re.findall(r"^USER (\S+)", RECIPE, re.MULTILINE) == ["10001:10001"]
    assert "--no-index" in RECIPE
    assert not re.search(r"\b(curl|wget|apt-get|git)\b", RECIPE)


def test_without_buildah_it_is_said() -> None:
    """Where the tools are missing, `make images` says which, and is no failure."""
    command = [sys.executable, str(ROOT / "release" / "images.py")]
    done = subprocess.run(command, env={"PATH": "/nonexistent"}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "no image was built: buildah, debootstrap is missing" in done.stdout
