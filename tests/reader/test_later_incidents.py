"""Several incidents of one run, inside its directory as today or beside it as before: each is one of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import hangscope
from hangscope.incident import manifest
from hangscope.incident.layout import place_of

INCIDENTS = Path(__file__).parents[1] / "incidents"
FIRST = "2026-11-15T02:00:00Z"
LATER = "2026-11-15T02:10:00Z"


def put(source: str, target: Path, at: str) -> None:
    """A recorded incident as one of job 7, captured at that moment."""
    shutil.copytree(INCIDENTS / source, target, dirs_exist_ok=True)
    described = json.loads((target / "incident.json").read_text())
    (target / "incident.json").write_text(json.dumps({**described, "job": "7", "attempt": "0", "captured_at": at}))
    for file in target.glob("nodes/*/node.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "job": "7", "attempt": "0"}))


@pytest.mark.parametrize("later", ["run/hang-2", "run/snapshot-1", "run.hang-2", "run/run-2", "run/run-2/hang-3"])
def test_a_later_incident_is_never_mixed_with_the_first(later: str, tmp_path: Path) -> None:
    """The newest is diagnosed, as if it lay alone, and the other one is named; minutes apart or not."""
    put("kill", tmp_path / "all/run", FIRST)
    put("sleep", tmp_path / "all" / later, LATER)
    found = hangscope.diagnose(tmp_path / "all")
    assert found.headline == hangscope.diagnose(INCIDENTS / "sleep").headline
    assert [gap.what for gap in found.job.gaps if gap.what.startswith("incident ")] == ["incident all/run"]
    put("sleep", tmp_path / "all" / later, "2026-11-15T01:50:00Z")
    assert hangscope.diagnose(tmp_path / "all").headline == hangscope.diagnose(INCIDENTS / "kill").headline


def test_what_a_restarted_attempt_prints_is_not_of_the_first_hang(tmp_path: Path) -> None:
    """Its output goes into the next incident's folder before anything hangs there: nobody described that yet."""
    put("kill", tmp_path / "run", FIRST)
    logs = tmp_path / "run/hang-2/nodes/n0/logs"
    logs.mkdir(parents=True)
    (logs / "rank_0.log").write_text("[rank0]: RuntimeError: another story\n")
    found = hangscope.diagnose(tmp_path / "run")
    assert found.headline == hangscope.diagnose(INCIDENTS / "kill").headline
    assert "another story" not in str(found.to_dict())
    assert "incident run/hang-2" in [gap.what for gap in found.job.gaps]


def test_parts_of_one_hang_on_several_nodes_stay_together(tmp_path: Path) -> None:
    """Nodes without a common directory each keep their second hang under the same name."""
    for node in ("a", "b"):
        put("kill", tmp_path / node / "run", FIRST)
        put("sleep", tmp_path / node / "run/hang-2", LATER)
    found = hangscope.load(tmp_path)
    assert sum(gap.what.startswith("incident ") for gap in found.gaps) == 2


def test_a_manifest_lists_its_own_incident_alone(tmp_path: Path) -> None:
    """The later incidents inside have manifests of their own."""
    put("kill", tmp_path / "run", FIRST)
    put("sleep", tmp_path / "run/hang-2", LATER)
    listed = manifest.build(tmp_path / "run").files
    assert listed and not [name for name in listed if name.startswith("hang-2/")]


def test_old_and_new_names_mean_the_same() -> None:
    """`x.hang-2` of versions before is `x/hang-2`."""
    assert place_of(("x.hang-2",)) == place_of(("x", "hang-2")) == (("x",), ("hang-2",))
    assert place_of(("a", "b")) == (("a", "b"), ())
