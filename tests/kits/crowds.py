"""Trees of a hundred thousand files that nobody should have to wait for, and what each verb takes for them.

``python tests/kits/crowds.py`` makes each tree and asks every verb about it; ``--shapes`` and ``--verbs`` pick some.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hangscope

SECONDS = 5.0
MEGABYTES = 500
FILES = 100_000
SHAPES: dict[str, Callable[[str, int], None]] = {}


@contextmanager
def made(shape: str, count: int) -> Iterator[str]:
    """A tree of that shape, in memory where there is a place for it."""
    with tempfile.TemporaryDirectory(prefix="crowd-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as base:
        SHAPES[shape](f"{base}/in", count)
        yield f"{base}/in"


def _put(path: str, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(handle, data)
    os.close(handle)


def _one_folder(name: Callable[[int], str], data: bytes) -> Callable[[str, int], None]:
    def make(root: str, count: int) -> None:
        os.mkdir(root)
        for number in range(count):
            _put(f"{root}/{name(number)}", data)

    return make


def _cased(number: int) -> str:
    """A spelling of one word: as many as there are files."""
    return "".join(char.upper() if number >> bit & 1 else char for bit, char in enumerate("abcdefghijklmnopqrst"))


def _folders(root: str, count: int, name: Callable[[int], str]) -> Iterator[str]:
    os.mkdir(root)
    for number in range(count):
        os.mkdir(f"{root}/{name(number)}")
        yield f"{root}/{name(number)}"


def wide(root: str, count: int) -> None:
    for folder in _folders(root, count // 2, lambda number: f"w{number}"):
        _put(f"{folder}/x", b"j\n")


def deep(root: str, count: int) -> None:
    for top in _folders(root, max(1, count // 1000), lambda number: f"k{number}"):
        folder = top
        for _ in range(90):
            folder += "/d"
            os.mkdir(folder)
            for number in range(11):
                _put(f"{folder}/x{number}", b"a\n")


def cased_folders(root: str, count: int) -> None:
    for folder in _folders(root, count // 2, _cased):
        _put(f"{folder}/rank_0.log", b"x\n")


def attempts(root: str, count: int) -> None:
    for folder in _folders(root, count // 2, lambda number: f"attempt_{number}"):
        _put(f"{folder}/rank_0.log", b"x\n")


def rank_logs(root: str, count: int) -> None:
    for index, folder in enumerate(_folders(root, max(1, count // 1000), lambda number: f"node-{number}")):
        for number in range(index * 1000, index * 1000 + min(count, 1000)):
            _put(f"{folder}/rank_{number}.log", b"[rank%d]: hello\nstep 1\n" % number)


def nodes(root: str, count: int) -> None:
    os.mkdir(root)
    for folder in _folders(f"{root}/nodes", count // 2, lambda number: f"n{number}"):
        _put(f"{folder}/status.json", b"{}")


def links(root: str, count: int) -> None:
    os.mkdir(root)
    for number in range(count):
        os.symlink(("/etc/passwd", f"rank_{number}.log", "nowhere")[number % 3], f"{root}/rank_{number}.log")


def linked(root: str, count: int) -> None:
    """Links to links to one file of the tree."""
    os.mkdir(root)
    _put(f"{root}/rank_0.log", b"x\n")
    os.symlink("rank_0.log", f"{root}/hub")
    for number in range(count):
        os.symlink("hub", f"{root}/l{number}.log")


def pipes(root: str, count: int) -> None:
    os.mkdir(root)
    for number in range(count):
        os.mkfifo(f"{root}/rank_{number}.log")


SHAPES.update(
    {
        "junk": _one_folder(lambda number: f"x{number}", b"junk\n"),
        "empty": _one_folder(lambda number: f"x{number}", b""),
        "text": _one_folder(lambda number: f"note{number}.txt", b"a line that means nothing much\n" * 5),
        "cased": _one_folder(lambda number: f"{_cased(number)}.log", b"x\n"),
        "odd names": _one_folder(lambda number: f"\x1b[2J\n{number}:é \udcff.log", b"x\n"),
        "dumps that are none": _one_folder(lambda number: f"nccl_trace_rank_{number}", b"not a dump\n"),
        "broken pickles": _one_folder(lambda number: f"nccl_trace_rank_{number}", b"\x80\x02}q\x00broken"),
        "empty dumps": _one_folder(lambda number: f"nccl_trace_rank_{number}", b""),
        "json": _one_folder(lambda number: f"x{number}.json", b'{"a": 1}\n'),
        "packed": _one_folder(lambda number: f"x{number}.gz", gzip.compress(b"hello\n", mtime=0)),
        **{
            make.__name__: make
            for make in (wide, deep, cased_folders, attempts, rank_logs, nodes, links, linked, pipes)
        },
    }
)
VERBS = {
    "diagnose": ["diagnose", "{}"],
    "show": ["show", "{}"],
    "report": ["report", "{}", "-o", "{out}/r.html", "-o", "{out}/r.md"],
    "export": ["report", "{}", "-o", "{out}/r.perfetto-trace"],
    "bundle": ["bundle", "{}", "-o", "{out}/b.tar.gz"],
    "only evidence": ["bundle", "{}", "-o", "{out}/b.tar.gz", "--only-evidence"],
    "aliases": ["bundle", "{}", "-o", "{out}/b.tar.gz", "--pseudonymise"],
    "not redacted": ["bundle", "{}", "-o", "{out}/b.tar.gz", "--no-redact"],
    "small": ["bundle", "{}", "-o", "{out}/b.tar.gz", "--max-size", "100kB"],
    "collect": ["collect", "--from", "{}", "-o", "{out}/c"],
    "watch": ["watch", "{}", "--once"],
    "snapshot": ["snapshot", "{}"],
    "run": ["run", "--dir", "{}", "--", "true"],
}


def ask(words: list[str]) -> tuple[float, float, str]:
    """(CPU seconds, megabytes, what it said) of the command."""
    environment = {**os.environ, "PYTHONPATH": str(Path(hangscope.__file__).parents[1])}
    with tempfile.TemporaryFile() as said:
        command = [sys.executable, "-m", "hangscope", *words]
        # A child begins with the memory of who started it, so a small process of its own starts and measures it.
        measured = subprocess.run(
            [sys.executable, "-S", "-c", _MEASURE, *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=said,
            check=True,
        )
        spent, kilobytes = map(float, measured.stdout.split())
        said.seek(0)
        text = said.read(1 << 20).decode("utf-8", "replace")
    return spent, kilobytes / 1024, text


_MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=sys.stderr)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--shapes", nargs="*", default=sorted(SHAPES))
    parser.add_argument("--verbs", nargs="*", default=list(VERBS))
    asked = parser.parse_args()
    over = 0
    for shape in asked.shapes:
        with made(shape, asked.files) as tree:
            for verb in asked.verbs:
                with tempfile.TemporaryDirectory(dir=Path(tree).parent) as out:
                    spent, megabytes, said = ask([word.format(tree, out=out) for word in VERBS[verb]])
                bad = spent > SECONDS or megabytes > MEGABYTES or "Traceback" in said
                over += bad
                last = said.splitlines()[-1][:60] if said else ""
                mark = " <<<" if bad else ""
                print(f"{shape:20} {verb:14} {spent:6.2f} s {megabytes:5.0f} MB{mark}  {last!r}", flush=True)
    print(f"{over} over {SECONDS:g} s or {MEGABYTES} MB")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
