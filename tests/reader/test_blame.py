"""A message names the file that is bad, where the user finds it, and no other."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from hangscope.cli.main import main
from hangscope.reader.load import load

GOOD = sorted((Path(__file__).parents[1] / "cases" / "skipped").rglob("nccl_trace_rank_*"))[:2]
_DUMP = GOOD[0].read_bytes()


def _tar(name: str, data: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


BAD = {
    "a dump that is cut": ("nccl_trace_rank_7", _DUMP[: len(_DUMP) // 2]),
    "a dump that is none": ("nccl_trace_rank_7", b"\x80\x02}q\x00broken"),
    "an empty dump": ("nccl_trace_rank_7", b""),
    "a packed log that is cut": ("rank_7.log.gz", gzip.compress(b"RuntimeError: y\n" * 500)[:60]),
    "an archive that is cut": ("x7.tar", _tar("in/rank_7.log", b"RuntimeError: z\n" * 200)[:1500]),
    "a broken manifest": ("incident.json", b'{"schema": "hangscope.incident/1", broken'),
    "a broken node": ("node.json", b'{"schema": "hangscope.node/1", broken'),
    "a broken black box": ("box7", b"\xffHSNCCLB" + b"x" * 50),
    "a broken answer of RAS": ("ras7.json", b'{"nccl_version": "2.28.9", "communicators": [{'),
    "JSON of brackets": ("x7.json", b"[" + b"[]," * 3_000_000 + b"0]"),
    "a pipe": ("rank_7.log", None),
}


@pytest.mark.parametrize("place", ["", "nodes/gpu-b", "part.tar.gz"])
@pytest.mark.parametrize("kind", BAD)
def test_the_bad_file_among_good_ones_is_named(kind: str, place: str, tmp_path: Path) -> None:
    """Whatever is wrong with a file, in the folder, in a node's or in an archive: a gap names its path, and no gap
    names a neighbour of it."""
    name, data = BAD[kind]
    for dump in GOOD:
        shutil.copy(dump, tmp_path / dump.name)
    if place.endswith(".gz"):
        if data is None:
            pytest.skip("an archive holds no pipe that could be opened")
        (tmp_path / place).write_bytes(gzip.compress(_tar(f"deep/{name}", data)))
        bad = f"{tmp_path / place}!deep/{name}"
    else:
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        bad = str(tmp_path / place / name)
        if data is None:
            os.mkfifo(bad)
        else:
            Path(bad).write_bytes(data)
    gaps = load(tmp_path).gaps
    assert [gap for gap in gaps if gap.source is not None and gap.source.file.startswith(bad)], gaps
    for dump in GOOD:
        own = str(tmp_path / dump.name)
        assert not [gap for gap in gaps if own in gap.what or (gap.source and gap.source.file == own)]


@pytest.mark.parametrize(
    ("words", "blamed"),
    [
        (["collect", "--hostfile", "{bad}", "-o", "{out}"], "{bad}"),
        (["run", "--config", "{bad}", "--", "true"], "{bad}"),
        (["diagnose", "{good}", "{none}"], "{none}"),
        (["bundle", "{good}", "-o", "{bad}/b.tar.gz"], "{bad}"),
        (["report", "{good}", "-o", "{bad}/r.html"], "{bad}"),
        (["collect", "--from", "{good}", "-o", "{bad}/c"], "{bad}"),
        (["bundle", "{bad}", "--verify"], "{bad}"),
        (["bundle", "{bad}", "--unpack", "{out}"], "{bad}"),
        (["collect", "--from", "{none}", "-o", "{out}"], "{none}"),
    ],
)
def test_an_error_names_the_path_that_is_wrong(
    words: list[str], blamed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the paths on a command line, the error's first line names the one that cannot be used, and not the others."""
    paths = {"good": str(GOOD[0].parent), "bad": str(tmp_path / "bad"), "none": str(tmp_path / "none")}
    paths["out"] = str(tmp_path / "out")
    Path(paths["bad"]).write_bytes(b"\xff\xfe\x00[broken = \x1b\n")
    status = main([word.format(**paths) for word in words])
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert status == 2
    assert blamed.format(**paths) in error
    assert not [path for path in paths.values() if path in error and path != blamed.format(**paths)]
