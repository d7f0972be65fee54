"""gzip and tar, opened in memory: every plain file comes out, nothing else does, and nothing is written."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import time
from pathlib import Path

import pytest

from hangscope.errors import DamagedError
from hangscope.model import Gap
from hangscope.reader import archives
from hangscope.safeio.limits import ARCHIVE

FORMATS = {"gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT, "ustar": tarfile.USTAR_FORMAT}
FILES = {
    "nodes/a/nccl_trace_rank_0": b"first",
    "nodes/b/empty": b"",
    "nodes/b/" + "deep/" * 30 + "log_1": b"x" * 1300,
    "nodes/ü/log_2": b"y" * 512,
}


def tar(members: dict[str, bytes], form: int = tarfile.GNU_FORMAT, extra: tuple[tarfile.TarInfo, ...] = ()) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as archive:
        for info in extra:
            archive.addfile(info)
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info


def opened(data: bytes, **options: object) -> tuple[dict[str, bytes], list[Gap]]:
    gaps: list[Gap] = []
    found = dict(archives.members(data, file="a.tar", gaps=gaps, **options))  # type: ignore[arg-type]
    return found, gaps


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("compressed", [False, True])
def test_every_file_of_an_archive_comes_out(form: str, compressed: bool) -> None:
    """GNU, pax and plain tar, compressed or not, give each file with its name and bytes."""
    data = tar(FILES, FORMATS[form])
    data = gzip.compress(data) if compressed else data
    assert archives.recognise(data[:512]) == ("gzip" if compressed else "tar")
    found, gaps = opened(data)
    assert found == FILES
    assert not gaps


def test_a_single_compressed_file_has_no_name_of_its_own() -> None:
    """A gzip file is the file it was made from; several streams one after the other are one file."""
    assert list(archives.members(gzip.compress(b"one ") + gzip.compress(b"two"), file="x")) == [("", b"one two")]


def test_compressed_files_inside_an_archive_are_opened_too() -> None:
    """Each node's own archive inside the job's archive, and a compressed dump inside that."""
    inner = tar({"nccl_trace_rank_3.gz": gzip.compress(b"dump")})
    found, gaps = opened(tar({"node-a.tar.gz": gzip.compress(inner), "plain": b"x"}))
    assert found == {"node-a.tar.gz!nccl_trace_rank_3.gz": b"dump", "plain": b"x"}
    assert not gaps


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a character device"),
        (tarfile.BLKTYPE, "a block device"),
        (tarfile.FIFOTYPE, "a pipe"),
    ],
)
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes, text: str) -> None:
    """What is no plain file is never followed or made, and a gap names it."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    found, gaps = opened(tar({"a": b"1"}, extra=(special("sly", kind, str(secret)),)))
    assert found == {"a": b"1"}
    (gap,) = gaps
    assert "sly" in gap.what
    assert text in gap.why


def test_names_are_shown_and_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that point up or to the root lose that part, names with control characters are made harmless."""
    monkeypatch.chdir(tmp_path)
    found, _ = opened(tar({"../../etc/passwd": b"1", "/abs/rank_1": b"2", "a\x1b[31m\n": b"3", "./b/./c": b"4"}))
    assert set(found) == {"etc/passwd", "abs/rank_1", "a?[31m?", "b/c"}
    assert os.listdir(tmp_path) == []


def test_a_cut_archive_gives_what_came_before() -> None:
    """Cut anywhere, an archive gives the files before the cut, at most the last one short, and a gap or an error."""
    for data in (tar(FILES), gzip.compress(tar(FILES))):
        for cut in range(20, len(data), 97):
            gaps: list[Gap] = []
            found: dict[str, bytes] = {}
            try:
                for name, content in archives.members(data[:cut], file="a.tar", gaps=gaps):
                    found[name] = content
            except DamagedError as error:
                assert "a.tar" in str(error)
            for name, content in found.items():
                assert name in FILES or name == ""
                assert FILES.get(name, content).startswith(content)


def test_a_damaged_header_ends_the_archive() -> None:
    """A header whose checksum is wrong is not believed; what came before it stands."""
    data = bytearray(tar({"a": b"1", "b": b"2"}))
    data[1024 + 3] ^= 0xFF
    found = []
    with pytest.raises(DamagedError, match=r"a\.tar: a tar header whose checksum is wrong at byte 1024"):
        for name, _ in archives.members(bytes(data), file="a.tar"):
            found.append(name)
    assert found == ["a"]


def test_damaged_compression_is_told() -> None:
    """A flipped byte inside compressed data ends it with a gap."""
    data = bytearray(gzip.compress(os.urandom(20_000)))
    data[10_000] ^= 0xFF
    found, gaps = opened(bytes(data))
    assert len(found[""]) <= 20_000
    assert "damaged" in gaps[0].why


def nested_bomb(levels: int) -> bytes:
    data = bytes(1 << 26)
    for _ in range(levels):
        data = gzip.compress(data, 9)
    return data


BOMBS = {
    "one layer": lambda: gzip.compress(bytes(1 << 28), 1),
    "three layers": lambda: nested_bomb(3),
    "many layers": lambda: nested_bomb(8),
    "tar of bombs": lambda: tar(
        dict.fromkeys((f"{number}.gz" for number in range(40)), gzip.compress(bytes(1 << 25), 1))
    ),
    "a member that claims everything": lambda: tar({"a": b"1"})[:124] + b"7" * 11 + b"\x00" + tar({"a": b"1"})[136:],
    "many empty streams": lambda: gzip.compress(b"") * 50_000,
    "names without end": lambda: gzip.compress(tar({"x" * 4_000_000: b"1"})),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_stopped_early(name: str) -> None:
    """An archive that unpacks to far more than its size is stopped by time and by memory, with an error or a gap."""
    data = BOMBS[name]()
    started = time.process_time()
    gaps: list[Gap] = []
    largest = 0
    try:
        for _, content in archives.members(data, file="bomb", gaps=gaps):
            largest = max(largest, len(content))
    except DamagedError as error:
        gaps.append(Gap(str(error)))
    assert time.process_time() - started < 2
    assert largest <= ARCHIVE.memory_bytes
    assert gaps


def test_other_files_are_no_archives() -> None:
    """Text, zeros and dumps are not taken for archives."""
    for data in (b"", b"hello" * 200, bytes(2000), b"\x80\x02}(" + b"X" * 600):
        assert not archives.recognise(data[:512])
        with pytest.raises(DamagedError, match="neither gzip, zip nor tar"):
            list(archives.members(data, file="x"))


def test_an_open_file_is_read_without_loading_it() -> None:
    """A stream works as well as bytes."""
    assert dict(archives.members(io.BytesIO(tar(FILES)), file="x")) == FILES
