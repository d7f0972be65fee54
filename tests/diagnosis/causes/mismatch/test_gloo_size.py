"""A rank that Gloo ended over a size: who else is named beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis import diagnose
from hangscope.model import FATAL_ERROR, GLOO_SIZE, Facts, Frame, Process, PythonError, Source
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


def _at(line: int) -> tuple[Frame, ...]:
    return Frame("<module>", "/work/train.py", 30), Frame("main", "/work/train.py", line)


@pytest.mark.parametrize(
    ("lines", "accused", "words"),
    [
        ((11, 12, 12), [0], "rank 0 was in main (train.py:11) where the rest were in main (train.py:12)"),
        ((12, 12, 11), [2], "rank 2 was in main (train.py:11) where the rest were in main (train.py:12)"),
        ((12, 12, 12), [2], "expected a different size"),
        ((11, 12, 13), [2], "expected a different size"),
        ((11, None, 12), [2], "expected a different size"),
    ],
)
def test_the_one_at_another_line_is_named(lines: tuple[int | None, ...], accused: list[int], words: str) -> None:
    """Whom Gloo ends is chance: whose call was another one is seen by the lines at which all ranks were, and by nothing
    less than all."""
    lost = "[pair.cc:553] Connection closed by peer [127.0.0.1]:1"
    errors = [PythonError(2, GLOO_SIZE, "expected 4 B, a peer sent 184 B", (), Source("launcher.log", "line 2"))]
    for rank, line in enumerate(lines):
        kind, said = (FATAL_ERROR, "Aborted") if rank == 2 else ("RuntimeError", lost)
        frames = () if line is None else _at(line)
        errors.append(PythonError(rank, kind, said, frames, Source(f"rank_{rank}.log", "line 1"), consequence=True))
    ended = {rank: Process(rank, exit_status=-6 if rank == 2 else 1, state="gone") for rank in range(3)}
    made = job({D: range(3)}, {}, facts=Facts(errors=tuple(errors)), processes=ended)
    verdict = diagnose(replace(made, reason="rank-exit"))
    assert ([culprit.rank for culprit in verdict.culprits], verdict.confidence) == (accused, "low")
    assert words in verdict.headline
    if len(accused) == 1 and accused != [2]:
        assert verdict.culprits[0].where is not None
        assert verdict.culprits[0].where.line == 11
