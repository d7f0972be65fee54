"""What a stranger may hand over as evidence, by a second hand: dumps, logs, JSON, stacks, archives, bundles and trees.

Each class writes one input below a folder. Most stand beside honest evidence, so that the reports have something to say.
"""

# ruff: noqa: E501  # one hostile thing a line is easier to read than one over six lines

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import pickle
import re
import shutil
import socket
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).parents[1]
NOBODY = 65534


@dataclass
class Input:
    """What to give to a verb. `named`: words that must stand in a gap; `verbs`: those that it is for."""

    path: Path
    named: list[str] = field(default_factory=list)
    verbs: tuple[str, ...] = ()
    uid: int = 0


CLASSES: dict[str, Callable[[Random, Path], Input]] = {}


def kind(make: Callable[[Random, Path], Input]) -> Callable[[Random, Path], Input]:
    CLASSES[make.__name__] = make
    return make


# ---- values ----------------------------------------------------------------------------------------------------------

XSS = "<script>hsx()</script><img src=http://evil.example/i onerror=hsx()>"
STRINGS = (
    "", " ", "\0", "a\0b", "\x1b[2J\x1b]0;owned\x07", "\x9b31m", "\r\rroot@host:~# ", "\u202egnp.exe", "\u2066x\u2069",
    "z\u200bw\u200d\ufeff", "\u2028\u2029", "\ud800", "\udcff\udc80", "\U000e0041\U000e0042", XSS, '"><svg onload=hsx()>',
    "javascript:hsx()", "</script><script>hsx()</script>", "<!--", "]]>", "{{7*7}}${7*7}", "](http://evil.example/x)",
    "![x](http://evil.example/i.png)", "@everyone @root", "```\n# Owned\n```", "a|b|c\n|-|-|", "`", "%s%n%x", "{0!r}",
    "../../../etc/passwd", "/etc/shadow", "C:\\x", "rank=99999999999", "x" * 5_000, "é" * 3_000, "a\u0301" * 2_000, "[" * 900,
    "0", "-1", "1e99", "NaN", "null", "0x" + "f" * 40, "9" * 400, "nccl:all_reduce", "[0, 1, 99999999999]", "[" + "1, " * 9_000,
    "[rank3]:", "\t" * 50, "\u05d0\u05d1 abc", "[36m", "Ⅷ٣", "٣", "²",
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2**31, 2**31 - 1, -(2**31), 2**32, 2**53 + 1, 2**63, 2**63 - 1, -(2**63), 2**64, 2**70, -(2**70), 10**40,
    1e308, -1e308, 5e-324, 0.5, float("nan"), float("inf"), float("-inf"), True, False, 4_000_000_000, 1 << 20, (1 << 20) - 1,
)  # fmt: skip


def value(rng: Random, *, plain: bool = True, depth: int = 0) -> Any:
    """Any value of the wrong type, size or form."""
    pick = rng.random()
    if pick < 0.4:
        return rng.choice(STRINGS)
    if pick < 0.7:
        return rng.choice(NUMBERS)
    if pick < 0.75:
        return None
    if pick < 0.8 and not plain:
        return rng.choice(
            (b"\xff\0x", (1, 2), bytearray(b"x"), {1, 2}, {1: 2, None: 3}, ("0",), ((), ()), complex(1, 2))
        )
    if depth > 3:
        return []
    if pick < 0.85:
        deep: Any = rng.choice(([], {}, "x"))
        for _ in range(rng.choice((3, 40, 90))):
            deep = [deep] if rng.random() < 0.5 else {"a": deep}
        return deep
    if pick < 0.93:
        return [value(rng, plain=plain, depth=depth + 1) for _ in range(rng.choice((0, 1, 3, 30)))]
    return {
        rng.choice(STRINGS)[:200]: value(rng, plain=plain, depth=depth + 1) for _ in range(rng.choice((0, 1, 3, 30)))
    }


def _places(whole: Any, limit: int = 4_000) -> list[tuple[Any, Any]]:
    """(container, key) of everything in it."""
    found: list[tuple[Any, Any]] = []
    waiting = [whole]
    while waiting and len(found) < limit:
        one = waiting.pop(0)
        pairs = list(one.items()) if isinstance(one, dict) else list(enumerate(one)) if isinstance(one, list) else []
        for key, inner in pairs:
            found.append((one, key))
            if isinstance(inner, (dict, list)):
                waiting.append(inner)
    return found


