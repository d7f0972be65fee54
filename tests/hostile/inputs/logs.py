"""Logs: of all known forms with absurd values, endless, of one letter, of no letters, of words in any order."""

# ruff: noqa: E501  # one hostile thing a line is easier to read than one over six lines

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

from hostile.inputs.evidence import HERE, honest
from hostile.inputs.registry import Input, input_class
from hostile.inputs.values import absurd


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


def _log(rng: Random, count: int) -> bytes:
    ends = rng.choice(("\n", "\n", "\n", "\r\n", "\r", "\n\n"))
    return "".join(absurd(rng, rng.choice(forms())) + ends for _ in range(count)).encode("utf-8", "surrogatepass")


@input_class
def log_forms(rng: Random, root: Path) -> Input:
    honest(rng, root)
    for name in rng.sample(("rank_0.log", "launcher.log", "slurm-1.out", "dmesg.txt", "x.err", "driver.txt"), 2):
        (root / name).write_bytes(_log(rng, rng.choice((1, 20, 300, 2_000))))
    return Input(root)


@input_class
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


@input_class
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


@input_class
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


@input_class
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


WORDS = (
    "[rank3]: ", "NCCL INFO ", "NCCL WARN ", "Traceback (most recent call last):\n", '  File "x", line 3, in y\n', "\x1b[2J",
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, Timeout(ms)=600000)", "\n", "\r",
    "password=", "-----BEGIN RSA PRIVATE KEY-----\n", "kind: Secret\ndata:\n  x: ", "gpu-a017:1:1 [0] ", "\0" * 50, "%22",
    "9" * 400, "[" * 300, "{" * 300, "token: |\n  ", "sk-", "/home/alice/", "Xid (PCI:0000:9d:00): 79", "aB3" * 200, "\\n", "é",
    "# hangscope stacks rank=1 pid=2\n", "Thread 0x1 (most recent call first):\n", "a@", "10.0.0.1", "fe80::1", "dgx[001-999]",
)  # fmt: skip


def words(rng: Random, most: int = 400) -> bytes:
    """Pieces of logs in any order."""
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(most))).encode()


@input_class
def log_words(rng: Random, root: Path) -> Input:
    root.mkdir()
    (root / f"rank_{rng.randrange(4)}.log").write_bytes(words(rng, 3000))
    (root / "dmesg.txt").write_bytes(words(rng))
    return Input(root)
