"""Archives: members that lie, bombs, forms that nobody opens, and bundles that somebody changed on the way."""

# ruff: noqa: E501  # one hostile thing a line is easier to read than one over six lines

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import shutil
import subprocess
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

from hangscope.bundle.pack import Options, write_bundle
from hostile.inputs.dumps import PICKLES
from hostile.inputs.evidence import HERE, honest
from hostile.inputs.registry import Input, input_class
from hostile.inputs.values import spoil


def entry(
    name: bytes,
    data: bytes = b"",
    flag: bytes = b"0",
    link: bytes = b"",
    size: int | None = None,
    mtime: bytes = b"00000000000\0",
) -> bytes:
    """One member of a tar, written by hand, so that it may say anything."""
    told = len(data) if size is None else size
    number = b"%011o\0" % told if told < 8**11 else b"\x80" + told.to_bytes(11, "big")
    block = name[:100].ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + number + mtime + b" " * 8 + flag
    block += link[:100].ljust(100, b"\0") + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2 + bytes(155 + 12)
    block = block[:148] + b"%06o\0 " % sum(block[:512]) + block[156:512]
    return block + data + bytes(-len(data) % 512)


def pax(**pairs: bytes) -> bytes:
    out = b""
    for key, text in pairs.items():
        body = key.replace("_", ".").encode() + b"=" + text + b"\n"
        length = len(body) + 3
        while len(b"%d " % length) + len(body) != length:
            length = len(b"%d " % length) + len(body)
        out += b"%d " % length + body
    return entry(b"pax", out, b"x")


def evil_entries(rng: Random) -> bytes:
    log = b"[rank0]: RuntimeError: x\n"
    one: list[Callable[[], bytes]] = [
        lambda: entry(b"../../escaped.log", log),
        lambda: entry(b"/tmp/h_second_escaped.log", log),
        lambda: entry(b"a/../../../escaped", log),
        lambda: entry(b"link.log", b"", b"2", b"/etc/passwd"),
        lambda: entry(b"link", b"", b"2", b"/tmp") + entry(b"link/h_second_escaped", log),
        lambda: entry(b"hard.log", b"", b"1", b"/etc/shadow"),
        lambda: entry(b"dev.log", b"", b"3") + entry(b"blk.log", b"", b"4") + entry(b"pipe.log", b"", b"6"),
        lambda: entry(b"sparse.log", b"\0" * 600, b"S"),
        lambda: entry(b"odd.log", log, rng.choice((b"Z", b"\xff", b"V", b"D", b"N"))),
        lambda: pax(path=b"\x1b[2J\xe2\x80\xaeevil\0x.log") + entry(b"x", log),
        lambda: pax(path=b"n" * rng.choice((255, 4_096, 50_000))) + entry(b"x", log),
        lambda: (
            pax(size=rng.choice((b"99999999999999999999", b"-1", b"x", b"0", b"9" * 21, b"\xb2")))
            + entry(b"x.log", log)
        ),
        lambda: pax(mtime=rng.choice((b"1e999", b"-5", b"nan"))) + entry(b"m.log", log),
        lambda: pax(GNU_sparse_realsize=b"9999999999999") + entry(b"s.log", log),
        lambda: entry(b"L", b"long/" * 800 + b"\0", b"L") + entry(b"x", log),
        lambda: entry(b"L", b"", b"L", size=1 << 40),
        lambda: entry(b"g", b"18 path=global.log\n", b"g") + entry(b"x", log),
        lambda: b"".join(entry(b"K", b"k\0", b"K") for _ in range(40)) + entry(b"x", log),
        lambda: entry(b"same.log", log) * 50,
        lambda: entry(b"Case.log", log) + entry(b"case.log", log) + entry(b"CASE.log", log),
        lambda: entry(b"a", log) + entry(b"a/b", log),
        lambda: entry(b"big.log", b"x", size=rng.choice((1 << 40, 1 << 62, 1 << 70))),
        lambda: entry(
            b"old.log",
            log,
            mtime=rng.choice((b"77777777777\0", b"\x80" + b"\xff" * 11, b"-1\0" + b" " * 9, b"\xff" * 12)),
        ),
        lambda: entry(b"nul\0hidden.log", log),
        lambda: entry(b"", log) + entry(b"/", log) + entry(b".", log) + entry(b"..", log),
        lambda: b"".join(entry(b"d/" * 49, b"", b"5") for _ in range(3)),
        lambda: b"".join(entry(b"f%d.log" % n, log) for n in range(3_000)),
        lambda: entry(b"in.tar", entry(b"a.log", log) + bytes(1024)) + entry(b"in.log.gz", gzip.compress(log)),
        lambda: entry(b"bad.gz", gzip.compress(log * 99)[:40]) + entry(b"z.gz", gzip.compress(bytes(60_000_000), 9)),
        lambda: entry(b"\xff\xfe.log", log) + entry("e\u0301.log".encode(), log) + entry("é.log".encode(), log),
        lambda: entry(b"nccl_trace_rank_0", rng.choice(PICKLES)(rng)),
        lambda: entry(
            b"incident.json", b'{"schema": "hangscope.incident/1", "files": {"../x": {"sha256": 5}, "\\u001b": 3}}'
        ),
    ]
    return b"".join(rng.choice(one)() for _ in range(rng.choice((1, 2, 5))))


