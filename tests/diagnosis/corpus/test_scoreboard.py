"""A small draw of the scoreboard, so that CI sees a step back in the diagnosis. `make scoreboard` is the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.simulate import random_spec, simulate
from scoreboard import CASES, judge, recorded, show

SMALL = [seed for seed in range(40) if random_spec(seed).ranks <= 32]


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> list:  # type: ignore[type-arg]
    found = []
    for seed in SMALL:
        directory = tmp_path_factory.mktemp(f"seed{seed}")
        job = simulate(random_spec(seed))
        job.write(directory)
        found.append(judge(f"seed {seed}", dict(job.truth), Path(directory), None))
    return found


def test_no_innocent_rank_is_accused_with_high_confidence(scores: list) -> None:  # type: ignore[type-arg]
    """Not in any drawn job, whatever its size, layout, fault, format and ring."""
    assert [s.detail for s in scores if s.innocent_high] == []


def test_culprits_are_exact_in_nearly_all_drawn_jobs(scores: list) -> None:  # type: ignore[type-arg]
    """At most one drawn job in twenty may miss; the full scoreboard holds the tighter bound."""
    missed = [f"{s.name}: {s.detail}" for s in scores if not s.exact_ranks]
    assert len(missed) * 20 <= len(scores), missed


def test_recorded_cases_are_all_exact_on_the_scoreboard() -> None:
    """The scoreboard's own judgement agrees with the tests of the cases."""
    found = list(recorded(None))
    assert len(found) == len(list(CASES.glob("*/truth.json")))
    assert all(s.exact for s in found)


def test_the_matrix_shows_every_kind_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The printed confusion matrix has a row for each kind that occurs."""
    found = list(recorded(None))
    show("recorded cases", found)
    text = capsys.readouterr().out
    for kind in {s.truth_kind for s in found}:
        assert f"\n  {kind:<16} " in text
