"""Files that nobody should have to open: mutated, cut and crafted dumps and archives, made from a seed and a number.

Everything is deterministic: `make(seed, number)` gives the same bytes on every machine.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import pickletools
import random
import struct
import tarfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from kits.small_dumps import as_json, call, entry, group, top

CASES = Path(__file__).parents[2] / "cases"


@lru_cache(maxsize=1)
def originals() -> tuple[bytes, ...]:
    """Good dumps of all kinds to start from."""
    made = []
    for case in ("healthy", "coalesced", "multi_pg", "p2p", "alltoall"):
        for path in sorted((CASES / case).glob("*/nccl_trace_rank_[01]*")):
            made.append(path.read_bytes())
    value = small()
    made += [pickle.dumps(value, protocol=protocol) for protocol in range(2, 6)]
    made.append(as_json(value))
    old = [
        {"pg_id": 0, "seq_id": n, "profiling_name": "nccl:all_reduce", "time_created_us": 17 * 10**14 + n}
        for n in range(9)
    ]
    for line in old:
        line.update(input_sizes=[[4]], output_sizes=[[4]], state="completed", retired=True, frames=[])
    made.append(pickle.dumps(old, protocol=2))
    for line in old:
        line["record_id"] = line["seq_id"]
    made.append(pickle.dumps({"entries": old, "version": "1.4", "pg_config": {0: [0, 1]}}, protocol=2))
    return tuple(made)


@lru_cache(maxsize=1)
def parsed() -> tuple[tuple[bytes, tuple[tuple[str, int], ...]], ...]:
    """The pickles among them, with the places of their opcodes."""
    pickles = [data for data in originals() if data[0] == 0x80]
    return tuple((data, tuple((op.name, at) for op, _, at in pickletools.genops(data))) for data in pickles)


def small() -> dict[str, Any]:
    entries = [entry(number, number + 1) for number in range(6)] + [call(6, "send 0->1", 1), call(7, "recv 0<-1", 1)]
    return top(entries, group("0", "default_pg", 0, 1), group("1", "tp", 0, 1))


# ---- mutations -------------------------------------------------------------------------------------------------------


def flipped(rng: random.Random) -> bytes:
    data = bytearray(rng.choice(originals()))
    for _ in range(rng.choice((1, 1, 2, 5, 40))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def overwritten(rng: random.Random) -> bytes:
    data = bytearray(rng.choice(originals()))
    for _ in range(rng.choice((1, 3, 10))):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(1, 9)] = rng.randbytes(rng.randrange(1, 9))
    return bytes(data)


def cut(rng: random.Random) -> bytes:
    data = rng.choice(originals())
    return data[: rng.randrange(len(data))]


def spliced(rng: random.Random) -> bytes:
    one, other = rng.choice(originals()), rng.choice(originals())
    start, stop = sorted(rng.randrange(len(other)) for _ in range(2))
    at = rng.randrange(len(one))
    return one[:at] + other[start:stop] * rng.choice((1, 1, 2, 30)) + one[at + rng.choice((0, stop - start)) :]


def long_lengths(rng: random.Random) -> bytes:
    """A length somewhere that is far too large, or just wrong."""
    data, opcodes = rng.choice(parsed())
    at = rng.choice([at for name, at in opcodes if name in ("BINUNICODE", "SHORT_BINUNICODE", "LONG1")]) + 1
    wrong = rng.choice(
        (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x00\x00\x00\x40", struct.pack("<I", rng.randrange(99)))
    )
    return data[:at] + wrong + data[at + 4 :]


def inserted(rng: random.Random) -> bytes:
    """An opcode that runs something, at a place where an opcode is read."""
    data, opcodes = rng.choice(parsed())
    _, at = rng.choice(opcodes)
    return data[:at] + rng.choice(PAYLOADS) + data[at:]


MARKER = "HANGSCOPE_MARKER"
"""Replaced by the path that a payload tries to write."""
_COMMAND = f"touch {MARKER}".encode()
PAYLOADS = (
    b"cos\nsystem\n(X" + struct.pack("<I", len(_COMMAND)) + _COMMAND + b"tR",
    b"\x8c\x02os\x8c\x06system\x93\x8c" + bytes([len(_COMMAND)]) + _COMMAND + b"\x85R",
    b"cposix\nsystem\nX" + struct.pack("<I", len(_COMMAND)) + _COMMAND + b"\x85R",
    b"(X" + struct.pack("<I", len(_COMMAND)) + _COMMAND + b"ios\nsystem\n",
    b"(cos\nsystem\nX" + struct.pack("<I", len(_COMMAND)) + _COMMAND + b"o",
    b"cbuiltins\nexec\nX\x08\x00\x00\x00import os\x85R",
    b"c__builtin__\neval\n)R",
    b"cbuiltins\nobject\n)\x81}b",
    b"ccollections\nOrderedDict\n)R",
    b"cbuiltins\nobject\n)}\x92",
    b"\x82\x01",
    b"\x83\x01\x00",
    b"\x84\x01\x00\x00\x00",
    b"Pmarker\n",
    b"K\x01Q",
    b"\x97",
    b"\x98",
    b"\x96" + struct.pack("<Q", 1 << 40),
    b"\x8e" + struct.pack("<Q", 1 << 40),
    b"B" + struct.pack("<I", 0xFFFFFFFF),
    b"}b",
    b"R",
    b"\x90\x91",
    b"0",
    b"2" * 50,
)


def payload(rng: random.Random) -> bytes:
    start = rng.choice((b"\x80\x02", b"\x80\x04", b"\x80\x05", b"\x80\x02}(X\x07\x00\x00\x00entries](", b"\x80\x02]("))
    return start + b"".join(rng.choices(PAYLOADS, k=rng.randrange(1, 4))) + b"."


_PIECES = (
    b"h\x00", b"h\x01", b"h\xff", b"K\x01", b"]", b"(", b"e", b"}", b"u", b"N", b"\x88", b"\x89", b"\x85", b"\x86",
    b"\x87", b"t", b")", b"a", b"s", b"q\x00", b"q\x01", b"\x94", b"X\x01\x00\x00\x00a", b"\x8c\x01b", b"\x8a\x01\x7f",
    b"\x8a\x00", b"\x8b\x01\x00\x00\x00\x02", b"G" + bytes(8), b"J\xff\xff\xff\xff", b"M\x01\x02", b"j\x00\x00\x00\x00",
    b"r\xff\xff\xff\xff", b"\x95" + b"\xff" * 8, b"\x80\x02", b"X\x07\x00\x00\x00entries", b"X\x05\x00\x00\x00state",
)  # fmt: skip


def random_program(rng: random.Random) -> bytes:
    """Opcodes that are allowed, in an order that nobody meant."""
    pieces = b"".join(rng.choices(_PIECES, k=rng.randrange(1, 400)))
    return rng.choice((b"\x80\x02", b"\x80\x04", b"\x80\x02}(X\x07\x00\x00\x00entries](")) + pieces + b"."


def noise(rng: random.Random) -> bytes:
    return rng.choice((b"", b"\x80\x02", b"\x80\x04", b"{", b"[", b"\x1f\x8b\x08", b'{"pg_config":')) + rng.randbytes(
        rng.randrange(2000)
    )


# ---- bombs -----------------------------------------------------------------------------------------------------------

_ENTRIES = b"\x80\x04}(\x8c\x07version\x8c\x042.10\x8c\x07entries]("


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def entry_with(field: str, value: bytes) -> bytes:
    """An entry, as opcodes, with one field of the attacker's making."""
    made = {
        "profiling_name": text("nccl:all_reduce"),
        "state": text("completed"),
        "collective_seq_id": b"K\x01",
        "process_group": text("0") + text("default_pg") + b"\x86",
        "pg_id": b"K\x00",
        "record_id": b"K\x00",
        field: value,
    }
    return b"}(" + b"".join(text(key) + item for key, item in made.items()) + b"u"


