"""A rank that Gloo ended over a size: who else is named beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis import diagnose
from hangscope.model import GLOO_SIZE, Facts, Process, PythonError, Source
from kits.small_jobs import Op, job

D = "default_pg"
CALLS = [Op(D), Op(D, state="started")]


@pytest.mark.parametrize(("size", "accused"), [(2, [0, 1]), (3, [0])])
def test_a_recorded_peer_is_the_other_side_only_of_two(size: int, accused: list[int]) -> None:
    """Of three, one that left no recording may be what differs: the one that did leave one is not named for it."""
    error = PythonError(0, GLOO_SIZE, "expected 4 B, a peer sent 8 B", (), Source("launcher.log", "line 3"))
    ended = {0: Process(0, exit_status=-6, state="gone")}
    made = job({D: range(size)}, {1: CALLS}, facts=Facts(errors=(error,)), processes=ended)
    verdict = diagnose(replace(made, reason="rank-exit"))
    assert (verdict.kind, [culprit.rank for culprit in verdict.culprits]) == ("mismatch", accused)
