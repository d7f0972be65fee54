"""The verdict as Python gets it: from a path or a job, and the ways to show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hangscope
from hangscope.report.export import to_json
from hangscope.report.terminal import render_text

CASE = Path(__file__).parents[1] / "cases" / "skipped"


@pytest.mark.parametrize("given", [CASE, str(CASE), [CASE], (str(CASE),)], ids=["Path", "str", "list", "tuple"])
def test_a_path_is_diagnosed_as_what_is_loaded_from_it(given: Any) -> None:
    """Whatever names the evidence, the verdict is that of the loaded job."""
    assert (
        hangscope.diagnose(given).to_dict()["culprits"]
        == hangscope.diagnose(hangscope.load(CASE)).to_dict()["culprits"]
    )


def test_a_verdict_shows_itself() -> None:
    """str() is the text of `diagnose`, repr() one line, a notebook gets HTML that is escaped, and the rest is there."""
    verdict = hangscope.diagnose(CASE)
    assert str(verdict) == render_text(verdict)
    assert repr(verdict).startswith("<Diagnosis hang: ")
    assert "\n" not in repr(verdict)
    assert verdict.to_dict() == json.loads(to_json(verdict))
    assert verdict._repr_html_().startswith("<pre>")
    assert "<script" in verdict.to_html()
    assert isinstance(verdict, hangscope.Diagnosis)


@pytest.mark.parametrize("wrong", [None, 5, {"a": 1}, [None], b"bytes"], ids=repr)
def test_what_is_no_path_is_our_error(wrong: Any) -> None:
    """A wrong type is told by an error of ours with the cure, and not by a traceback from inside."""
    for ask in (hangscope.diagnose, hangscope.load):
        with pytest.raises(hangscope.InputError) as raised:
            ask(wrong)
        assert raised.value.hint
