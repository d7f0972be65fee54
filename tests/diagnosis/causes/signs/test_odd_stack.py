"""Folders with nothing but stacks: who is elsewhere than the rest is named, and nothing more is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import hangscope
from kits.recorded import CASES, truth_of


def stacks_of(case: str, folder: Path) -> hangscope.Diagnosis:
    """The verdict on a case of which only the stacks are left."""
    for stacks in (CASES / case).glob("*/stacks"):
        shutil.copytree(stacks, folder / stacks.parent.name / "stacks")
    return hangscope.diagnose(hangscope.load([folder]))


@pytest.mark.parametrize("case", ["mesh_absent", "fsdp_checkpoint", "pipeline"])
def test_rank_that_is_elsewhere_is_named_with_its_line(case: str, tmp_path: Path) -> None:
    verdict = stacks_of(case, tmp_path)
    truth = truth_of(case)
    assert (verdict.kind, verdict.confidence) == ("absent", "low")
    assert [c.rank for c in verdict.culprits] == truth["culprits"]
    assert any("train.py" in frame for frame in verdict.why[0].detail)
    assert verdict.completeness.stacks == truth["world_size"]


@pytest.mark.parametrize("case", ["gil", "link_stall8"])
def test_ranks_that_are_all_at_one_line_accuse_nobody(case: str, tmp_path: Path) -> None:
    verdict = stacks_of(case, tmp_path)
    assert (verdict.kind, verdict.culprits) == ("unknown", ())