def spoil(rng: Random, whole: Any, *, plain: bool = True, times: int = 0) -> Any:
    """The same with some of its values replaced, taken out, renamed or doubled."""
    for _ in range(times or rng.choice((1, 1, 2, 5, 20))):
        places = _places(whole)
        if not places:
            return value(rng, plain=plain)
        holder, key = rng.choice(places[:12]) if rng.random() < 0.4 else rng.choice(places)
        what = rng.random()
        if (isinstance(holder, list) and not key < len(holder)) or (isinstance(holder, dict) and key not in holder):
            continue
        if what < 0.7:
            holder[key] = value(rng, plain=plain)
        elif what < 0.8:
            del holder[key]
        elif isinstance(holder, dict):
            holder[rng.choice(STRINGS)[:300]] = holder[key] if what < 0.9 else holder.pop(key)
        else:
            holder.extend(holder[:50] * 2)
    return whole


# ---- honest evidence to begin with -----------------------------------------------------------------------------------

SMALL = ("pair_absent", "skipped", "pair_frozen", "deadlock2", "p2p", "dtype_mismatch", "exception", "mesh_absent")


def honest(rng: Random, root: Path, *names: str) -> Path:
    source = HERE / "cases" / rng.choice(names or SMALL)
    shutil.copytree(source, root, dirs_exist_ok=True)
    return root


def incident(rng: Random, root: Path) -> Path:
    names = sorted(path.name for path in (HERE / "incidents").iterdir() if path.is_dir())
    shutil.copytree(HERE / "incidents" / rng.choice(names), root, dirs_exist_ok=True)
    return root


def _dumps(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and path.read_bytes()[:1] == b"\x80")


