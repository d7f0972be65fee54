"""A small draw of the scoreboard, so that CI sees a step back in the diagnosis. `make scoreboard` is the whole."""

from __future__ import annotations

import pytest

import hangscope
import scoreboard
from frozen import changed, diagnosis, made, names
from hangscope.simulate import random_spec
from kits.answers import answer
from kits.recorded import all_cases, truth_of
from scoreboard import Score, graded

SMALL = [seed for seed in names("simulated")[:60] if random_spec(int(seed)).ranks <= 32]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Score, str]]:
    """seed → (its score, how its verdict differs from the stored one)."""
    found = {}
    for seed in SMALL:
        folder, truth = made("simulated", seed, tmp_path_factory.mktemp(f"seed{seed}"))
        said = answer(folder)
        assert isinstance(said.verdict, hangscope.Diagnosis)
        found[seed] = graded(f"seed {seed}", truth, said.verdict), changed("simulated", seed, said.words)
    return found


@pytest.fixture(scope="module")
def recorded() -> list[Score]:
    return [graded(case, truth_of(case), diagnosis("cases", f"cases/{case}")) for case in all_cases()]


def test_no_innocent_rank_is_accused_with_high_confidence(drawn: dict[str, tuple[Score, str]]) -> None:
    """Not in any drawn job, whatever its size, layout, fault, format and ring."""
    assert len(drawn) >= 25
    assert [score.detail for score, _ in drawn.values() if score.innocent_high] == []


def test_culprits_are_exact_in_nearly_all_drawn_jobs(drawn: dict[str, tuple[Score, str]]) -> None:
    """At most one drawn job in twenty may miss; the full scoreboard holds the tighter bound."""
    missed = [f"{score.name}: {score.detail}" for score, _ in drawn.values() if not score.exact_ranks]
    assert len(missed) * 20 <= len(drawn), missed


def test_verdicts_on_drawn_jobs_are_as_they_were(drawn: dict[str, tuple[Score, str]]) -> None:
    """They are what is stored, byte by byte; `make frozen` compares three hundred."""
    assert [difference for _, difference in drawn.values() if difference] == []


def test_recorded_cases_are_all_exact_on_the_scoreboard(recorded: list[Score]) -> None:
    """The scoreboard's own judgement agrees with the tests of the cases."""
    assert len(recorded) == len(all_cases())
    assert all(score.exact for score in recorded)


def test_the_matrix_shows_every_kind_once(recorded: list[Score], capsys: pytest.CaptureFixture[str]) -> None:
    """The printed confusion matrix has a row for each kind that occurs."""
    scoreboard.show("recorded cases", recorded)
    text = capsys.readouterr().out
    for kind in {score.truth_kind for score in recorded}:
        assert f"\n  {kind:<16} " in text
