"""The fault `shift`: a rank is a step off, nothing hangs, and the truth says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope import diagnose, load
from hangscope.simulate import Spec, random_shift_spec, simulate


@pytest.mark.parametrize("variant", ["step", "repeat"])
@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"tp": 2, "pp": 2}])
def test_a_step_too_few_or_too_many_is_found_in_any_layout(
    tmp_path: Path, variant: str, layout: dict[str, int]
) -> None:
    """All ranks come to their end, and the one that is off is named, whatever groups it is in."""
    made = simulate(Spec(ranks=8, fault="shift", variant=variant, culprits=(5,), entries=2000, seed=3, **layout))
    assert (made.truth["hang"], made.truth["kind"], made.truth["culprits"]) == (False, "shift", [5])
    made.write(tmp_path)
    found = diagnose(load(tmp_path))
    assert (found.outcome, found.kind, [c.rank for c in found.culprits]) == ("desync", "shift", [5])


def test_without_lines_nothing_can_be_said(tmp_path: Path) -> None:
    """Sizes and operations of both kinds of step are the same: the truth accepts silence, and nobody is accused."""
    spec = Spec(ranks=8, fault="shift", culprits=(5,), entries=2000, seed=3, stacks=False)
    made = simulate(spec)
    assert made.truth["accept"] == [[]]
    made.write(tmp_path)
    found = diagnose(load(tmp_path))
    assert found.outcome != "desync"
    assert found.culprits == ()


def test_drawn_jobs_are_all_of_this_fault_and_small() -> None:
    """The scoreboard's draw: every job comes apart, and is small enough for its steps to be run one by one."""
    drawn = [random_shift_spec(seed) for seed in range(20)]
    assert {spec.fault for spec in drawn} == {"shift"}
    assert max(spec.ranks for spec in drawn) <= 64
    assert drawn == [random_shift_spec(seed) for seed in range(20)]
