"""What a real Kubernetes says of jobs, each with what was done to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.hardware.broken_nodes import broken_nodes
from hangscope.reader.load import load

JOBS = Path(__file__).parents[1] / "recorded_pods"
TRUTHS: dict[str, dict[str, Any]] = json.loads((JOBS / "truths.json").read_text())
EVIDENCE = {"whole": "", "statuses": "files", "logs": "nodes"}


@pytest.mark.parametrize("name", sorted(TRUTHS))
def test_all_that_was_collected_says_what_happened(name: str) -> None:
    """Hung, drained, evicted, out of memory, a node lost: in these words, with the pod and the machine to exclude."""
    truth = TRUTHS[name]
    job = load([JOBS / name])
    verdict = diagnose(job)
    assert verdict.outcome.value == truth["outcome"]
    assert truth["words"] in verdict.headline
    assert {each.node for each in verdict.culprits} <= {f"{name.removesuffix('-after')}-1"}
    assert [each.node for each in broken_nodes(job, verdict)] == [each for each in [truth["machine"]] if each]


@pytest.mark.parametrize("evidence", EVIDENCE)
@pytest.mark.parametrize("name", sorted(TRUTHS))
def test_no_innocent_is_named_by_any_part_of_it(name: str, evidence: str) -> None:
    """Pods that lost a peer exit first, and are named neither by their statuses nor by their logs."""
    truth = TRUTHS[name]
    verdict = diagnose(load([JOBS / name / EVIDENCE[evidence]]))
    assert verdict.outcome.value == truth["outcome"]
    assert [each.rank for each in verdict.culprits] == truth["culprits"][evidence]
