"""Tracebacks of several ranks whose collective timed out, compared as stacks are: Gloo's, which has no numbers."""

from __future__ import annotations

import pytest

from kits.pasted_logs import LOST, TIMED_OUT, raised, short, verdict_on


@pytest.mark.parametrize("operation", ["all_reduce", "barrier"])
@pytest.mark.parametrize("error", [TIMED_OUT, LOST])
def test_the_rank_that_waited_at_another_line_is_named(operation: str, error: str) -> None:
    """Rank 0 at :10 and ranks 1 to 3 at :19, also where these only lost rank 0 in the end: never above low, as no group
    is named."""
    verdict = verdict_on(raised(0, 10, operation) + "".join(raised(rank, 19, error=error) for rank in (1, 2, 3)))
    assert short(verdict) == ("hang", "mismatch", [0])
    assert verdict.confidence == "low"
    assert "train.py:10" in verdict.headline and "train.py:19" in verdict.headline


def test_two_sides_are_shown_and_not_accused() -> None:
    """Of two ranks nothing tells which is wrong."""
    verdict = verdict_on(raised(0, 10) + raised(1, 19))
    assert short(verdict) == ("hang", "mismatch", [])
    assert "train.py:10" in verdict.headline and "train.py:19" in verdict.headline


@pytest.mark.parametrize(
    "log",
    [
        "".join(raised(rank, 19) for rank in range(4)),  # all at one line
        raised(0, 10, "send") + "".join(raised(rank, 19, "recv") for rank in (1, 2, 3)),
        raised(0, 10, error=LOST) + "".join(raised(rank, 19, error=LOST) for rank in (1, 2, 3)),  # nothing timed out
        "".join(raised(rank, 10 + rank) for rank in range(8)),  # each does something else
    ],
)
def test_what_differs_for_another_reason_is_not_compared(log: str) -> None:
    """One line, point-to-point calls, peers that went away, and programs that differ on every rank accuse nobody."""
    assert short(verdict_on(log))[2] == []


def test_a_rank_that_failed_by_itself_is_what_the_others_waited_for() -> None:
    """Where one raised something of its own, from where the others waited means nothing."""
    own = '[rank2]: Traceback (most recent call last):\n[rank2]:   File "/home/me/train.py", line 5, in main\n[rank2]: '
    verdict = verdict_on(own + "ValueError: bad\n" + raised(0, 10) + raised(1, 19) + raised(3, 19))
    assert short(verdict)[1:] == ("dead", [2])