def _jsons(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*.json") if path.name not in ("truth.json", "verdict.json"))


def _packed(rng: Random, whole: Any) -> bytes:
    if rng.random() < 0.35:
        try:
            return json.dumps(whole, default=repr).encode()
        except (TypeError, ValueError, RecursionError):
            pass
    return pickle.dumps(whole, rng.randrange(6))


# ---- dumps -----------------------------------------------------------------------------------------------------------


@kind
def dump_fields(rng: Random, root: Path) -> Input:
    for path in rng.sample(found := _dumps(honest(rng, root)), rng.randint(1, len(found))):
        path.write_bytes(_packed(rng, spoil(rng, pickle.loads(path.read_bytes()), plain=False)))
    return Input(root)


@kind
def dump_same_field(rng: Random, root: Path) -> Input:
    """One field of every entry of every rank."""
    key, odd = None, value(rng, plain=False)
    for path in _dumps(honest(rng, root)):
        whole = pickle.loads(path.read_bytes())
        key = key or rng.choice(sorted(whole["entries"][0]))
        for entry in whole["entries"]:
            entry[key] = odd
        path.write_bytes(_packed(rng, whole))
    return Input(root)


@kind
def dump_cut(rng: Random, root: Path) -> Input:
    for path in _dumps(honest(rng, root)):
        data = path.read_bytes()
        if rng.random() < 0.5:
            data = json.dumps(pickle.loads(data)).encode()
        path.write_bytes(data[: rng.randrange(len(data))] + rng.choice((b"", b"", b"\0" * 40, b".", b"}}}}")))
    return Input(root)


@kind
def dump_flipped(rng: Random, root: Path) -> Input:
    for path in _dumps(honest(rng, root)):
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


@kind
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


@kind
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


@kind
def dump_lies(rng: Random, root: Path) -> Input:
    lies = rng.sample(LIES, rng.randint(1, 3))
    # All are read before the first is written: what is written for one rank may take another's place.
    for path, whole in [(path, pickle.loads(path.read_bytes())) for path in _dumps(honest(rng, root))]:
        if rng.random() < 0.7:
            for lie in lies:
                lie(rng, whole)
        path.write_bytes(_packed(rng, whole))
        if rng.random() < 0.2:
            other = rng.choice((0, 3, 99, 1048575, 99999999999, "٣"))
            path.with_name(f"nccl_trace_rank_{other}").write_bytes(path.read_bytes())
    return Input(root)


@kind
def dump_huge_field(rng: Random, root: Path) -> Input:
    path = rng.choice(_dumps(honest(rng, root)))
    whole = pickle.loads(path.read_bytes())
    holder, key = rng.choice([at for at in _places(whole) if isinstance(at[0], dict)])
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


# ---- logs ------------------------------------------------------------------------------------------------------------


@cache
def forms() -> tuple[str, ...]:
    """A line of every form that the documentation or an excerpt has."""
    page = (HERE.parent / "docs" / "log-formats.md").read_text()
    found = set(re.findall(r"`([^`\n]{8,})`", page)) | {
        line[4:] for line in page.split("\n") if line.startswith("    ")
    }
    for path in sorted((HERE / "excerpts").rglob("*")):
        if path.is_file():
            found.update(path.read_text("utf-8", "replace").split("\n")[:200])
    return tuple(sorted(line for line in found if line.strip()))


ABSURD = (
    "99999999999",
    "-1",
    "1e99",
    "0",
    "9" * 300,
    "4294967296",
    "18446744073709551616",
    "NaN",
    "٣",
    "1048576",
    "",
    "1.5",
    "0x",
)


def _absurd(rng: Random, line: str) -> str:
    how = rng.random()
    if how < 0.6:
        share = rng.choice((0.2, 1.0))
        return re.sub(r"\d+", lambda at: rng.choice(ABSURD) if rng.random() < share else at[0], line)
    if how < 0.8:
        at = rng.randrange(len(line) + 1)
        return line[:at] + rng.choice(STRINGS) + line[at:]
    return line[: rng.randrange(len(line) + 1)]


def _log(rng: Random, count: int) -> bytes:
    ends = rng.choice(("\n", "\n", "\n", "\r\n", "\r", "\n\n"))
    return "".join(_absurd(rng, rng.choice(forms())) + ends for _ in range(count)).encode("utf-8", "surrogatepass")


@kind
def log_forms(rng: Random, root: Path) -> Input:
    honest(rng, root)
    for name in rng.sample(("rank_0.log", "launcher.log", "slurm-1.out", "dmesg.txt", "x.err", "driver.txt"), 2):
        (root / name).write_bytes(_log(rng, rng.choice((1, 20, 300, 2_000))))
    return Input(root)


@kind
def log_alone(rng: Random, root: Path) -> Input:
    root.mkdir()
    (root / "train.log").write_bytes(_log(rng, rng.choice((1, 3, 50, 3_000))))
    return Input(root / "train.log" if rng.random() < 0.5 else root)


UNITS = (
    *(
        " ",
        "\t",
        "0",
        "a",
        "A0",
        "[",
        "(",
        "]",
        ":",
        ": ",
        "=",
        "-",
        "/",
        "/a",
        ",",
        "0,",
        "0.",
        "x.",
        "_",
        "<",
        ">",
        "|",
    ),
    *(
        "é",
        ".",
        "#",
        "'",
        '"',
        "0x",
        "a=",
        "a:",
        "rank ",
        "PCI:",
        "NET/",
        "gloo",
        "send",
        "status=",
        "oom-kill:",
        "pid=",
    ),
)


@kind
def log_long_lines(rng: Random, root: Path) -> Input:
    """Lines of a known form in which one letter or word comes thousands of times: a search that starts anew at each of
    them never ends."""
    root.mkdir()
    words = ("Error", "NVRM: ", "NCCL WARN ", "segfault at", "kernel: ", "Traceback", "exitcode", "Killed process ")
    with (root / rng.choice(("rank_0.log", "dmesg.txt", "train.log"))).open("wb") as out:
        for _ in range(40):
            unit, line = rng.choice(UNITS), rng.choice((*forms(), *words))[:400]
            cut = rng.randrange(len(line) + 1)
            text = line[:cut] + unit * (7_600 // len(unit)) + line[cut:]
            out.write(text.encode("utf-8", "replace")[:8_150] + b"\n")
    return Input(root, verbs=("diagnose", "diagnose", "bundle"))


@kind
def log_flood(rng: Random, root: Path) -> Input:
    """One form, a hundred thousand times with other numbers."""
    root.mkdir()
    line = rng.choice(forms())
    count = rng.choice((10_000, 60_000))
    with (root / "rank_1.log").open("wb") as out:
        for number in range(count):
            text = re.sub(r"\d+", str(number * 7919 % 100_003), line, count=rng.choice((1, 9)))
            out.write(text.encode("utf-8", "replace")[:400] + b"\n")
    return Input(root)


BYTES: tuple[Callable[[Random], bytes], ...] = (
    lambda rng: b"\0" * rng.choice((1, 5_000, 20_000_000)),
    lambda rng: b"\r" * 2_000_000,
    lambda rng: b"\n" * 3_000_000,
    lambda rng: b"\x1b[31m" * 1_000_000,
    lambda rng: (b"[rank0]: " + b"\x1b[0m" * 400 + b"NCCL WARN x\n") * 2_000,
    lambda rng: b"[rank0]: RuntimeError " + b"a" * 30_000_000 + b"\n",
    lambda rng: b"[rank0]:" * 2_000_000,
    lambda rng: b"\xff\xfe" + "[rank0]: RuntimeError: ☃\n".encode("utf-16-le") * 20_000 + b"\0",
    lambda rng: b"\xfe\xff" + b"\xd8\x00" * 50_000,
    lambda rng: "[rank1]: error\n".encode("utf-32") * 1_000,
    lambda rng: bytes(rng.randrange(128, 256) for _ in range(50_000)),
    lambda rng: b"Traceback (most recent call last):\n" * 50_000,
    lambda rng: (
        b"Traceback (most recent call last):\n" + b'  File "x.py", line 1, in f\n    f()\n' * 60_000 + b"E: x\n"
    ),
    lambda rng: b"[" * 3_000_000,
    lambda rng: b"{" * 3_000_000,
    lambda rng: (b'{"log": "' + b"\\" * 400 + b'"}\n') * 5_000,
    lambda rng: b"> " * 500_000 + b"\n",
    lambda rng: b"&amp;" * 500_000 + b"\n",
    lambda rng: b"(((((((" * 300_000 + b"\n",
    lambda rng: b"WorkNCCL(" * 100_000 + b"\n",
    lambda rng: (b"Error: " * 1_000 + b"\n") * 500,
    lambda rng: (b"a " * 4_000 + b"Error\n") * 500,
    lambda rng: (b"10.0.0.1<" * 900 + b"NCCL WARN Error\n") * 300,
    lambda rng: (b"n1:1:1 [0] NCCL INFO " + b"Channel 00/0 : 0[0] -> " * 340 + b"\n") * 1_000,
    lambda rng: (b"1" * 8_000 + b" Error\n") * 500,
    lambda rng: (b": " * 4_000 + b"Error\n") * 300,
    lambda rng: (b"rank " * 1_600 + b"exit\n") * 300,
    lambda rng: (b"=" * 8_000 + b"Killed\n") * 300,
    lambda rng: ("\u202e".encode() * 2_600 + b"Error\n") * 100,
    lambda rng: b"Thread 0x1 (most recent call first):\n" * 100_000,
    lambda rng: b"kernel: NVRM: Xid (PCI:0000:9d:00): 79, pid=" + b"9" * 8_000 + b"\n" * 3,
)


@kind
def log_bytes(rng: Random, root: Path) -> Input:
    if rng.random() < 0.5:
        honest(rng, root)
    else:
        root.mkdir()
    data = rng.choice(BYTES)(rng)
    name = rng.choice(("rank_0.log", "stdout", "nccl.h.12.log", "dmesg"))
    if rng.random() < 0.2:
        (root / f"{name}.gz").write_bytes(gzip.compress(data, 1))
    else:
        (root / name).write_bytes(data)
    return Input(root)


# ---- JSON of ours and of others, stacks, black boxes -----------------------------------------------------------------


@kind
def our_json(rng: Random, root: Path) -> Input:
    incident(rng, root)
    for path in rng.sample(found := _jsons(root), rng.randint(1, min(4, len(found)))):
        try:
            whole = json.loads(path.read_bytes()[path.read_bytes().index(b"{") :])
        except ValueError:
            continue
        schema = whole.get("schema") if isinstance(whole, dict) else None
        whole = spoil(rng, whole)
        if schema and isinstance(whole, dict) and rng.random() < 0.8:
            whole["schema"] = schema
        path.write_text(json.dumps(whole))
    return Input(root)


@kind
def our_json_each(rng: Random, root: Path) -> Input:
    """Every value of one file is of one wrong type."""
    incident(rng, root)
    path = rng.choice(
        [
            path
            for path in _jsons(root)
            if path.name in ("node.json", "incident.json", "stall.json", "status.json", "start.json")
        ]
    )
    whole = json.loads(path.read_bytes())
    odd = value(rng)
    for holder, key in _places(whole)[:3_000]:
        if key != "schema" and (not isinstance(holder[key], (dict, list)) or rng.random() < 0.1):
            holder[key] = odd
    path.write_text(json.dumps(whole))
    return Input(root)


@kind
def our_json_broken(rng: Random, root: Path) -> Input:
    incident(rng, root)
    for path in rng.sample(_jsons(root), 2):
        data = path.read_bytes()
        path.write_bytes(
            rng.choice(
                (
                    data[: rng.randrange(len(data) + 1)],
                    b"",
                    b"null",
                    b"[]",
                    b'"x"',
                    data + data,
                    data.replace(b":", b": " + b"[" * 60_000, 1),
                    b'{"schema": "hangscope.node/1", "ranks": [' + b'{"rank": 1},' * 300_000 + b"{}]}",
                    b'{"schema": "hangscope.incident/1", "world_size": 99999999999, "gaps": [' + b'{"what": "x", "why": "y"},' * 90_000 + b"{}]}",
                    b'{"schema": "hangscope.incident/1", "files": {' + b",".join(b'"f%d": {}' % n for n in range(90_000)) + b"}}",
                    b'{"schema": "hangscope.incident/1", "nodes_present": [], "nodes_expected": [' + b'"n",' * 200_000 + b'"z"]}',
                    b"\xef\xbb\xbf" + data,
                    data.decode().encode("utf-16"),
                )
            )
        )  # fmt: skip
    return Input(root)


@kind
def roster_and_ras(rng: Random, root: Path) -> Input:
    honest(rng, root, "skipped", "deadlock2", "mesh_absent", "sigkill")
    for name in ("roster.json", "ras.json"):
        if (root / name).exists() and rng.random() < 0.8:
            text = (root / name).read_text()
            front, body = text[: re.search(r"[\[{]", text).start()], text[re.search(r"[\[{]", text).start() :]  # type: ignore[union-attr]
            try:
                (root / name).write_text(front + json.dumps(spoil(rng, json.loads(body), times=5)))
            except ValueError:
                (root / name).write_text(text[: rng.randrange(len(text))])
    if (root / "ras.txt").exists():
        text = "\n".join(
            _absurd(rng, line) if rng.random() < 0.4 else line for line in (root / "ras.txt").read_text().split("\n")
        )
        (root / "ras.txt").write_bytes(text.encode("utf-8", "surrogatepass"))
    return Input(root)


@kind
def stack_texts(rng: Random, root: Path) -> Input:
    incident(rng, root)
    for path in sorted(root.rglob("stacks/*.txt")):
        lines = path.read_text().split("\n")
        what = rng.random()
        if what < 0.4:
            lines = [_absurd(rng, line) if rng.random() < 0.5 else line for line in lines]
        elif what < 0.6:
            lines = lines[:2] + [
                f'  File "{rng.choice(STRINGS)}", line {rng.choice(ABSURD)} in {rng.choice(STRINGS)}'
                for _ in range(1_500)
            ]
        elif what < 0.8:
            spy = [
                "Process 9: x",
                'Thread 1 (idle): "MainThread"',
                *(f"    f{n} ({rng.choice(STRINGS)[:90]}:{rng.choice(ABSURD)})" for n in range(1_500)),
            ]
            lines = lines[:1] + spy
        else:
            lines = [
                "(gdb) bt",
                *(f"#{n}  0x{n:016x} in {rng.choice(STRINGS)[:50]} () from /lib/x.so" for n in range(1_500)),
            ]
        path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    return Input(root)


@kind
def black_boxes(rng: Random, root: Path) -> Input:
    incident(rng, root)
    folder = root / "nodes" / rng.choice(sorted(path.name for path in (root / "nodes").iterdir())) / "blackbox"
    folder.mkdir(exist_ok=True)
    for number in range(rng.randint(1, 3)):
        head = bytearray(
            b"\xffHSNCCLB"
            + struct.pack(
                "<IIQIiiiII",
                1,
                576,
                rng.choice((1 << 16, 1 << 60, 0)),
                9,
                rng.choice((0, 1, -1, 2**31 - 1)),
                0,
                rng.choice((4, -1, 2**31 - 1)),
                22809,
                6,
            )
        )
        head += bytes(128 - len(head))
        for _ in range(5):
            head += struct.pack(
                "<4I",
                rng.choice((576, 0, 0xFFFFFFFF, 700, 4096)),
                rng.choice((0, 8, 64, 1024, 0xFFFFFFFF)),
                rng.choice((0, 1, 64, 256, 0xFFFFFFFF)),
                rng.choice((0, 1, 64)),
            )
        head += bytes(rng.randrange(256) if rng.random() < 0.2 else 0 for _ in range(576 - len(head)))
        body = bytes(
            rng.randrange(256) if rng.random() < 0.3 else 0 for _ in range(rng.choice((0, 100, 20_000, 60_000)))
        )
        (folder / f"h.{number}.ncclbb").write_bytes(bytes(head) + body)
    return Input(root)


# ---- archives --------------------------------------------------------------------------------------------------------


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


@kind
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


@kind
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


@kind
def archive_forms(rng: Random, root: Path) -> Input:
    honest(rng, root)
    log = b"[rank0]: RuntimeError: x\n" * 50
    tar = entry(b"rank_0.log", log) + bytes(1024)
    pick = rng.choice(("xz", "tar.xz", "zst", "zip", "bz2", "7z", "lz4", "nested"))
    import bz2

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
    import tempfile

    from hangscope.bundle.pack import Options, write_bundle

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "b.tar.gz"
        write_bundle(HERE / "cases" / "pair_absent", made, Options())
        return gzip.decompress(made.read_bytes())


@kind
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


# ---- trees -----------------------------------------------------------------------------------------------------------

NAMES = (
    b"new\nline.log", b"\x1b[2Jesc.log", "\u202egol.x".encode(), b"\xff\xfe\x80.log", b"n" * 255, "é.log".encode(), "e\u0301.log".encode(),
    b"-rf", b"--help.log", b" .log", b"*.log", b"$(touch x).log", b"`id`.log", b"<script>hsx()<script>.log", b"a|b`c`.log", b"![x](http:x).log",
    b"con.log", b"rank_99999999999.log", b"nccl_trace_rank_-1", b"rank_\xd9\xa3.log", b"@all.log", b"\x01\x02.log", "\u200b.log".encode(), b"tab\t.log", b"a\\b.log",
)  # fmt: skip


@kind
def tree_things(rng: Random, root: Path) -> Input:
    """Links, loops, pipes, sockets, devices."""
    honest(rng, root)
    named: list[str] = []
    outside = root.parent / "canary"
    things: dict[str, Callable[[Path], object]] = {
        "out.log": lambda at: at.symlink_to(outside / "secret.log"),
        "outdir": lambda at: at.symlink_to(outside),
        "loop.log": lambda at: at.symlink_to("loop.log"),
        "gone.log": lambda at: at.symlink_to("/nowhere/at/all"),
        "etc.log": lambda at: at.symlink_to("/etc/passwd"),
        "pipe.log": lambda at: os.mkfifo(at),
        "sock.log": lambda at: socket.socket(socket.AF_UNIX).bind(str(at)),
        "zero.log": lambda at: os.mknod(at, 0o20666, os.makedev(1, 5)),
        "full.log": lambda at: os.mknod(at, 0o20666, os.makedev(1, 7)),
        "loopdev.log": lambda at: os.mknod(at, 0o60666, os.makedev(7, 0)),
        "proc.log": lambda at: at.symlink_to("/proc/self/environ"),
        "pair_a.log": lambda at: (at.symlink_to("pair_b.log"), (root / "pair_b.log").symlink_to("pair_a.log")),
        "deeplink.log": lambda at: at.symlink_to("a/../" * 400 + "x"),
    }
    for name in rng.sample(sorted(things), rng.randint(1, 6)):
        try:
            things[name](root / name)
        except OSError:
            continue
        named.append(name)
    if rng.random() < 0.3:
        (root / "up").symlink_to("..")
        (root / "self").symlink_to(".")
    return Input(root, named)


@kind
def tree_names(rng: Random, root: Path) -> Input:
    honest(rng, root)
    logs = [
        b"[rank0]: RuntimeError: x\n",
        b"",
        b"x\n",
        b"n1:1:1 [0] NCCL WARN Net : Call to recv from 10.0.0.2<5> failed : Broken pipe\n",
    ]
    here = os.fsencode(root)
    for name in rng.sample(NAMES, rng.randint(1, 8)):
        if rng.random() < 0.3:
            os.makedirs(here + b"/" + name, exist_ok=True)
            at = here + b"/" + name + b"/rank_1.log"
        else:
            at = here + b"/" + name
        with open(at, "wb") as out:
            out.write(rng.choice(logs))
    for name in ("Llama", "llama", "LLAMA", "LLaMA"):
        (root / name).mkdir()
        (root / name / "Rank_0.log").write_bytes(logs[0])
        (root / name / "rank_0.log").write_bytes(logs[0])
    return Input(root)


@kind
def tree_deep(rng: Random, root: Path) -> Input:
    honest(rng, root)
    at = os.open(root, os.O_RDONLY)
    levels = rng.choice((90, 150, 2_000))
    name = rng.choice(("d", "d" * 200))
    for _ in range(levels):
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    handle = os.open("rank_9.log", os.O_WRONLY | os.O_CREAT, dir_fd=at)
    os.write(handle, b"[rank9]: RuntimeError: x\n")
    os.close(handle)
    os.close(at)
    return Input(root, [f"{name}/{name}"] if levels > 100 else [])


@kind
def tree_closed(rng: Random, root: Path) -> Input:
    """Folders and files that another user closed."""
    honest(rng, root)
    named = []
    for name in rng.sample(("shut", "listed", "entered", "file.log", "nccl_trace_rank_9"), 3):
        at = root / name
        if "." in name or "_" in name:
            at.write_bytes(b"[rank0]: RuntimeError: x\n")
            at.chmod(0)
        else:
            at.mkdir()
            (at / "rank_0.log").write_bytes(b"[rank0]: RuntimeError: x\n")
            at.chmod({"shut": 0, "listed": 0o744, "entered": 0o711}[name])
        named.append(name)
    return Input(root, named, uid=NOBODY)


@kind
def tree_crowd(rng: Random, root: Path) -> Input:
    honest(rng, root)
    count = rng.choice((2_500, 3_500))
    data = rng.choice(
        (
            b"x\n",
            b"",
            b"[rank1]: RuntimeError: x\n",
            b"{}",
            b"\x80\x02}q\0.",
            gzip.compress(b"x", mtime=0),
            b"\x80\x02X",
        )
    )
    name = rng.choice(("x{}", "rank_{}.log", "nccl_trace_rank_{}", "n{}.json", "attempt_{}.log"))
    (root / "many").mkdir()
    for number in range(count):
        (root / "many" / name.format(number)).write_bytes(data)
    return Input(root)


@kind
def tree_attempts(rng: Random, root: Path) -> Input:
    for name in rng.sample(
        ("attempt_0", "attempt_99999999999999999999", "attempt-٣", "attempt_" + "9" * 200, "attempt_00", "attempt_1"), 3
    ):
        honest(rng, root / name)
    return Input(root)


@kind
def tree_lying_sizes(rng: Random, root: Path) -> Input:
    """Sparse files, and times at both ends of the world."""
    honest(rng, root)
    with (root / rng.choice(("rank_0.log", "nccl_trace_rank_0", "ras.json", "x.tar.gz", "h.1.ncclbb"))).open(
        "wb"
    ) as out:
        out.write(rng.choice((b"", b"[rank0]: RuntimeError\n", b"\x80\x02}", b"{", b"\x1f\x8b\x08", b"\xffHSNCCLB")))
        out.truncate(rng.choice((300 << 20, 3 << 30, 1 << 42)))
    for path in root.rglob("*"):
        when = rng.choice((0, -(2**31), 2**32, 2**40, 253402300800, 2**33))
        os.utime(path, (when, when))
    return Input(root, verbs=("diagnose", "show", "report"))


@kind
def anything(rng: Random, root: Path) -> Input:
    """Several classes in one tree."""
    incident(rng, root)
    for number in range(rng.randint(1, 3)):
        name = rng.choice(
            (
                "dump_fields",
                "dump_opcodes",
                "dump_json",
                "log_forms",
                "archive_entries",
                "our_json",
                "stack_texts",
                "tree_names",
            )
        )
        CLASSES[name](rng, root / f"part{number}")
    return Input(root)
