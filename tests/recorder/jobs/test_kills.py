"""Whatever is done to hangscope, the training goes on: `tests/kits/random_kills.py` in small."""

from __future__ import annotations

import os
import shutil

import pytest

from kits import random_kills

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_no_kill_of_anything_of_ours_ends_or_changes_a_training_run() -> None:
    """Fifty random kills of run, relay, standby and the companion's socket; the weights are those of a run without."""
    assert random_kills.main(["--kills", "50", "--steps", "120"]) == 0


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mkfs.ext4") is None, reason="mounts file systems")
def test_no_file_system_that_fails_ends_or_changes_a_training_run() -> None:
    """A directory that fills up, becomes read-only or freezes in the middle costs evidence at most."""
    assert random_kills.main(["--kills", "0", "--steps", "40", "--files"]) == 0
