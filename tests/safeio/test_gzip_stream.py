"""Decompressing a stranger's gzip: in pieces, no further than its size allows, and to its very end."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from hangscope.errors import DamagedError
from hangscope.safeio import limits
from hangscope.safeio.gzip_stream import Budget, gunzip, unpacked

DATA = random.Random(1).randbytes(300_000).hex().encode()


def _file(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "x.gz"
    path.write_bytes(data)
    return path


def _read(path: Path) -> bytes:
    parts = []
    with path.open("rb") as packed:
        stream = unpacked(packed, file=str(path))
        while part := stream.read(1 << 16):
            parts.append(part)
    return b"".join(parts)


PACKED = gzip.compress(DATA)
WRONG_SUM = PACKED[:-8] + bytes(4) + PACKED[-4:]


@pytest.mark.parametrize(
    "raw",
    [PACKED, gzip.compress(DATA[:1000]) + gzip.compress(DATA[1000:]), PACKED + bytes(700)],
    ids=["one", "two", "zeros"],
)
def test_a_whole_file_comes_out(tmp_path: Path, raw: bytes) -> None:
    """One stream, several one after the other, and zeros behind them, as tapes have."""
    assert _read(_file(tmp_path, raw)) == DATA


def test_what_is_not_packed_is_given_as_it_is(tmp_path: Path) -> None:
    """A plain file goes through untouched."""
    assert _read(_file(tmp_path, DATA)) == DATA


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (PACKED[:-9], "ends in the middle"),
        (PACKED[:1000], "ends in the middle"),
        (WRONG_SUM, "broken compression"),
        (PACKED + b"hidden", "something follows"),
        (b"\x1f\x8b" + DATA, "broken compression"),
    ],
    ids=["cut", "cut early", "checksum", "more behind", "no stream"],
)
def test_a_file_that_has_to_be_whole_is_refused_when_it_is_not(tmp_path: Path, raw: bytes, words: str) -> None:
    """Cut off, with a wrong checksum, or with something behind its end."""
    with pytest.raises(DamagedError, match=words):
        _read(_file(tmp_path, raw))


@pytest.mark.parametrize(
    ("raw", "reason"), [(PACKED[:200_000], ""), (WRONG_SUM, "incorrect data check")], ids=["cut", "checksum"]
)
def test_what_came_before_the_damage_is_given(tmp_path: Path, raw: bytes, reason: str) -> None:
    """A log whose transfer broke off still says what came over; the reason is said once."""
    said: list[str] = []
    with _file(tmp_path, raw).open("rb") as packed:
        data = gunzip(packed, Budget(len(raw), limits.ARCHIVE, "x"), said.append).read()
    assert len(data) > 100_000
    assert DATA.startswith(data[: 1 << 17])
    assert len(said) == 1
    assert reason in said[0]


def test_zeros_stop_at_the_budget(tmp_path: Path) -> None:
    """A file of zeros is given up once it unpacks to more than its size allows."""
    few = limits.ArchiveLimits(free_bytes=1 << 20, ratio=10)
    path = _file(tmp_path, gzip.compress(bytes(8 << 20)))
    with path.open("rb") as packed, pytest.raises(DamagedError, match="far more than a real archive"):
        unpacked(packed, file="x", limits=few).read(8 << 20)


def test_many_empty_streams_stop_at_the_budget(tmp_path: Path) -> None:
    """To start a stream costs, though it holds nothing."""
    raw = gzip.compress(b"") * 50_000
    with pytest.raises(DamagedError, match="far more than a real archive"):
        _read(_file(tmp_path, raw))
