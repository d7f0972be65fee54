"""Folders with far more files than evidence: a data set or a cache beside the logs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hangscope.incident import evidence
from hangscope.incident.bundle import write_bundle
from hangscope.incident.collect import collect
from hangscope.incident.collect.directories import Directory
from hangscope.incident.evidence import bounded
from hangscope.reader.load import load

CASES = Path(__file__).parent / "cases"
MOST, MORE = 300, 50


def _crowd(root: Path) -> Path:
    (root / "data").mkdir(parents=True)
    for number in range(MOST + MORE):
        (root / "data" / f"{number}.txt").write_text("x\n")
    for dump in (CASES / "skipped").rglob("*_trace_rank_*"):
        shutil.copy(dump, root / f"zz{dump.name.rpartition('_')[2]}")
    return root


def test_a_crowd_of_files_does_not_hide_a_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder with more files than are worth a look, dumps of any name are read, packed and collected, and the
    number that was left is said."""
    monkeypatch.setattr(evidence, "MOST_UNTOLD", MOST)  # the same with fewer files than the real bound takes
    crowd = _crowd(tmp_path / "crowd")
    dumps = {path.name for path in crowd.glob("zz*")}
    what = f"{MORE} of {MOST + MORE + len(dumps)} files"
    job = load(crowd)
    assert len(job.dumps) == len(dumps) > 0
    assert what in [gap.what for gap in job.gaps]
    made = write_bundle(crowd, tmp_path / "b.tar.gz")
    assert dumps <= set(made.manifest.files)
    assert what in [gap.what for gap in made.left_out] and what in [gap.what for gap in made.manifest.gaps]
    found = collect(tmp_path / "c", [Directory(crowd)])
    assert what in [gap.what for gap in found.manifest.gaps]
    assert dumps == {path.name for path in (tmp_path / "c").rglob("zz*")}


def test_files_that_say_what_they_are_are_all_taken() -> None:
    """Logs of a job of any size are evidence by their names, and none of them is left."""
    logs = [f"/x/rank_{number}.log" for number in range(3 * evidence.MOST_UNTOLD)]
    assert bounded(logs, str, lambda _: b"") == (logs, 0)
