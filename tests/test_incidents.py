"""Incidents of real NCCL jobs, as `hangscope run` saved them: the verdict is the injected truth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hangscope
from hangscope.incident import manifest

INCIDENTS = sorted(path.parent for path in (Path(__file__).parent / "incidents").glob("*/truth.json"))


@pytest.fixture(params=INCIDENTS, ids=lambda path: path.name)
def incident(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_the_verdict_is_what_was_injected(incident: Path) -> None:
    """Kind and culprit, with the culprit's node, from the whole incident, including what was logged after the hang."""
    truth = json.loads((incident / "truth.json").read_text())
    found = hangscope.diagnose(hangscope.load(incident))
    assert (found.kind, [culprit.rank for culprit in found.culprits]) == (truth["kind"], truth["culprits"])
    assert [culprit.node for culprit in found.culprits] == [f"gpu-worker-{6 + rank // 2}" for rank in truth["culprits"]]


def test_the_manifest_lists_what_is_there(incident: Path) -> None:
    """Every file with its size and checksum, both nodes, and why it was captured."""
    assert manifest.verify(incident) == []
    listed = manifest.read(incident)
    assert listed is not None
    assert listed.nodes_expected == listed.nodes_present == ("gpu-worker-6", "gpu-worker-7")
    assert listed.world_size == 4
    assert listed.reason in ("stall", "rank-exit", "watchdog")
