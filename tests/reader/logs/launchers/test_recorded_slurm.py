"""Logs that a real Slurm wrote, each with what was done to its job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.reader.load import load

LOGS = Path(__file__).parents[3] / "recorded_slurm"
TRUTHS: dict[str, dict[str, Any]] = json.loads((LOGS / "truths.json").read_text())


@pytest.mark.parametrize("name", sorted(TRUTHS))
def test_a_log_alone_names_the_culprit_or_nobody(name: str) -> None:
    """Cancelled, out of time, killed, raised, a node lost: no innocent, whatever srun and torchrun print at the end."""
    truth = TRUTHS[name]
    verdict = diagnose(load([LOGS / f"{name}.txt"]))
    assert verdict.outcome.value in truth["outcome"]
    assert [culprit.rank for culprit in verdict.culprits] in [truth["culprits"], *truth.get("accept", [])]
    assert truth.get("node", "") in verdict.headline
