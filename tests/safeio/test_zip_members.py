"""Zips of a stranger: every plain file comes out, nothing else does, and what it unpacks to is bounded."""

from __future__ import annotations

import gzip
import io
import shutil
import stat
import struct
import time
import zipfile
from pathlib import Path

import pytest

import hangscope
from hangscope.errors import DamagedError
from hangscope.safeio.limits import ARCHIVE, ArchiveLimits
from hangscope.safeio.open_archive import members, recognise

CASES = Path(__file__).parents[1] / "cases"
FILES = {"nodes/a/nccl_trace_rank_0": b"first", "nodes/b/empty": b"", "nodes/ü/log_2": b"y" * 70_000}


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made.getvalue()


def opened(data: bytes, limits: ArchiveLimits = ARCHIVE) -> tuple[dict[str, bytes], dict[str, str]]:
    refused: dict[str, str] = {}
    found = dict(members(io.BytesIO(data), file="a.zip", refuse=refused.__setitem__, limits=limits))
    return found, refused


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_every_file_of_a_zip_comes_out(method: int) -> None:
    """Stored or deflated, with its name and bytes."""
    data = zipped(FILES, method)
    assert recognise(data[:512]) == "zip"
    assert opened(data) == (FILES, {})


def test_a_zip_inside_a_zip_and_inside_gzip_is_opened() -> None:
    """As tars inside tars are."""
    inner = zipped({"nccl_trace_rank_3.gz": gzip.compress(b"dump")})
    assert opened(zipped({"node-a.zip": inner})) == ({"node-a.zip!nccl_trace_rank_3.gz": b"dump"}, {})
    assert opened(gzip.compress(inner)) == ({"nccl_trace_rank_3.gz": b"dump"}, {})


def test_a_zip_with_a_comment_and_one_of_many_files_are_read() -> None:
    """The list of files is found behind a comment, and in the form for more than 65,535 files."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.comment = b"made by PK\x05\x06 somebody" * 100
        archive.writestr("rank_0.log", b"x")
    assert opened(made.getvalue()) == ({"rank_0.log": b"x"}, {})
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for number in range(66_000):
            archive.writestr(f"{number}", b"")
    assert len(opened(made.getvalue())[0]) == 66_000


def test_names_lead_nowhere() -> None:
    """A way up, a root and Windows' separators are taken out of names: they serve for showing only."""
    found, _ = opened(zipped({"../../etc/passwd": b"1", "/abs/log": b"2", "..\\..\\win.log": b"3"}))
    assert found == {"etc/passwd": b"1", "abs/log": b"2", "win.log": b"3"}


def test_links_and_encrypted_files_are_refused() -> None:
    """Each with its reason; the files beside them are read."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        link = zipfile.ZipInfo("link.log")
        link.create_system = 3
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("secret.log", "x")
        archive.writestr("rank_0.log", "y")
    data = bytearray(made.getvalue())
    for entry in (data.find(b"PK\x01\x02"), data.find(b"PK\x01\x02", data.find(b"PK\x01\x02") + 4)):
        if b"secret.log" in data[entry : entry + 60]:
            data[entry + 8] |= 1
    found, refused = opened(bytes(data))
    assert found == {"rank_0.log": b"y"}
    assert "symbolic link" in refused["link.log"] and "encrypted" in refused["secret.log"]


def test_a_method_that_nobody_opens_is_named() -> None:
    """bzip2 and lzma inside a zip are refused by name."""
    assert opened(zipped({"a.log": b"x" * 100}, zipfile.ZIP_BZIP2)) == (
        {},
        {"a.log": "packed with bzip2, which is not opened"},
    )


def test_a_bomb_stops_early() -> None:
    """Of one whose members all lie over each other the first is read, and the others are refused."""
    start = time.process_time()
    with pytest.raises(DamagedError, match="far more"):
        opened(zipped({f"{number}.log": bytes(40 << 20) for number in range(4)}))
    kernel = zipped({"a": bytes(30 << 20)})
    at = kernel.find(b"PK\x01\x02")
    entry = kernel[at : kernel.find(b"PK\x05\x06")]
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 500, 500, len(entry) * 500, at, 0)
    found, refused = opened(kernel[:at] + entry * 500 + end)
    assert len(found) <= 1 and all("another member's" in why for why in refused.values()) and refused
    assert time.process_time() - start < 5


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.999])
def test_a_zip_that_is_cut_off_says_so(keep: float) -> None:
    """Its list of files is at its end: nothing can be said without it."""
    data = zipped(FILES)
    with pytest.raises(DamagedError, match="cut off"):
        opened(data[: int(len(data) * keep)])


def test_damage_in_one_file_leaves_the_others() -> None:
    """A wrong checksum is a reason to refuse that file alone."""
    data = bytearray(zipped({"a.log": b"abc" * 100, "b.log": b"fine"}, zipfile.ZIP_STORED))
    data[data.find(b"abcabc") + 3] ^= 1
    found, refused = opened(bytes(data))
    assert found == {"b.log": b"fine"} and "checksum" in refused["a.log"]


def test_any_single_wrong_byte_ends_in_our_own_words() -> None:
    """Whatever byte is wrong, a zip is read, refused in part or refused, and never breaks the reader."""
    whole = {"nodes/a.log": b"some text " * 9, "c": b"z"}
    data = zipped({**whole, "b/": b""})
    for place in range(len(data)):
        for value in (0, 0xFF, data[place] ^ 0x80):
            try:
                found, _ = opened(data[:place] + bytes([value]) + data[place + 1 :])
            except DamagedError:
                continue
            assert all(content in (*whole.values(), b"") for content in found.values())


def test_a_checkpoint_is_no_evidence() -> None:
    """What torch.save writes is a zip too, and so are documents."""
    checkpoint = {
        "model/data.pkl": b"\x80\x02}.",
        "model/byteorder": b"little",
        "model/data/0": b"1",
        "model/version": b"3",
    }
    assert opened(zipped(checkpoint)) == ({}, {"": "a checkpoint of PyTorch, which is no evidence"})
    assert opened(zipped({"[Content_Types].xml": b"<x/>"}))[0] == {}


def test_a_zipped_case_gives_the_same_verdict(tmp_path: Path) -> None:
    """As the folder that it was made of does."""
    packed = shutil.make_archive(str(tmp_path / "case"), "zip", CASES / "mesh_absent")
    there, here = hangscope.diagnose(packed), hangscope.diagnose(CASES / "mesh_absent")
    assert (there.kind, there.culprits, there.headline) == (here.kind, here.culprits, here.headline)
    assert there.confidence == here.confidence == "high"
