"""Recorded jobs on Gloo, whose cause was injected and is written in their truth.json.

Gloo's ranks raise one after the other and end with status 1, and what they gave up on counts as finished in their
dumps. So these hold the diagnosis to telling who gave up from who was waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import hangscope
from frozen import diagnosis
from hangscope.errors import NotFoundError
from kits.lost_evidence import PERTURBATIONS, Truth, perturbed, untouched
from kits.recorded import SUITES, all_cases, truth_of

GLOO = SUITES["gloo"]

EXPECTED: dict[str, tuple[str, list[int], str]] = {
    # What a rank without a dump did is only inferred: low, unless its end or its freeze was seen.
    "async_late": ("absent", [1], "low"),
    "ddp_shift": ("mismatch", [3], "high"),
    "deadlock2": ("deadlock", [2, 5], "medium"),
    "dtype_first": ("mismatch", [0], "medium"),
    "frozen2": ("frozen", [2, 5], "high"),
    "hsdp_hook": ("absent", [5], "low"),
    "mesh3d_kill": ("dead", [2], "high"),
    "mesh3d_stage": ("absent", [3], "low"),
    "odd_broadcast": ("absent", [0], "low"),
}

_RANKING = ("low", "medium", "high")


def _accused(verdict: hangscope.Diagnosis) -> list[int]:
    return [culprit.rank for culprit in verdict.culprits]


def test_every_case_is_expected_to_come_out_as_injected() -> None:
    """The table above says of every case what was injected, and nothing else."""
    assert sorted(EXPECTED) == all_cases(GLOO)
    for case, (kind, culprits, _) in EXPECTED.items():
        assert (kind, culprits) == (truth_of(case, GLOO)["kind"], truth_of(case, GLOO)["culprits"])


@pytest.mark.parametrize("case", sorted(EXPECTED))
def test_gloo_case_comes_out_right(case: str) -> None:
    """Kind and culprits are what was injected, as sure as the evidence allows or more."""
    kind, culprits, confidence = EXPECTED[case]
    verdict = diagnosis("cases", f"cases_gloo/{case}")
    assert (verdict.hang, verdict.kind, _accused(verdict)) == (True, kind, culprits), verdict.headline
    assert _RANKING.index(verdict.confidence) >= _RANKING.index(confidence)
    for culprit in verdict.culprits:
        assert culprit.node == truth_of(case, GLOO)["nodes"][str(culprit.rank)]


@pytest.mark.parametrize("perturbation", [p for p in PERTURBATIONS if p is not untouched], ids=lambda p: p.__name__)
@pytest.mark.parametrize("case", sorted(EXPECTED))
def test_less_evidence_accuses_no_innocent_surely(
    case: str, perturbation: Callable[[Path, Truth], None], tmp_path: Path
) -> None:
    """Whatever is taken away, nobody who did nothing wrong is accused with high confidence."""
    truth = truth_of(case, GLOO)
    try:
        verdict = hangscope.diagnose(hangscope.load([perturbed(case, perturbation, tmp_path, GLOO)]))
    except NotFoundError:
        assert perturbation.__name__ == "logs_only"
        return
    assert verdict.confidence != "high" or set(_accused(verdict)) <= set(truth["culprits"]), verdict.headline


@pytest.mark.parametrize("case", sorted(EXPECTED))
def test_nobody_is_accused_for_giving_up_first(case: str) -> None:
    """A rank that ended with status 1 because a collective timed out is a victim, however early it ended."""
    verdict = diagnosis("cases", f"cases_gloo/{case}")
    assert "exited with status 1" not in verdict.headline


def test_rank_that_answers_with_its_stack_is_not_frozen() -> None:
    """Rank 0 wrote no dump and never ended, but its process gave its stack twice."""
    verdict = diagnosis("cases", "cases_gloo/odd_broadcast")
    assert verdict.kind == "absent"
    assert "responded with its stack" in "\n".join(finding.text for finding in verdict.why)


def test_size_that_gloo_complains_of_is_shown() -> None:
    """Gloo's last words have both sizes."""
    verdict = diagnosis("cases", "cases_gloo/dtype_first")
    assert any("expected 16384 B, a peer sent 32768 B" in finding.text for finding in verdict.why)
