"""Incidents that `hangscope run` saved of real NCCL jobs on an H200: FSDP2 x TP and its neighbours, wrong at one rank.

`recorded_live.tar.xz` holds what tests/live_scripts/run.py --nccl left there (torch 2.11.0, NCCL 2.28.9, four ranks on
one GPU over loopback sockets), packed by tests/record/pack_live.py without verdicts and black boxes, with the truth.
"""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

import hangscope
from hangscope.report.terminal import render_text

ARCHIVE = Path(__file__).parents[2] / "recorded_live.tar.xz"
with tarfile.open(ARCHIVE) as _listing:
    NAMES = sorted(name.split("/")[0] for name in _listing.getnames() if name.endswith("truth.json"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("live")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(place, filter="data")
    return place


def truth_of(incident: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((incident / "truth.json").read_text())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_is_what_was_injected(folder: Path, name: str) -> None:
    """Kind and culprit, and the function in which it stands in the first two lines."""
    truth = truth_of(folder / name)
    found = hangscope.diagnose(hangscope.load(folder / name))
    assert (found.kind, [c.rank for c in found.culprits]) == (truth["kind"], truth["culprits"])
    assert not truth["outcome"] or found.outcome == truth["outcome"]
    first = " ".join(render_text(found, width=200).splitlines()[:2])
    assert not truth["line"] or re.search(rf"\b{truth['line']}\b", first), first


@pytest.mark.parametrize("lost", ["dumps", "stacks", "logs", "node.json"])
@pytest.mark.parametrize("name", NAMES)
def test_without_a_kind_of_evidence_no_innocent_is_named_for_sure(
    folder: Path, tmp_path: Path, name: str, lost: str
) -> None:
    """What is missing makes a verdict weaker, not wrong."""
    shutil.copytree(folder / name, tmp_path / "i")
    for path in (tmp_path / "i").glob(f"nodes/*/{lost}"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = hangscope.diagnose(hangscope.load(tmp_path / "i"))
    innocent = {c.rank for c in found.culprits}.difference(truth_of(folder / name)["culprits"])
    assert not innocent or found.confidence != "high"
