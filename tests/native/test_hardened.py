"""The C parts are built so that a mistake in them ends the process, and does not hand it over."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import hangscope

PARTS = sorted(Path(hangscope.__file__).parent.rglob("*.so"))


@pytest.mark.skipif(shutil.which("readelf") is None or not PARTS, reason="no readelf, or no C parts")
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_is_hardened(part: Path) -> None:
    """A stack protector, addresses that are bound at the start, no executable stack."""

    def shown(what: str) -> str:
        return subprocess.run(["readelf", what, "--wide", part], capture_output=True, text=True, check=True).stdout

    assert "NOW" in shown("-d")
    assert "GNU_RELRO" in shown("-l") and " RWE " not in shown("-l")
    assert "__stack_chk_fail" in shown("-s")
