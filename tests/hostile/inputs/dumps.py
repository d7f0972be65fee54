"""Folders with dumps that were changed, cut, lied in or written by an attacker."""

# ruff: noqa: E501  # one hostile thing a line is easier to read than one over six lines

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from hostile.inputs import files
from hostile.inputs.evidence import dumps_in, honest, packed
from hostile.inputs.registry import Input, input_class
from hostile.inputs.values import NUMBERS, STRINGS, XSS, places, spoil, value


@input_class
def dump_files(rng: Random, root: Path) -> Input:
    """Files of `files.py` in the place of dumps, and nothing else."""
    root.mkdir()
    for rank in range(rng.randrange(1, 3)):
        _, data = files.make(rng.randrange(1 << 30), rank)
        (root / f"nccl_trace_rank_{rank}").write_bytes(data)
    return Input(root)


@input_class
def dump_fields(rng: Random, root: Path) -> Input:
    for path in rng.sample(found := dumps_in(honest(rng, root)), rng.randint(1, len(found))):
        path.write_bytes(packed(rng, spoil(rng, pickle.loads(path.read_bytes()), plain=False)))
    return Input(root)


@input_class
def dump_same_field(rng: Random, root: Path) -> Input:
    """One field of every entry of every rank."""
    key, odd = None, value(rng, plain=False)
    for path in dumps_in(honest(rng, root)):
        whole = pickle.loads(path.read_bytes())
        key = key or rng.choice(sorted(whole["entries"][0]))
        for entry in whole["entries"]:
            entry[key] = odd
        path.write_bytes(packed(rng, whole))
    return Input(root)


@input_class
def dump_cut(rng: Random, root: Path) -> Input:
    for path in dumps_in(honest(rng, root)):
        data = path.read_bytes()
        if rng.random() < 0.5:
            data = json.dumps(pickle.loads(data)).encode()
        path.write_bytes(data[: rng.randrange(len(data))] + rng.choice((b"", b"", b"\0" * 40, b".", b"}}}}")))
    return Input(root)