def laughs(rng: random.Random) -> bytes:
    """Lists of lists of lists, each many times in the next, where an entry's field is expected."""
    field = rng.choice(
        ("input_sizes", "frames", "process_group", "profiling_name", "input_dtypes", "thread_name", "state")
    )
    width, depth = rng.choice(((10, 30), (300, 3), (60_000, 2)))
    build = b"]q\x00(" + b"K\x01" * width + b"e"
    for level in range(1, depth):
        build += (
            b"]q" + bytes([level]) + b"(" + b"h" + bytes([level - 1]) + (b"h" + bytes([level - 1])) * (width - 1) + b"e"
        )
    last = b"h" + bytes([depth - 1])
    body = entry_with(field, build) + b"".join(entry_with(field, last) for _ in range(rng.choice((1, 50, 900))))
    return _ENTRIES + body + b"eu."


def tuple_laughs(rng: random.Random) -> bytes:
    """The same with tuples, which something might want to hash."""
    field = rng.choice(("process_group", "input_sizes", "thread_id", "profiling_name", "frames", "collective_seq_id"))
    build = b"K\x01\x85\x94" + b"".join(b"h" + bytes([n]) + b"\x86\x94" for n in range(60))
    if rng.random() < 0.5:
        build = b"](" + build + b"e"
    return _ENTRIES + entry_with(field, build) + b"eu."


def same_entry(rng: random.Random) -> bytes:
    count = rng.choice((1000, 200_000))
    return _ENTRIES + entry_with("op_id", b"K\x01") + b"\x94" + b"h\x00" * count + b"eu."


