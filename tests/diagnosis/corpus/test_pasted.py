"""Logs as people paste them, whose truth was written before the tool saw them: nothing false is said of any."""

from __future__ import annotations

import pytest

from pasted import score


@pytest.mark.parametrize("name", score.names())
def test_nothing_false_is_said_of_a_paste(name: str) -> None:
    """No innocent rank, no failure called OK, no healthy run called a failure; what is missing is another matter."""
    result, why, said = score.judged(name)
    assert result != "wrong", f"{said}: {why}"


def test_most_of_them_are_exact() -> None:
    """As many as when they were first run: 25 of 30."""
    assert sum(score.judged(name)[0] == "exact" for name in score.names()) >= 25
