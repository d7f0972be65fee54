"""The words of a verdict are decided once: JSON, terminal, page, alerts and the server's issues say the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hangscope
from hangscope.cli.main import main
from hangscope.report.page.page_head import answer
from hangscope.report.terminal import render_text
from hangscope.verdict_words import GOOD, TONES, Outcome, first_word, is_sent, is_trouble, still_runs

CASES = Path(__file__).parent / "cases"


@pytest.mark.parametrize("name", ["dtype_first", "dtype_mismatch", "size_mismatch"])
def test_a_mismatch_that_did_not_hang_is_wrong_everywhere(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The first word is WRONG in JSON, terminal and page; it is sent and kept as trouble, and the job is let run."""
    job = hangscope.load(CASES / name)
    verdict = hangscope.diagnose(job)
    assert main(["diagnose", str(CASES / name), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["outcome"], value["hang"], value["kind"]) == ("wrong", False, "mismatch")
    assert render_text(verdict).startswith("WRONG ")
    assert answer(verdict, job)["word"] == "WRONG"
    assert is_sent(value["outcome"]) and is_trouble(value["outcome"]) and still_runs(value["outcome"])


def test_every_outcome_is_drawn_and_printed() -> None:
    """None lacks its first word or its tone, and nothing but OK is drawn as good."""
    assert set(TONES) == set(Outcome)
    assert [outcome for outcome in Outcome if TONES[outcome] == GOOD] == [Outcome.OK]
    assert len({first_word(outcome) for outcome in Outcome}) == len(Outcome)


def test_what_a_later_version_says_is_trouble() -> None:
    """A word that is not known is sent, kept, and no reason to say that the job runs."""
    assert is_sent("melted") and is_trouble("melted") and not still_runs("melted")
    assert is_sent(None) and not is_trouble(None) and not still_runs(None)