def many_groups(rng: random.Random) -> bytes:
    """Thousands of groups in one process, by number, by name, or in the table alone."""
    count = rng.choice((50, 6000))
    kind = rng.randrange(3)
    entries = [
        {
            "profiling_name": "nccl:send 0->1",
            "state": "scheduled",
            "collective_seq_id": 1,
            "p2p_seq_id": 1,
            "pg_id": n if kind != 1 else 0,
            "process_group": ("0" if kind != 1 else str(n), "x"),
            "record_id": n,
        }
        for n in range(count if kind < 2 else 1)
    ]
    config = {str(n): {"name": str(n), "desc": "x", "ranks": f"[0, {n + 1}]"} for n in range(count)}
    if rng.random() < 0.3:
        entries = [{**line, "seq_id": 7} for line in entries]
        for line in entries:
            del line["process_group"], line["collective_seq_id"], line["record_id"]
    return pickle.dumps({"version": "2.10", "pg_config": config, "entries": entries}, protocol=rng.randrange(2, 6))


def tiny_entries(rng: random.Random) -> bytes:
    return (
        _ENTRIES
        + rng.choice((b"}(K\x01K\x02u", b"}", b"]", b"N", b"K\x01", b"}K\x01K\x02s")) * rng.choice((100, 90_000))
        + b"eu."
    )


def nesting(rng: random.Random) -> bytes:
    opener = rng.choice((b"(", b"](", b"}(K\x01", b"N\x85", b"\x85", b"(K\x01t", b"]a", b"}K\x01"))
    return b"\x80\x04" + rng.choice((b"", b"N", b"}(")) + opener * rng.choice((70, 1000, 200_000)) + b"."


def memo(rng: random.Random) -> bytes:
    kind = rng.randrange(4)
    if kind == 0:
        return b"\x80\x02N" + b"".join(b"r" + rng.randbytes(4) for _ in range(rng.choice((10, 50_000)))) + b"."
    if kind == 1:
        return b"\x80\x04](" + b"]\x94" * rng.choice((100, 300_000)) + b"e."
    if kind == 2:
        return b"\x80\x02N" + b"r\xff\xff\xff\xff" + b"j\xff\xff\xff\xff" * 100_000 + b"."
    return b"\x80\x04](" + b"}]" * rng.choice((100, 700_000)) + b"e."


def lengths(rng: random.Random) -> bytes:
    claimed = (b"\xff" * 8, struct.pack("<Q", 1 << 33), struct.pack("<Q", 6_000_000))
    opcode = rng.choice(
        [
            b"X\xff\xff\xff\xff",
            b"\x8b\xff\xff\xff\x7f",
            b"\x8a\xff",
            *(code + size for code in (b"\x8d", b"\x95") for size in claimed),
        ]
    )
    return rng.choice((b"\x80\x04", _ENTRIES)) + opcode + b"a" * rng.choice((0, 300, 1_500_000)) + b"."


# ---- fields that are not what they should be -------------------------------------------------------------------------

STRANGE: tuple[Any, ...] = (
    *(None, True, 0, -1, 1 << 62, 1 << 63, 1 << 200, -(1 << 100), 1.5, float("nan"), float("inf"), 1e300),
    *("", "x", "0" * 3000, "\udcff\udcfe", "[0, 1", "[0, 0]", "[99999999999]", "[" + "0, " * 5000 + "1]"),
    *([], [[]], [[1 << 70]], [["a"]], [None], [{}], [[[1]]], list(range(2000))),
    *((), (1,), ("0",), ("0", "default_pg", "x"), (1, 2)),
    *({}, {"a": {}}, {0: {}}, {"0": None}, {"": {"ranks": "[]"}}, {"0": {"name": 1, "desc": 2, "ranks": [1, "a"]}}),
    *([{"name": 1}], [{"name": "f", "filename": 3, "line": "x"}], {"0": {"last_enqueued_collective": "x"}}),
    *("send 0->1", "nccl:send 5->900000000", "nccl:recv 0<-?", "nccl:coalesced", ":", "::::", "nccl:" + "a" * 5000),
    {str(n): {"ranks": "[0]"} for n in range(300)},
)


def strange(rng: random.Random) -> bytes:
    """A good dump with some fields of the wrong kind, in any protocol or as JSON."""
    value = small()
    for _ in range(rng.choice((1, 1, 2, 6))):
        target = rng.choice([value, *value["entries"]]) if isinstance(value["entries"], list) else value
        if isinstance(target, dict) and target:
            key = rng.choice(sorted(map(str, target)))
            if rng.random() < 0.2:
                target.pop(key, None)
            else:
                target[key] = rng.choice(STRANGE)
        value.setdefault("entries", [])
    if rng.random() < 0.3:
        try:
            return json.dumps(value).encode("utf-8", "surrogateescape")
        except (TypeError, ValueError):
            pass
    return pickle.dumps(value, protocol=rng.randrange(2, 6)).replace(
        b"\xed\xb3\xbf\xed\xb3\xbe", b"\xff\xfe\xfd\xfc\xfb\xfa"
    )


