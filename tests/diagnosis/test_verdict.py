"""The words of a verdict's kind and outcome: an Enum inside, plain text for whoever compares, prints or writes it."""

from __future__ import annotations

import json
import pickle

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.verdict import CauseKind
from hangscope.verdict_words import Outcome
from kits.small_jobs import Op, job


@pytest.mark.parametrize("word", [*CauseKind, *Outcome], ids=repr)
def test_a_word_is_its_text(word: CauseKind | Outcome) -> None:
    """It equals the text, is found under it, and is shown and written as it, on every Python."""
    assert word == word.value
    assert {word.value: 1}[word] == {word: 1}[word.value] == 1
    assert (str(word), f"{word}", f"{word:>9}") == (word.value, word.value, f"{word.value:>9}")
    assert json.dumps({"kind": word, word: 0}) == f'{{"kind": "{word.value}", "{word.value}": 0}}'
    assert pickle.loads(pickle.dumps(word)) is word


def test_a_diagnosis_is_compared_with_plain_text() -> None:
    """Who uses hangscope from Python compares kind and outcome with the words of the contract."""
    ranks = {0: [Op("g"), Op("g", state="started")], 1: [Op("g"), Op("g", state="started")], 2: [Op("g")]}
    found = diagnose(job({"g": [0, 1, 2]}, ranks))
    assert (found.kind, found.outcome) == ("absent", "hang")
    assert found.kind in ("absent", "dead")
