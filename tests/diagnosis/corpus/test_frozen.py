"""Verdicts on all recorded evidence are what is stored, byte by byte: only a mended bug changes one, and is named.

test_sweep.py compares the folders of the sweep and test_scoreboard.py some of the simulated jobs, which they judge
anyway; `make frozen` compares all of them.
"""

from __future__ import annotations

import pytest

from frozen import SUITES, changed, names, sweeps, verdict

RECORDED = ("cases", "links", "live", "outside", "excerpts", "wild")


@pytest.mark.parametrize(("suite", "name"), [(suite, name) for suite in RECORDED for name in names(suite)])
def test_a_verdict_is_as_it_was(suite: str, name: str) -> None:
    """The JSON and the text of the verdict have not changed; `python tests/frozen.py --write` stores a change."""
    assert not changed(suite, name, verdict(suite, name).words)


@pytest.mark.parametrize("suite", RECORDED)
def test_all_recorded_evidence_is_stored(suite: str) -> None:
    """What was recorded or written down since is stored too, and nothing that is gone."""
    assert names(suite) == sorted(SUITES[suite]())


def test_the_sample_of_the_sweep_is_the_stored_one() -> None:
    """The folders that test_sweep.py compares are those that are stored."""
    assert set(names("sweep")) == set(sweeps())