def json_text(rng: random.Random) -> bytes:
    data = bytearray(as_json(small()))
    kind = rng.randrange(6)
    if kind == 0:
        for _ in range(rng.choice((1, 4, 30))):
            data[rng.randrange(len(data))] = rng.choice(b'{}[]",:0123456789eE.-\\ntf\xff\x00 ')
    elif kind == 1:
        data = data[: rng.randrange(len(data))]
    elif kind == 2:
        at = rng.randrange(len(data))
        data[at:at] = rng.choice((b"[", b"{", b'{"a":', b"[[],", b'"', b"9", b" ", b"\\u0000")) * rng.choice(
            (50, 5000, 300_000)
        )
    elif kind == 3:
        data = bytearray(b'{"pg_config":{},"entries":[' + b"[],{}," * rng.choice((10, 100_000)) + b"0]}")
    elif kind == 4:
        data = bytearray(b'{"pg_config":' + b'{"a":' * rng.choice((10, 100_000)) + b"1")
    else:
        data = bytearray(b'{"version":' + b"1" * rng.choice((20, 1_000_000)) + b',"pg_config":{}}')
    return bytes(data)


# ---- archives --------------------------------------------------------------------------------------------------------


def zipped(data: bytes, level: int = 9) -> bytes:
    return gzip.compress(data, level, mtime=0)


def tarred(rng: random.Random) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=rng.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))) as archive:
        for number in range(rng.randrange(1, 4)):
            name = rng.choice(
                ("nccl_trace_rank_%d", "../../../tmp/rank_%d", "/etc/rank_%d", "a/" * 60 + "%d", "\x1b]0;%d", "%d.gz")
            )
            info = tarfile.TarInfo(name % number)
            info.type = rng.choice(
                (tarfile.REGTYPE,) * 5 + (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)
            )
            info.linkname = rng.choice(("/etc/passwd", "nccl_trace_rank_0", "../.."))
            body = rng.choice((rng.choice(originals()), zipped(rng.choice(originals())), b""))
            info.size = len(body) if info.type == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(body))
    data = bytearray(made.getvalue())
    kind = rng.randrange(4)
    if kind == 1:
        data = data[: rng.randrange(len(data))]
    elif kind == 2:
        # A wrong size with a right checksum, so that it is believed.
        data[124:136] = rng.choice(
            (b"77777777777\x00", b"\x80" + b"\xff" * 11, b"\x80" + bytes(7) + rng.randbytes(4), b"-0000000001\x00")
        )
        data[148:156] = b" " * 8
        data[148:156] = b"%06o\x00 " % sum(data[:512])
    elif kind == 3:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def compressed(rng: random.Random) -> bytes:
    kind = rng.randrange(6)
    if kind == 0:
        return zipped(flipped(rng), rng.randrange(10))
    if kind == 1:
        data = bytearray(zipped(tarred(rng)))
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(data)
    if kind == 2:
        data = _bomb()
        for _ in range(rng.randrange(4)):
            data = zipped(data)
        return data
    if kind == 3:
        return zipped(b"") * rng.choice((3, 30_000))
    if kind == 4:
        body = zipped(rng.choice(originals()))
        return body[: rng.randrange(len(body))]
    return zipped(zipped(zipped(tarred(rng))))


@lru_cache(maxsize=1)
def _bomb() -> bytes:
    return zipped(bytes(200 << 20), 1) * 2


KINDS: tuple[tuple[int, Callable[[random.Random], bytes]], ...] = (
    (14, flipped),
    (8, overwritten),
    (8, cut),
    (8, spliced),
    (6, long_lengths),
    (8, inserted),
    (5, payload),
    (8, random_program),
    (3, noise),
    (3, laughs),
    (2, tuple_laughs),
    (1, same_entry),
    (2, many_groups),
    (2, tiny_entries),
    (3, nesting),
    (3, memo),
    (3, lengths),
    (12, strange),
    (6, json_text),
    (6, tarred),
    (4, compressed),
)


KIND_NAMES = tuple(kind.__name__ for _, kind in KINDS)


def make(seed: int | str, number: int, only: str | None = None) -> tuple[str, bytes]:
    """The hostile file of that number, and what kind it is: any, or the one that is asked for."""
    rng = random.Random(f"{seed}/{number}")
    (kind,) = rng.choices([kind for _, kind in KINDS], weights=[weight for weight, _ in KINDS])
    if only is not None:
        kind = next(kind for _, kind in KINDS if kind.__name__ == only)
    return kind.__name__, kind(rng)
