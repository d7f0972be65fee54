"""Archives whose lines cost minutes, though their bytes are within the bounds: what is read of them has an end."""

from __future__ import annotations

import io
import random
import struct
import tarfile
import zlib
from pathlib import Path

import pytest

from hangscope.reader.load import load
from hangscope.safeio import limits

RANDOM = random.Random(37)
LINES = b"".join(
    b"[rank%d]: RuntimeError: %s\n" % (number % 8, bytes(RANDOM.choices(b"abcdefgh", k=6))) for number in range(400)
)
"""Each of another shape, and near enough to each other for deflate."""


def test_a_line_costs_but_once_where_members_of_a_zip_lie_over_each_other(tmp_path: Path) -> None:
    """Two thousand members of the same bytes are one member, and the others are refused with the reason."""
    data = LINES * 5
    machine = zlib.compressobj(9, zlib.DEFLATED, -15)
    raw = machine.compress(data) + machine.flush()
    sums = (zlib.crc32(data), len(raw), len(data))
    packed = struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, 0, 8, 0, 0, *sums, 5, 0) + b"a.log" + raw
    names = [b"%04d.log" % number for number in range(2000)]
    listed = b"".join(
        struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 8, 0, 0, *sums, len(name), 0, 0, 0, 0, 0, 0) + name
        for name in names
    )
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, len(names), len(names), len(listed), len(packed), 0)
    (tmp_path / "job.zip").write_bytes(packed + listed + end)
    job = load(tmp_path / "job.zip")
    assert len({error.source.file for error in job.facts.errors}) <= 1
    assert sum("another member's" in gap.why for gap in job.gaps) >= 900


def test_an_archive_has_so_many_lines_as_real_ones_of_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond them it is not read: a gap says from which line on, and what to do where it is real."""
    monkeypatch.setattr(limits, "ARCHIVE_FREE_LINES", 1000)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for number in range(4):
            member = tarfile.TarInfo(f"{number}.log")
            member.size = len(LINES) * 20
            archive.addfile(member, io.BytesIO(LINES * 20))
    (tmp_path / "job.tar.gz").write_bytes(packed.getvalue())
    may_have = limits.ARCHIVE_FREE_LINES + len(packed.getvalue()) * limits.ARCHIVE_LINES // limits.MIB
    assert may_have < 4 * 400 * 20
    job = load(tmp_path / "job.tar.gz")
    [gap, *_] = [gap for gap in job.gaps if "more lines than real archives" in gap.why]
    assert "from line" in gap.what and "unpack it yourself" in gap.why