@input_class
def dump_flipped(rng: Random, root: Path) -> Input:
    for path in dumps_in(honest(rng, root)):
        data = bytearray(path.read_bytes())
        for _ in range(rng.choice((1, 3, 20, 300))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(bytes(data))
    return Input(root)


def _laughs(times: int, op: bytes) -> bytes:
    """Each object holds the one before it many times."""
    out = b"\x80\x02X\x02\x00\x00\x00lol" + b"q\x00"
    for number in range(1, times):
        out += op + b"q" + bytes([number]) + b"(" + (b"h" + bytes([number - 1])) * 10 + b"e"
    return out + b"."


PICKLES: tuple[Callable[[Random], bytes], ...] = (
    lambda rng: b"\x80\x02]q\x00h\x00a.",
    lambda rng: b"\x80\x02}q\x00X\x07\x00\x00\x00entriesh\x00s.",
    lambda rng: b"\x80\x02}(X\x07\x00\x00\x00versionX\x03\x00\x00\x002.9X\x07\x00\x00\x00entries]q\x01h\x01au.",
    lambda rng: b"\x80\x02" + b"]" * rng.choice((900, 10_000, 400_000)) + b"a" * rng.choice((0, 800)) + b".",
    lambda rng: b"\x80\x02" + b"(" * rng.choice((900, 2_000_000)) + b"t" * 800 + b".",
    lambda rng: b"\x80\x02" + b"}X\x07\x00\x00\x00entries" * 5_000 + b"s" * 4_999 + b".",
    lambda rng: b"\x80\x04\x8d" + struct.pack("<Q", rng.choice((1 << 20, 1 << 33, (1 << 64) - 1))) + b"x.",
    lambda rng: b"\x80\x02X" + struct.pack("<I", 0xFFFFFFFF) + b"x.",
    lambda rng: b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
    lambda rng: b"\x80\x02\x8b" + struct.pack("<i", rng.choice((-5, 1 << 30, 100_000))) + b"\xff" * 100_000 + b".",
    lambda rng: b"\x80\x04\x95" + struct.pack("<Q", (1 << 63) - 1) + b"}.",
    lambda rng: b"cos\nsystem\n(S'touch /tmp/h_second_pwned'\ntR.",
    lambda rng: b"\x80\x02cbuiltins\neval\nX\x02\x00\x00\x001+\x85R.",
    lambda rng: b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.",
    lambda rng: b"\x80\x02}r" + struct.pack("<I", rng.choice((0x7FFFFFFF, 0xFFFFFFFF))) + b".",
    lambda rng: b"\x80\x02}p" + b"9" * rng.choice((5, 30, 5_000)) + b"\n.",
    lambda rng: b"(dp0\nS'entries'\np1\n(lp2\nI" + b"9" * rng.choice((40, 4_400, 200_000)) + b"\nas.",
    lambda rng: b"(dp0\nF1e999\nI01\nsS'\\xff\\'\np1\nL99999999999999999999L\ns.",
    lambda rng: _laughs(200, b"]"),
    lambda rng: _laughs(30, b"]").replace(b"\x80\x02", b"\x80\x02}X\x07\x00\x00\x00entries")[:-1] + b"s.",
    lambda rng: b"\x80\x02}" + b"X\x01\x00\x00\x00aK\x01s" * 200_000 + b".",
    lambda rng: b"\x80\x02}(" + b"".join(b"X\x06\x00\x00\x00%06dK\x01" % n for n in range(100_000)) + b"u.",
    lambda rng: b"\x80\x02" + b"K\x01" * 500_000 + b".",
    lambda rng: b"\x80\x02" + b"K\x010" * 500_000 + b"}.",
    lambda rng: b"\x80\x02" + b"2" * 300_000 + b".",
    lambda rng: b"\x80\x02}X\x07\x00\x00\x00entries](" + b"K\x01" * 1_000_000 + b"es.",
    lambda rng: b"\x80\x02}X\x07\x00\x00\x00entries](" + b"}" * 1_000_000 + b"es.",
    lambda rng: b"\x80\x02\x82\x01.",
    lambda rng: b"\x80\x02P" + b"x" * 9_000 + b"\n.",
    lambda rng: b"\x80\xff}.",
    lambda rng: b"\x80\x02" + bytes(rng.randrange(256) for _ in range(3_000)),
    lambda rng: pickle.dumps(value(rng, plain=False), rng.randrange(6)),
)


@input_class
def dump_opcodes(rng: Random, root: Path) -> Input:
    honest(rng, root)
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(("nccl_trace_rank_7", "nccl_rank_5.pickle", "fr_trace_3", "x.pkl", "comm_lib_trace_rank_1"))
        (root / name).write_bytes(rng.choice(PICKLES)(rng))
    return Input(root)


DUMP_TEXTS: tuple[Callable[[Random], str], ...] = (
    lambda rng: '{"version": "2.10", "entries": ' + "[" * rng.choice((500, 100_000, 3_000_000)),
    lambda rng: '{"version": "2.10", "entries": ' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}",
    lambda rng: '{"version": "2.10", "entries": [' + '{"record_id": ' + "9" * rng.choice((300, 5_000, 900_000)) + "}]}",
    lambda rng: '{"version": "2.10", "version": 3, "entries": [], "entries": [{"state": NaN}], "entries": -Infinity}',
    lambda rng: '{"version": "2.10", "entries": [{"time_created_ns": 1e999, "collective_seq_id": 1E400, "pg_id": -0}]}',
    lambda rng: '{"version": "2.10", "entries": [{"profiling_name": "\\ud800", "process_group": ["\\udfff", "\\u0000"]}]}',
    lambda rng: '{"version": "2.10", "entries": [' + "{}," * rng.choice((10, 1_500_000)) + "{}]}",
    lambda rng: '{"version": "2.10", "entries": [' + '""' + ',""' * 1_000_000 + "]}",
    lambda rng: '{"version": "2.10", "pg_config": {' + ",".join(f'"{n}": {{}}' for n in range(100_000)) + '}, "entries": []}',
    lambda rng: '\ufeff{"version": "2.10", "entries": []}',
    lambda rng: '{"version": "2.10", "entries": []} {"version": "2.10", "entries": []}',
    lambda rng: '{"version": "2.10", "entries": [{"frames": [' + '{"name": "f", "filename": "x.py", "line": 1},' * 50_000 + "{}]}]}",
    lambda rng: '{"entries":"' + "a" * 8_000_000 + '"}',
    lambda rng: " " * 3_000_000 + '{"version": "2.10", "entries": []}',
    lambda rng: '{"version": "2.10", "entries": [{"input_sizes": ' + "[" * 200 + "]" * 200 + "}]}",
)  # fmt: skip


@input_class
def dump_json(rng: Random, root: Path) -> Input:
    honest(rng, root)
    text = rng.choice(DUMP_TEXTS)(rng)
    coding = rng.choice(("utf-8", "utf-8", "utf-16", "utf-32"))
    (root / rng.choice(("nccl_trace_rank_1", "nccl_rank_2.json", "d.json"))).write_bytes(
        text.encode(coding, "surrogatepass")
    )
    return Input(root)


