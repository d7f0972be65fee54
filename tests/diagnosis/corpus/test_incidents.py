"""Incidents of real NCCL jobs, as `hangscope run` saved them: the verdict is the injected truth."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import hangscope
from frozen import diagnosis
from hangscope.incident import manifest
from hangscope.report.terminal import matters, render_text

INCIDENTS = sorted(path.parent for path in (Path(__file__).parents[2] / "incidents").glob("*/truth.json"))


@pytest.fixture(params=INCIDENTS, ids=lambda path: path.name)
def incident(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_the_verdict_is_what_was_injected(incident: Path) -> None:
    """Kind and culprit, with the culprit's node, from the whole incident, including what was logged after the hang."""
    truth = json.loads((incident / "truth.json").read_text())
    found = diagnosis("cases", f"incidents/{incident.name}")
    assert (found.kind, [culprit.rank for culprit in found.culprits]) == (truth["kind"], truth["culprits"])
    assert [culprit.node for culprit in found.culprits] == [f"gpu-worker-{6 + rank // 2}" for rank in truth["culprits"]]


def test_the_manifest_lists_what_is_there(incident: Path) -> None:
    """Every file with its size and checksum, both nodes, and why it was captured."""
    assert manifest.verify(incident) == []
    listed = manifest.read(incident)
    assert listed is not None
    assert listed.nodes_expected == listed.nodes_present == ("gpu-worker-6", "gpu-worker-7")
    assert listed.world_size == 4
    assert listed.reason in ("stall", "rank-exit", "watchdog")


def test_an_incident_after_which_the_job_went_on_is_a_pause(tmp_path: Path) -> None:
    """The same evidence, of a job that did not hang for good: who held it up stays, and the first word is another."""
    shutil.copytree(Path(__file__).parents[2] / "incidents" / "sleep", tmp_path / "i")
    before = diagnosis("cases", "incidents/sleep")
    listed = manifest.read(tmp_path / "i")
    assert listed is not None
    extra = {**listed.extra, "recovered": {"at": manifest.now(), "after_s": 95.5}}
    manifest.write(tmp_path / "i", replace(listed, extra=extra))
    found = hangscope.diagnose(hangscope.load(tmp_path / "i"))
    assert (before.outcome, found.outcome, found.hang, found.exit_status) == ("hang", "pause", False, 0)
    assert (found.kind, [culprit.rank for culprit in found.culprits]) == ("absent", [c.rank for c in before.culprits])
    assert found.waiting_s == 95.5
    assert render_text(found).startswith(f"PAUSE  rank {found.culprits[0].rank} held the job up for 1m 36s in ")
    assert any("expect_pause" in step for step in found.next_steps)


@pytest.mark.parametrize("said", [None, "soon", {"after_s": "long"}, {"after_s": -1}, {"after_s": True}, [3]])
def test_nonsense_about_a_recovery_is_no_recovery(tmp_path: Path, said: object) -> None:
    """A manifest comes from anybody: only a number of seconds above 0 counts."""
    shutil.copytree(Path(__file__).parents[2] / "incidents" / "sleep", tmp_path / "i")
    listed = manifest.read(tmp_path / "i")
    assert listed is not None
    manifest.write(tmp_path / "i", replace(listed, extra={**listed.extra, "recovered": said}))
    assert hangscope.diagnose(hangscope.load(tmp_path / "i")).outcome == "hang"


def test_what_run_recorded_is_not_answered_with_the_advice_to_use_run(incident: Path) -> None:
    """Whoever has an incident of `run` has used it; and the gaps of a sure verdict that change nothing wait for -v."""
    found = diagnosis("cases", f"incidents/{incident.name}")
    assert not [step for step in found.next_steps if "hangscope run" in step]
    accused = {culprit.rank for culprit in found.culprits}
    if found.confidence == "high" and accused:
        assert all(gap.rank is None or gap.rank in accused for gap in matters(found))
    assert ("\nGaps " in render_text(found, verbose=True)) == bool(found.gaps)
