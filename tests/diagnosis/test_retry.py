"""Whether a job is worth starting again: an answer only where the evidence has one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import hangscope
from hangscope.diagnosis.retry import retry_with_history
from hangscope.diagnosis.verdict import Diagnosis, History, Retry, TrackRecord

CASES = Path(__file__).parents[1] / "cases"


def diagnosed(path: Path) -> Diagnosis:
    return hangscope.diagnose(hangscope.load([path]))


def raised(tmp_path: Path, error: str) -> Retry | None:
    trace = f'[rank1]: Traceback (most recent call last):\n[rank1]:   File "t.py", line 5, in f\n[rank1]: {error}\n'
    (tmp_path / "log.txt").write_text(f"rank 0 step 1\nrank 1 step 1\n{trace}")
    return diagnosed(tmp_path).retry


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        ("TypeError: f() takes 1 positional argument but 2 were given", "no"),
        ("OSError: [Errno 5] Input/output error", "unknown"),
        ("RuntimeError: something", "unknown"),
    ],
)
def test_only_errors_of_the_text_of_a_program_will_come_again(tmp_path: Path, error: str, answer: str) -> None:
    """A TypeError is code on any machine; what a disk or the data may have done is not known."""
    found = raised(tmp_path, error)
    assert found is not None
    assert (found.answer, found.nodes) == (answer, ())


def test_a_job_that_is_well_has_no_answer() -> None:
    """Neither has one that is slow: it goes on."""
    assert diagnosed(CASES / "healthy").retry is None
    assert diagnosed(CASES / "straggler").retry is None


def test_history_answers_only_where_the_evidence_does_not() -> None:
    """Of a machine only where its node was named in other jobs too; code and outages by the server's table."""
    absent, mismatch = diagnosed(CASES / "mesh_absent"), diagnosed(CASES / "dtype_mismatch")
    node = next(culprit.node for culprit in absent.culprits)
    assert node is not None
    absent = replace(absent, culprits=absent.culprits[:1])
    record = TrackRecord("node", node, 3, 4, 1, 100, "often")

    def said(verdict: Diagnosis, answer: str, named: int = 3) -> tuple[str, tuple[str, ...]]:
        history = History("http://h", (replace(record, named=named),), answer, ())
        found = retry_with_history(verdict, history)
        assert found is not None
        return str(found.answer), found.nodes

    assert said(absent, "hardware") == ("elsewhere", (node,))
    assert said(absent, "hardware", named=0) == ("unknown", ())
    assert said(absent, "code") == ("no", ())
    assert said(absent, "outage") == ("same", ())
    assert said(absent, "not decided") == ("unknown", ())
    assert said(mismatch, "hardware") == ("no", ())