LIES: tuple[Callable[[Random, dict[str, Any]], None], ...] = (
    lambda rng, d: d["pg_config"].update({"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 99999999999]"}}),
    lambda rng, d: d["pg_config"].update({"0": {"name": "0", "desc": "d", "ranks": str(list(range(16_384)))}}),
    lambda rng, d: d["pg_config"].update({"0": {"name": "0", "desc": "d", "ranks": "0-4000000000"}}),
    lambda rng, d: d["pg_config"].update({"0": {"name": "0", "desc": "d", "ranks": "[]"}}),
    lambda rng, d: d["pg_config"].update({"0": {"name": "0", "desc": "d", "ranks": "[1, 1, 1, -3, 1048575]"}}),
    lambda rng, d: d["pg_config"].update({str(n): {"name": str(n), "desc": "x", "ranks": f"[{n}]"} for n in range(9_000)}),
    lambda rng, d: d["pg_config"].clear(),
    lambda rng, d: d.update(rank=rng.choice(NUMBERS), world_size=rng.choice(NUMBERS)),
    lambda rng, d: d.update(entries=d["entries"] * 200),
    lambda rng, d: d.update(version=rng.choice(("1.0", "9.9", "2.", "", "2.4", "2.5", "∞"))),
    lambda rng, d: [e.update(collective_seq_id=rng.choice(NUMBERS)) for e in d["entries"]] and None,
    lambda rng, d: [e.update(time_created_ns=rng.choice(NUMBERS)) for e in d["entries"]] and None,
    lambda rng, d: [e.update(process_group=(rng.choice(STRINGS), rng.choice(STRINGS))) for e in d["entries"]] and None,
    lambda rng, d: [e.update(profiling_name=rng.choice(STRINGS)) for e in d["entries"]] and None,
    lambda rng, d: [e.update(profiling_name=f"nccl:send {n}->{2**40}", is_p2p=True) for n, e in enumerate(d["entries"])] and None,
    lambda rng, d: [e.update(state=rng.choice(("scheduled", "started", "completed", "", "x"))) for e in d["entries"]] and None,
    lambda rng, d: [e.update(input_sizes=[[2**62] * 64] * 50) for e in d["entries"]] and None,
    lambda rng, d: [e.update(frames=[{"name": rng.choice(STRINGS), "filename": XSS, "line": 2**70}] * 300) for e in d["entries"][:20]] and None,
    lambda rng, d: [e.update(retired=True, time_discovered_completed_ns=None) for e in d["entries"]] and None,
    lambda rng, d: [e.update(timeout_ms=rng.choice(NUMBERS), op_id=rng.choice(NUMBERS)) for e in d["entries"]] and None,
    lambda rng, d: [e.update(pg_id=n, process_group=(str(n), "g")) for n, e in enumerate(d["entries"])] and None,
    lambda rng, d: d.update(pg_status={"0": {k: rng.choice(NUMBERS) for k in ("last_completed_collective", "last_enqueued_collective", "last_started_collective")}}),
)  # fmt: skip


@input_class
def dump_lies(rng: Random, root: Path) -> Input:
    lies = rng.sample(LIES, rng.randint(1, 3))
    # All are read before the first is written: what is written for one rank may take another's place.
    for path, whole in [(path, pickle.loads(path.read_bytes())) for path in dumps_in(honest(rng, root))]:
        if rng.random() < 0.7:
            for lie in lies:
                lie(rng, whole)
        path.write_bytes(packed(rng, whole))
        if rng.random() < 0.2:
            other = rng.choice((0, 3, 99, 1048575, 99999999999, "٣"))
            path.with_name(f"nccl_trace_rank_{other}").write_bytes(path.read_bytes())
    return Input(root)


@input_class
def dump_huge_field(rng: Random, root: Path) -> Input:
    path = rng.choice(dumps_in(honest(rng, root)))
    whole = pickle.loads(path.read_bytes())
    holder, key = rng.choice([at for at in places(whole) if isinstance(at[0], dict)])
    holder[key] = rng.choice(
        (
            "A" * 3_000_000,
            ["x"] * 200_000,
            {str(n): n for n in range(60_000)},
            10**2_000,
            "\u202e" * 400_000,
            [[1]] * 99_999,
        )
    )
    path.write_bytes(pickle.dumps(whole, 2))
    return Input(root)
