"""Opening a stranger's bundle: every trick is refused with a clear error, and nothing is written outside."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hangscope.bundle.unpack import extract, verify
from hangscope.errors import DamagedError, InputError, NotFoundError
from hangscope.safeio.limits import ArchiveLimits
from hangscope.safeio.member_names import Names, unsafe
from hangscope.safeio.tar_stream import TarReader

GOOD = {"nodes/a/dumps/nccl_trace_rank_0": b"\x80\x02}.", "nodes/a/logs/rank_0.log": b"hello\n"}


def _manifest(files: dict[str, bytes]) -> bytes:
    listed = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    return json.dumps({"schema": "hangscope.incident/1", "job": "1", "attempt": "0", "files": listed}).encode()


def _add(tar: tarfile.TarFile, name: str, data: bytes = b"", **fields: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    tar.addfile(info, io.BytesIO(data))


def _bundle(path: Path, change: Callable[[tarfile.TarFile], None] | None = None, **options: bytes | None) -> Path:
    """A sound bundle, plus whatever `change` adds to it."""
    with tarfile.open(path, "w:gz") as tar:
        for name, data in GOOD.items():
            _add(tar, f"inc/{name}", data)
        if change is not None:
            change(tar)
        manifest = options.get("manifest", _manifest(GOOD))
        if manifest is not None:
            _add(tar, "inc/incident.json", manifest)
    return path


def _refused(bundle: Path, tmp_path: Path, match: str) -> None:
    """verify and extract both refuse, with these words, and the whole playground has no new file."""
    before = set(tmp_path.rglob("*"))
    for attempt in (lambda: verify(bundle), lambda: extract(bundle, tmp_path / "out")):
        with pytest.raises(InputError, match=match) as raised:
            attempt()
        assert str(raised.value).startswith(str(bundle))
        assert "\n" not in str(raised.value)
    assert set(tmp_path.rglob("*")) == before


def test_a_sound_bundle_opens(tmp_path: Path) -> None:
    """What hangscope wrote is verified and extracted, byte for byte, under the name that was asked for."""
    bundle = _bundle(tmp_path / "x.tar.gz")
    opened = verify(bundle)
    assert (opened.name, opened.files, opened.manifest.job) == ("inc", 2, "1")
    extract(bundle, tmp_path / "out")
    for name, data in GOOD.items():
        assert (tmp_path / "out" / name).read_bytes() == data
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_common_tar_format_is_read(tmp_path: Path, tar_format: int) -> None:
    """Names of 150 characters and foreign letters come through in ustar, GNU and pax archives alike."""
    name = "nodes/" + "a" * 60 + "/logs/" + "b" * 80 + ("" if tar_format == tarfile.USTAR_FORMAT else "é") + ".log"
    files = {name: b"x" * 1025}
    bundle = tmp_path / "x.tar"
    with tarfile.open(bundle, "w", format=tar_format) as tar:
        _add(tar, f"i/{name}", files[name], mtime=1_794_700_000)
        _add(tar, "i/incident.json", _manifest(files))
    assert verify(bundle).files == 1
    with bundle.open("rb") as stream:
        member, content = next(iter(TarReader(stream)))
        assert (member.name, member.size, member.mtime) == (f"i/{name}", 1025, 1_794_700_000)
        assert content.read() == b"x" * 1025


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("inc/../../escaped", "leaves the target"),
        ("../escaped", "leaves the target"),
        ("inc/nodes/../../../escaped", "leaves the target"),
        ("/tmp/escaped", "absolute path"),
        ("//server/share", "absolute path"),
        ("C:/escaped", "absolute path"),
        ("c:escaped", "absolute path"),
        ("inc\\..\\..\\escaped", "backslash"),
        ("inc/a\x1b[2Jb", "control characters"),
        ("inc/a\nb", "control characters"),
        ("inc/gpj.\u202eexe", "control characters"),
        ("inc/./a", "empty part"),
        ("inc//a", "empty part"),
        ("inc/stream:hidden", "some systems read as another"),
        ("inc/a. ", "some systems read as another"),
        ("inc/" + "a" * 300, "too deep or too long"),
        ("inc/" + "a/" * 100 + "b", "too deep or too long"),
        ("inc/" + "abcdefg/" * 140 + "b", "too long"),
        ("other/file", "not inside the bundle's one folder"),
        ("file", "not inside the bundle's one folder"),
        ("inc/unlisted.txt", "is not listed"),
    ],
)
def test_a_name_that_tricks_is_refused(tmp_path: Path, name: str, match: str) -> None:
    """Traversal, absolute paths, drive letters, streams and terminal escapes are refused by name."""
    _refused(_bundle(tmp_path / "x.tar.gz", lambda tar: _add(tar, name, b"evil")), tmp_path, match)


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        (tarfile.SYMTYPE, "symbolic link"),
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.CHRTYPE, "character device"),
        (tarfile.BLKTYPE, "block device"),
        (tarfile.FIFOTYPE, "pipe"),
        (tarfile.GNUTYPE_SPARSE, "sparse"),
        (b"M", "multi-volume"),
        (b"Z", "type b'Z'"),
    ],
)
def test_links_devices_and_oddities_are_refused(tmp_path: Path, kind: bytes, match: str) -> None:
    """An archive with anything but plain files and directories is refused whole."""
    bundle = _bundle(tmp_path / "x.tar.gz", lambda tar: _add(tar, "inc/odd", type=kind, linkname="/etc/passwd"))
    _refused(bundle, tmp_path, match)


def test_a_file_behind_a_link_is_not_written(tmp_path: Path) -> None:
    """The classic pair, a link and then a file through it, writes nothing where the link points."""
    outside = tmp_path / "outside"
    outside.mkdir()

    def change(tar: tarfile.TarFile) -> None:
        _add(tar, "inc/dir", type=tarfile.SYMTYPE, linkname=str(outside))
        _add(tar, "inc/dir/owned", b"evil")

    _refused(_bundle(tmp_path / "x.tar.gz", change), tmp_path, "symbolic link")


@pytest.mark.parametrize(
    ("first", "second", "match"),
    [
        ("inc/a.txt", "inc/a.txt", "same name twice"),
        ("inc/a.txt", "inc/A.TXT", "same name twice"),
        ("inc/stra\u00dfe", "inc/STRASSE", "same name twice"),
        ("inc/caf\u00e9", "inc/cafe\u0301", "same name twice"),
        ("inc/a", "inc/a/b", "file used as a directory"),
        ("inc/a/b", "inc/a", "directory used as a file"),
        ("inc/dir/a", "inc/DIR/b", "another spelling"),
    ],
)
def test_names_that_fall_on_each_other_are_refused(tmp_path: Path, first: str, second: str, match: str) -> None:
    """Two names that some file system takes for one are refused, so that no file replaces another."""

    def change(tar: tarfile.TarFile) -> None:
        _add(tar, first, b"good")
        _add(tar, second, b"evil")

    _refused(_bundle(tmp_path / "x.tar.gz", change), tmp_path, match)


def test_the_manifest_cannot_be_given_twice(tmp_path: Path) -> None:
    """A second incident.json is a duplicate name like any other."""
    change = lambda tar: _add(tar, "inc/incident.json", _manifest({}))  # noqa: E731
    _refused(_bundle(tmp_path / "x.tar.gz", change), tmp_path, "same name twice")


@pytest.mark.parametrize(
    ("manifest", "match"),
    [
        (_manifest({**GOOD, "nodes/a/logs/rank_0.log": b"other\n"}), "checksum"),
        (_manifest({**GOOD, "nodes/a/logs/rank_1.log": b""}), "listed but not there"),
        (_manifest({"nodes/a/logs/rank_0.log": b"hello\n"}), "not listed"),
        (b"{}", "not a manifest"),
        (b"\x00" * 100, "not JSON"),
        (None, "no incident.json in it"),
    ],
)
def test_contents_that_differ_from_the_manifest_are_refused(tmp_path: Path, manifest: bytes | None, match: str) -> None:
    """A changed, missing, added or unlisted file, and a broken manifest, are refused."""
    _refused(_bundle(tmp_path / "x.tar.gz", manifest=manifest), tmp_path, match)


def test_a_bomb_of_zeros_is_refused_early(tmp_path: Path) -> None:
    """Four gigabytes of zeros in four megabytes are refused after a small part of them, with nothing on disk."""
    bundle = tmp_path / "bomb.tar.gz"
    header = tarfile.TarInfo("inc/zeros")
    header.size = 4 << 30
    with gzip.open(bundle, "wb", compresslevel=1) as out:
        out.write(header.tobuf())
        block = bytes(8 << 20)
        for _ in range(64):
            out.write(block)
    _refused(bundle, tmp_path, "far more than a real archive of its size")


def test_a_file_that_claims_too_much_is_refused_before_reading(tmp_path: Path) -> None:
    """A header that claims an exabyte is refused at once."""
    bundle = tmp_path / "claim.tar.gz"
    header = tarfile.TarInfo("inc/huge")
    header.size = 1 << 60
    with gzip.open(bundle, "wb") as out:
        out.write(header.tobuf(tarfile.GNU_FORMAT))
    _refused(bundle, tmp_path, "claims 1152921504606846976 bytes")


def test_an_extension_header_of_a_gigabyte_is_refused(tmp_path: Path) -> None:
    """A pax header is not read into memory whatever size it claims."""
    bundle = tmp_path / "pax.tar.gz"
    header = tarfile.TarInfo("x")
    header.type = tarfile.XHDTYPE
    header.size = 1 << 30
    with gzip.open(bundle, "wb") as out:
        out.write(header.tobuf() + bytes(1 << 20))
    _refused(bundle, tmp_path, "extension header of 1073741824 bytes")


@pytest.mark.parametrize(
    "record", [b"99 path=x\n", b"path=x\n", b"0 path=x\n", b"11 size=-1\n\n", b"30 GNU.sparse.major=1 xxxxxxxx\n"]
)
def test_a_broken_extension_header_is_refused(tmp_path: Path, record: bytes) -> None:
    """Extension records with wrong lengths, negative sizes or sparse maps are refused."""
    bundle = tmp_path / "pax.tar.gz"
    header = tarfile.TarInfo("x")
    header.type = tarfile.XHDTYPE
    header.size = len(record)
    with gzip.open(bundle, "wb") as out:
        out.write(header.tobuf() + record.ljust(512, b"\0"))
    _refused(bundle, tmp_path, "extension header|sparse")


def test_a_million_entries_are_refused(tmp_path: Path) -> None:
    """An archive of a million empty files is refused at the limit, in seconds and with nothing on disk."""
    bundle = tmp_path / "many.tar.gz"
    with gzip.open(bundle, "wb", compresslevel=1) as out:
        template = bytearray(tarfile.TarInfo("inc/0000000").tobuf())
        base = sum(template[:148]) + 8 * 32 + sum(template[156:]) - sum(template[4:11])
        blocks = bytearray()
        for number in range(1_000_000):
            digits = b"%07d" % number
            template[4:11] = digits
            template[148:156] = b"%06o\0 " % (base + sum(digits))
            blocks += template
            if len(blocks) > 1 << 20:
                out.write(blocks)
                blocks.clear()
        out.write(blocks)
    with pytest.raises(DamagedError, match="more than 250000 entries"):
        verify(bundle)
    with pytest.raises(DamagedError, match="more than 100 entries"):
        extract(bundle, tmp_path / "out", limits=ArchiveLimits(members=100))
    assert [path.name for path in tmp_path.iterdir()] == ["many.tar.gz"]


def test_totals_are_limited(tmp_path: Path) -> None:
    """Many files, each within its limit, are refused together."""
    bundle = _bundle(tmp_path / "x.tar.gz", lambda tar: _add(tar, "inc/big", os.urandom(5000)))
    with pytest.raises(DamagedError, match="more than 4096 bytes unpacked"):
        verify(bundle, limits=ArchiveLimits(total_bytes=4096))


@pytest.mark.parametrize("keep", [0, 1, 20, 100, -1, -9])
def test_a_cut_bundle_is_named_as_cut(tmp_path: Path, keep: int) -> None:
    """A bundle whose transfer broke off is refused wherever it was cut."""
    bundle = _bundle(tmp_path / "x.tar.gz")
    raw = bundle.read_bytes()
    bundle.write_bytes(raw[: keep if keep >= 0 else len(raw) + keep])
    _refused(bundle, tmp_path, "ends|broken|not a tar|no incident")


def test_data_hidden_behind_the_end_is_refused(tmp_path: Path) -> None:
    """A second archive behind the end mark, which other tools may read, is refused."""
    bundle = _bundle(tmp_path / "x.tar.gz")
    bundle.write_bytes(bundle.read_bytes() * 2)
    _refused(bundle, tmp_path, "follows after the end")


def test_garbage_is_refused(tmp_path: Path) -> None:
    """Random bytes, and random bytes in a gzip, are no bundle."""
    bundle = tmp_path / "x.tar.gz"
    for data in (os.urandom(5000), gzip.compress(os.urandom(5000)), b"\x1f\x8b" + os.urandom(5000)):
        bundle.write_bytes(data)
        _refused(bundle, tmp_path, "checksum is wrong|broken compression|without a valid size|ends")


def test_a_missing_bundle_and_an_existing_target_are_errors(tmp_path: Path) -> None:
    """A bundle that is not there, and a target that is, are refused before anything happens."""
    with pytest.raises(NotFoundError, match="no such file"):
        verify(tmp_path / "none.tar.gz")
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="already exists"):
        extract(_bundle(tmp_path / "x.tar.gz"), tmp_path / "out")


def test_signed_checksums_and_binary_sizes_are_understood() -> None:
    """Headers of old tars (signed sums) and of large files (binary sizes) are read, not refused."""
    raw = bytearray(tarfile.TarInfo("caf\u00e9").tobuf(tarfile.GNU_FORMAT))
    body = raw[:148] + b" " * 8 + raw[156:]
    raw[148:156] = b"%06o\0 " % sum(byte - 256 if byte > 127 else byte for byte in body)
    assert [member.name for member, _ in TarReader(io.BytesIO(bytes(raw) + bytes(1024)))] == ["caf\u00e9"]
    info = tarfile.TarInfo("big")
    info.size = 9 << 30
    stream = io.BytesIO(info.tobuf(tarfile.GNU_FORMAT))
    assert struct.pack(">Q", 9 << 30) in stream.getvalue()
    assert next(iter(TarReader(stream)))[0].size == 9 << 30


def test_plain_names_are_safe() -> None:
    """Names that incidents use are accepted, and directories may be named before their files."""
    for name in ("nodes/gpu-a017/dumps/nccl_trace_rank_0", "i/nodes/a.b.c/logs/nccl.a.12.log", "a/Überblick.txt"):
        assert unsafe(name) is None
    names = Names()
    assert names.add("a/b/", folder=True) is None
    assert names.add("a/b/", folder=True) is None
    assert names.add("a/b/c") is None
