"""Folders with far more files than evidence: a data set or a cache beside the logs."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from hangscope.bundle.pack import write_bundle
from hangscope.incident.collect import collect
from hangscope.incident.collect.directories import Directory
from hangscope.reader.load import load
from hangscope.safeio import evidence_names, limits
from hangscope.safeio.evidence_names import bounded
from kits import crowds

CASES = Path(__file__).parents[1] / "cases"
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
    monkeypatch.setattr(limits, "TAKEN_UNSEEN", MOST)  # the same with fewer files than the real bound takes
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


def test_logs_that_say_something_are_all_taken() -> None:
    """Of a job of any size, a log with a word of evidence in it is never left; one without any is, in a crowd."""
    logs = [f"/x/rank_{number}.log" for number in range(3 * limits.TAKEN_UNSEEN)]
    assert bounded(logs, str, lambda _: b"RuntimeError: x\n") == (logs, {})
    kept, left = bounded(logs, str, lambda name: b"Signal 9\n is killed" if name == logs[-1] else b"step 3\n")
    assert kept == [*logs[: limits.TAKEN_UNSEEN], logs[-1]]
    assert left == {"rank_#.log": 2 * limits.TAKEN_UNSEEN - 1}


def test_a_tree_is_looked_into_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reading saw of a hundred thousand files is not looked for again when they are packed: neither the files that
    hold nothing, nor those that do."""
    monkeypatch.setattr(limits, "TAKEN_UNSEEN", MOST)
    crowd = _crowd(tmp_path / "crowd")
    known: evidence_names.Known = {}
    load(crowd, known=known)
    assert len(known) == MORE + len(list(crowd.glob("zz*")))
    left = [path for (path, _), held in known.items() if not held]
    assert len(left) == MORE
    Path(left[0]).write_text("RuntimeError: written after the look\n")
    made = write_bundle(crowd, tmp_path / "b.tar.gz", known=known)
    assert Path(left[0]).relative_to(crowd).as_posix() not in made.manifest.files
    assert write_bundle(crowd, tmp_path / "c.tar.gz").manifest.files.keys() == made.manifest.files.keys()


@pytest.mark.parametrize(
    ("data", "held"),
    [
        (b"\x80\x02}(X\x07\x00\x00\x00versionX\x07\x00\x00\x00entries", True),
        (b"\x80\x02}q\x00broken", False),
        (b'{"schema": "hangscope.node/1"}', True),
        (b'{"a": 1}', False),
        (gzip.compress(b"gpu-a:1:1 [0] NCCL WARN x\n", mtime=0), True),
        (gzip.compress(b"nothing\n", mtime=0), False),
        (gzip.compress(b"nothing\n", mtime=0)[:12] + b"broken", False),
        ("RuntimeError: x".encode("utf-16"), True),
        (b"x" * limits.HEAD_BYTES, True),
        (b"", False),
    ],
)
def test_what_a_file_holds_is_seen(data: bytes, held: bool) -> None:
    """Dumps, our own files, packed logs, logs of Windows' shell and whatever is large are told from files that say
    nothing, by what is in them."""
    assert evidence_names.holds_evidence(data, telling=True) is held


@pytest.mark.parametrize("shape", sorted(crowds.SHAPES))
def test_a_hundred_thousand_files_cost_seconds(shape: str, tmp_path: Path) -> None:
    """No tree of a tenth of that size takes `bundle`, which reads it, packs it and says what it skipped, more than a
    part of what the whole may take; ``python tests/kits/crowds.py`` measures the whole."""
    with crowds.made(shape, 10_000) as tree:
        spent, megabytes, said = crowds.ask(["bundle", tree, "-o", str(tmp_path / "b.tar.gz")])
    assert "Traceback" not in said
    assert spent < crowds.SECONDS and megabytes < crowds.MEGABYTES
