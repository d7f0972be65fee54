"""Trees: links, loops, pipes, devices, names that no terminal should see, depth, crowds, closed folders, lying sizes."""

# ruff: noqa: E501  # one hostile thing a line is easier to read than one over six lines

from __future__ import annotations

import contextlib
import gzip
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from random import Random

from hostile.inputs import archives, dumps, logs, our_files
from hostile.inputs.evidence import honest, incident
from hostile.inputs.registry import NOBODY, Input, input_class
from kits import crowds

NAMES = (
    b"new\nline.log", b"\x1b[2Jesc.log", "\u202egol.x".encode(), b"\xff\xfe\x80.log", b"n" * 255, "é.log".encode(), "e\u0301.log".encode(),
    b"-rf", b"--help.log", b" .log", b"*.log", b"$(touch x).log", b"`id`.log", b"<script>hsx()<script>.log", b"a|b`c`.log", b"![x](http:x).log",
    b"con.log", b"rank_99999999999.log", b"nccl_trace_rank_-1", b"rank_\xd9\xa3.log", b"@all.log", b"\x01\x02.log", "\u200b.log".encode(), b"tab\t.log", b"a\\b.log",
)  # fmt: skip


@input_class
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


@input_class
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


@input_class
def tree_deep(rng: Random, root: Path) -> Input:
    honest(rng, root)
    levels = rng.choice((90, 150, 2_000))
    name = rng.choice(("d", "d" * 200))
    at = _deepen(root, name, levels)
    handle = os.open("rank_9.log", os.O_WRONLY | os.O_CREAT, dir_fd=at)
    os.write(handle, b"[rank9]: RuntimeError: x\n")
    os.close(handle)
    os.close(at)
    return Input(root, [f"{name}/{name}"] if levels > 100 else [])


@input_class
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


@input_class
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


@input_class
def tree_attempts(rng: Random, root: Path) -> Input:
    for name in rng.sample(
        ("attempt_0", "attempt_99999999999999999999", "attempt-٣", "attempt_" + "9" * 200, "attempt_00", "attempt_1"), 3
    ):
        honest(rng, root / name)
    return Input(root)


@input_class
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


FOLDERS = ("Llama", "llama", "LLAMA", "a b", "ü", "é", "-rf", "x" * 120, "con", "a:b", "\x1b[2J")


@input_class
def tree_clashes(rng: Random, root: Path) -> Input:
    """Links, loops, pipes, sockets, devices and closed folders at any depth, below names that clash but for their case."""
    root.mkdir()
    (root / "rank_0.log").write_bytes(b"gpu-a017:1:1 [0] NCCL INFO x\n")
    for index in range(rng.randrange(1, 12)):
        place = root.joinpath(*(rng.choice(FOLDERS) for _ in range(rng.randrange(4))))
        names = (f"rank_{index}.log", f"Rank_{index}.log", f"nccl_trace_rank_{index}", "\udcff.log", "y" * 200)
        with contextlib.suppress(OSError):  # a file, or nothing that can be entered, is in its place
            place.mkdir(parents=True, exist_ok=True)
            _one_thing(rng, place / rng.choice(names), root)
    if rng.random() < 0.02:
        os.close(_deepen(root, "d", 150))
    return Input(root, skips=True)


def _one_thing(rng: Random, path: Path, root: Path) -> None:
    pick = rng.randrange(9)
    if os.path.lexists(path):
        return
    if pick == 0:
        os.mkfifo(path)
    elif pick == 1:
        path.symlink_to(rng.choice(("/etc/passwd", "/dev/zero", "/", str(path), "..", str(root), "/nonexistent")))
    elif pick == 2:
        _listen(path)
    elif pick == 3 and os.geteuid() == 0:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    elif pick == 4:
        path.mkdir(exist_ok=True)
        path.chmod(0)
    else:
        path.write_bytes(logs.words(rng))


def _listen(path: Path) -> None:
    """A socket there; its whole path may be longer than an address."""
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name[:100])
    finally:
        os.chdir(here)


def _deepen(root: Path, name: str, levels: int) -> int:
    """Folders in each other, the last one opened; by handles, for such a path cannot be said whole."""
    at = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    return at


@input_class
def tree_crowds(rng: Random, root: Path) -> Input:
    """More files than are taken unseen, in one of the shapes of kits/crowds.py."""
    root.mkdir()
    crowds.SHAPES[rng.choice(sorted(crowds.SHAPES))](str(root / "crowd"), rng.choice((50, 3000)))
    return Input(root)


MIXED = (
    dumps.dump_fields,
    dumps.dump_opcodes,
    dumps.dump_json,
    logs.log_forms,
    archives.archive_entries,
    our_files.our_json,
    our_files.stack_texts,
    tree_names,
)


@input_class
def anything(rng: Random, root: Path) -> Input:
    """Several classes in one tree."""
    incident(rng, root)
    for number in range(rng.randint(1, 3)):
        rng.choice(MIXED)(rng, root / f"part{number}")
    return Input(root)