def _nested(depth: int, data: bytes) -> bytes:
    for number in range(depth):
        data = gzip.compress(entry(b"n%d.tar.gz" % number, data) + bytes(1024), 9, mtime=0)
    return data


def _zip(rng: Random) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as pack:
        pack.writestr("../../x.log", "[rank0]: Error\n")
        pack.writestr("z.log", bytes(rng.choice((10, 50_000_000))))
    return out.getvalue()


def _zstd(data: bytes) -> bytes:
    if shutil.which("zstd") is None:
        return b"\x28\xb5\x2f\xfd" + data[:1000]
    return subprocess.run(["zstd", "-q", "-19", "--long=27"], input=data, capture_output=True, check=True).stdout


@cache
def _bomb(name: str) -> bytes:
    zeros = bytes(1 << 20)
    if name == "gz":
        packer = zlib.compressobj(9, wbits=31)
        return b"".join(packer.compress(zeros) for _ in range(1_024)) + packer.flush()
    if name == "xz":
        crush = lzma.LZMACompressor()
        return b"".join(crush.compress(zeros) for _ in range(512)) + crush.flush()
    if name == "zst":
        return _zstd(bytes(1 << 28))
    if name == "gzgz":
        return gzip.compress(_bomb("gz"), 9)
    if name == "lines":
        return gzip.compress(b"[rank0]: RuntimeError: x\n" * 4_000_000, 9)
    if name == "empties":
        return gzip.compress(b"") * 200_000
    if name == "tar":
        return gzip.compress(entry(b"x.log", bytes(200 << 20)) + bytes(1024), 9)
    return gzip.compress(b"".join(entry(b"d%d/" % n, b"", b"5") for n in range(150_000)), 9)


BOMBS = ("gz", "xz", "zst", "gzgz", "lines", "empties", "tar", "folders")


@input_class
def archive_entries(rng: Random, root: Path) -> Input:
    root.mkdir()
    data = evil_entries(rng) + rng.choice((bytes(1024), b"", bytes(512), b"x" * 700))
    if rng.random() < 0.3:
        data = entry(b"rank_0.log", b"[rank0]: RuntimeError: x\n") + data
    name = "x.tar"
    if rng.random() < 0.6:
        data, name = gzip.compress(data, 6), "x.tar.gz"
    if rng.random() < 0.15:
        data = data[: rng.randrange(len(data))]
    (root / name).write_bytes(data)
    if rng.random() < 0.4:
        honest(rng, root)
        return Input(root)
    return Input(root / name, verbs=("diagnose", "show", "bundle", "verify", "unpack", "report"))


