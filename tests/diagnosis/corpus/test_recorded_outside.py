"""Jobs on NCCL that nobody had prepared, as `hangscope snapshot PID` saved them out of the ranks' memory on an H200.

`recorded_outside.tar.xz` holds what tests/live_scripts/outside_nccl.py left there (torch 2.11.0, NCCL 2.28.9, two
to four ranks on one GPU), packed by tests/record/pack_live.py without verdicts, with the truth. In `collective`,
`ring` and `ring_reduce` the hosts launch on behind the operation that hangs, so that most ranks are seen to move.
"""

from __future__ import annotations

import re

import pytest

from frozen import LOST, diagnosis, injected, names
from hangscope.report.terminal import render_text

STARTING = "healthy-running"
"""A healthy job in its first seconds: rank 2 imports torch._dynamo while the others are in FSDP's first call."""
NAMES = [name for name in names("outside") if "/" not in name and name != STARTING]


def test_all_recordings_are_tried() -> None:
    """Those that are stored, and no fewer."""
    assert len(NAMES) == 9


@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_is_what_was_injected(name: str) -> None:
    """Kind and culprit, surely, and the function in which it stands in the first two lines."""
    truth = injected("recorded_outside.tar.xz", name)
    found = diagnosis("outside", name)
    assert (found.kind, [c.rank for c in found.culprits]) == (truth["kind"], truth["culprits"])
    assert found.outcome == "hang" and found.confidence == "high"
    first = " ".join(render_text(found, width=200).splitlines()[:2])
    assert not truth["line"] or re.search(rf"\b{truth['line']}\b", first), first
    assert not [step for step in found.next_steps if "TORCH_FR_BUFFER_SIZE" in step], "it is on: 4 dumps are there"


def test_a_rank_that_imports_is_waited_for() -> None:
    """Two looks found it on a core at different places: nobody can tell yet whether it is a hang."""
    assert diagnosis("outside", STARTING).outcome == "wait"
    for lost in LOST:
        found = diagnosis("outside", f"{STARTING}/without-{lost}")
        assert found.confidence != "high" or not found.culprits


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("name", NAMES)
def test_without_a_kind_of_evidence_no_innocent_is_named_for_sure(name: str, lost: str) -> None:
    """What is missing makes a verdict weaker, not wrong."""
    found = diagnosis("outside", f"{name}/without-{lost}")
    innocent = {c.rank for c in found.culprits}.difference(injected("recorded_outside.tar.xz", name)["culprits"])
    assert not innocent or found.confidence != "high"
