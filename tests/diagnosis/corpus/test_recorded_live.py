"""Incidents that `hangscope run` saved of real NCCL jobs on an H200: FSDP2 x TP and its neighbours, wrong at one rank.

`recorded_live.tar.xz` holds what tests/live_scripts/run.py --nccl left there (torch 2.11.0, NCCL 2.28.9, four ranks on
one GPU over loopback sockets), packed by tests/record/pack_live.py without verdicts and black boxes, with the truth.
"""

from __future__ import annotations

import re

import pytest

from frozen import LOST, diagnosis, injected, names
from hangscope.report.terminal import render_text

NAMES = [name for name in names("live") if "/" not in name]


@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_is_what_was_injected(name: str) -> None:
    """Kind and culprit, and the function in which it stands in the first two lines."""
    truth = injected("recorded_live.tar.xz", name)
    found = diagnosis("live", name)
    assert (found.kind, [c.rank for c in found.culprits]) == (truth["kind"], truth["culprits"])
    assert not truth["outcome"] or found.outcome == truth["outcome"]
    first = " ".join(render_text(found, width=200).splitlines()[:2])
    assert not truth["line"] or re.search(rf"\b{truth['line']}\b", first), first


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("name", NAMES)
def test_without_a_kind_of_evidence_no_innocent_is_named_for_sure(name: str, lost: str) -> None:
    """What is missing makes a verdict weaker, not wrong."""
    found = diagnosis("live", f"{name}/without-{lost}")
    innocent = {c.rank for c in found.culprits}.difference(injected("recorded_live.tar.xz", name)["culprits"])
    assert not innocent or found.confidence != "high"