@input_class
def archive_bombs(rng: Random, root: Path) -> Input:
    bomb = rng.choice(BOMBS)
    name = f"logs.{bomb}.gz" if bomb not in ("xz", "zst") else f"rank_0.log.{bomb}"
    beside = rng.random() < 0.5
    if beside:
        honest(rng, root)
    else:
        root.mkdir()
    (root / name).write_bytes(_bomb(bomb))
    verbs = ("diagnose", "bundle", "verify", "unpack", "report")
    # One that is read within its bounds leaves nothing to name.
    named = [name] if beside and bomb not in ("lines", "empties", "folders", "tar") else []
    return Input(root if beside else root / name, named, verbs)


@input_class
def archive_forms(rng: Random, root: Path) -> Input:
    honest(rng, root)
    log = b"[rank0]: RuntimeError: x\n" * 50
    tar = entry(b"rank_0.log", log) + bytes(1024)
    pick = rng.choice(("xz", "tar.xz", "zst", "zip", "bz2", "7z", "lz4", "nested"))
    data = {
        "xz": lambda: lzma.compress(log),
        "tar.xz": lambda: lzma.compress(tar),
        "zst": lambda: _zstd(tar),
        "zip": lambda: _zip(rng),
        "bz2": lambda: bz2.compress(tar),
        "7z": lambda: b"7z\xbc\xaf\x27\x1c" + bytes(600),
        "lz4": lambda: b"\x04\x22\x4d\x18" + bytes(range(256)),
        "nested": lambda: _nested(rng.choice((6, 12)), log),
    }[pick]()
    if rng.random() < 0.2:
        data = data[: max(10, rng.randrange(len(data)))]
    name = f"more-logs.{pick}" if pick != "nested" else "more-logs.tgz"
    (root / name).write_bytes(data)
    whole = len(data) > 300 or pick not in ("nested",)
    return Input(root, [name.removesuffix(".tgz")] if whole else [])


@cache
def _bundle() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "b.tar.gz"
        write_bundle(HERE / "cases" / "pair_absent", made, Options())
        return gzip.decompress(made.read_bytes())


@input_class
def bundles(rng: Random, root: Path) -> Input:
    """A real bundle that somebody changed on the way."""
    root.mkdir()
    data = _bundle()
    at = rng.randrange(0, len(data) // 512) * 512
    changed = [
        lambda: data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :],
        lambda: data[: rng.randrange(len(data))],
        lambda: data[:-1024] + evil_entries(rng) + bytes(1024),
        lambda: data + b"hidden" * 200,
        lambda: data[:-1024] + data,
        lambda: data.replace(b'"sha256"', b'"sha255"', rng.choice((1, -1))),
        lambda: data.replace(b'"size": ', b'"size":9', 1),
        lambda: data.replace(b"incident.json", b"incident.jsoN"),
        lambda: entry(b"b/incident.json", json.dumps(spoil(rng, {"schema": "hangscope.incident/1", "files": {"x": {"size": 1, "sha256": "0"}}, "gaps": [], "versions": {}, "job": "1"})).encode()) + bytes(1024),
        lambda: entry(b"b/incident.json", b'{"schema": "hangscope.incident/1", "files": {' + b",".join(b'"f%d": {"size": 1}' % n for n in range(60_000)) + b"}}") + bytes(1024),
        lambda: data,
    ]  # fmt: skip
    made = rng.choice(changed)()
    packed = gzip.compress(made, 1) if rng.random() < 0.8 else made
    if rng.random() < 0.2:
        packed = rng.choice(
            (
                packed[: rng.randrange(len(packed))],
                packed + packed,
                packed + b"trail",
                packed + gzip.compress(b"more" * 9),
            )
        )
    (root / "b.tar.gz").write_bytes(packed)
    return Input(root / "b.tar.gz", verbs=("verify", "unpack", "diagnose", "bundle", "report", "show"))


@input_class
def bundle_bits(rng: Random, root: Path) -> Input:
    """A bundle with bits flipped, or cut."""
    root.mkdir()
    data = bytearray(gzip.compress(_bundle(), 6, mtime=0))
    for _ in range(rng.randrange(4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    if rng.random() < 1 / 3:
        del data[rng.randrange(len(data)) :]
    (root / "x.tar.gz").write_bytes(bytes(data))
    return Input(root / "x.tar.gz", verbs=("any", "any", "verify", "unpack"))
