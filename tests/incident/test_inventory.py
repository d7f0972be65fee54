"""The incidents of a directory: listed, the newest by the name `latest`, and old ones taken away and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from hangscope.cli.main import main
from hangscope.errors import NotFoundError
from hangscope.incident import inventory

INCIDENTS = Path(__file__).parents[1] / "incidents"
DAY = 86_400


def put(source: str, target: Path, days: float, **more: object) -> Path:
    """A recorded incident that was captured so many days ago."""
    shutil.copytree(INCIDENTS / source, target, dirs_exist_ok=True)
    (target / "truth.json").unlink(missing_ok=True)
    at = time.time() - days * DAY
    moment = datetime.fromtimestamp(at, timezone.utc).isoformat()
    file = target / "incident.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "captured_at": moment, **more}))
    for path in target.rglob("*"):
        os.utime(path, (at, at))
    return target


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Three incidents of two jobs, the oldest 30 days old, and things of the user beside them."""
    put("kill", tmp_path / "hangscope/7/0", 30, job="7")
    put("sleep", tmp_path / "hangscope/7/0/hang-2", 20, job="7")
    put("stop", tmp_path / "hangscope/8/0", 1, job="8")
    (tmp_path / "hangscope/notes").mkdir()
    (tmp_path / "hangscope/notes/incident.json").write_text('{"schema": "something else"}')
    return tmp_path


def names(found: list[inventory.Listed], place: Path) -> list[str]:
    return [each.path.relative_to(place / "hangscope").as_posix() for each in found]


def test_incidents_are_found_by_their_manifests(place: Path) -> None:
    """Also later ones inside a run's directory, the oldest first; what only looks like one is none."""
    assert names(inventory.incidents(place), place) == ["7/0", "7/0/hang-2", "8/0"]
    assert inventory.newest(place) == place / "hangscope/8/0"
    with pytest.raises(NotFoundError):
        inventory.newest(place / "hangscope/notes")


def test_ls_shows_a_table_and_json(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With job, attempt, outcome and headline; a verdict that is missing or hostile costs nothing."""
    monkeypatch.chdir(place)
    monkeypatch.delenv("HANGSCOPE_DIR", raising=False)
    evil = {"outcome": "hang", "headline": "\x1b[2Jrank 3 \u202e is absent"}
    (place / "hangscope/8/0/verdict.json").write_text(json.dumps(evil))
    (place / "hangscope/7/0/verdict.json").write_text("[" * 100_000)
    assert main(["ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["when", "job", "attempt", "outcome", "size", "where", "headline"]
    assert len(lines) == 4 and lines[3].split()[2:5] == ["8", "0", "HANG"]
    assert "\x1b" not in lines[3] and "\u202e" not in lines[3] and "rank 3" in lines[3]
    assert main(["ls", str(place), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [each["job"] for each in listed] == ["7", "7", "8"]
    assert listed[2]["outcome"] == "hang" and listed[2]["bytes"] > 0


def test_latest_is_a_path_for_every_verb(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest here, or below a directory; a file of that name is that file."""
    monkeypatch.chdir(place)
    monkeypatch.delenv("HANGSCOPE_DIR", raising=False)
    status = main(["diagnose", str(place / "hangscope/8/0")])
    wanted = capsys.readouterr().out
    for path in ("latest", "hangscope/8/latest", str(place / "latest")):
        assert main(["diagnose", path]) == status
        assert capsys.readouterr().out == wanted
    assert main(["show", "latest", "--last", "1"]) == 0
    assert main(["report", "latest", "-o", "x.json"]) == status
    assert main(["bundle", "latest", "-o", "x.tar.gz", "--no-verdict"]) == 0
    (place / "latest").write_text("nothing")
    assert main(["diagnose", "latest"]) == 2


def test_prune_takes_old_incidents_and_nothing_else(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What lies in the same directory and is not of the incident stays; --dry-run takes nothing."""
    mine = place / "hangscope/7/0/my-results.csv"
    mine.write_text("x")
    before = sorted(place.rglob("*"))
    assert main(["prune", str(place), "--older-than", "14d", "--dry-run"]) == 0
    assert sorted(place.rglob("*")) == before
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["prune", str(place), "--older-than", "25d"]) == 0
    assert names(inventory.incidents(place), place) == ["7/0/hang-2", "8/0"]
    assert mine.exists() and (place / "hangscope/notes/incident.json").exists()
    assert main(["prune", str(place), "--older-than", "14d"]) == 0
    assert names(inventory.incidents(place), place) == ["8/0"]
    assert not (place / "hangscope/7/0/hang-2").exists()


def test_prune_leaves_a_run_that_goes_on(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its first hang may be weeks old; its directory is where the agents write now."""
    node = next((place / "hangscope/7/0/nodes").iterdir())
    (node / "status.json").write_text("{}")
    assert main(["prune", str(place), "--older-than", "14d"]) == 0
    assert "its run goes on" in capsys.readouterr().err
    assert (place / "hangscope/7/0/incident.json").exists()


def test_prune_follows_no_link(tmp_path: Path) -> None:
    """Neither to an incident, nor out of one, nor where a folder of it is a link."""
    outside = put("kill", tmp_path / "outside", 30)
    kept = sorted(outside.rglob("*"))
    place = tmp_path / "place"
    place.mkdir()
    (place / "link").symlink_to(outside)
    own = put("sleep", place / "own", 30)
    shutil.rmtree(own / "nodes")
    (own / "nodes").symlink_to(outside / "nodes")
    assert main(["prune", str(place), "--older-than", "14d"]) == 0
    assert sorted(outside.rglob("*")) == kept
    assert not (own / "incident.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user beside")
def test_prune_leaves_what_is_somebody_elses(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Root, too, takes only its own."""
    os.chown(place / "hangscope/7/0", 12345, 12345)
    assert main(["prune", str(place), "--older-than", "25d"]) == 0
    assert "somebody else's" in capsys.readouterr().err
    assert (place / "hangscope/7/0/incident.json").exists()


def test_a_bundle_of_a_run_holds_its_newest_incident_alone(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is what the verdict is about."""
    target = place / "x.tar.gz"
    assert main(["bundle", str(place / "hangscope/7/0"), "-o", str(target)]) == 0
    assert "the newest of 2 incidents" in capsys.readouterr().err
    assert main(["diagnose", str(target)]) == main(["diagnose", str(place / "hangscope/7/0/hang-2")])
