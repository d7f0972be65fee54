"""Inputs of 1 to 2 MB that are meant to take minutes or gigabytes: every family with every verb, measured.

    python tests/hostile/slow_inputs.py                       all families, all verbs (`make slow-inputs`)
    python tests/hostile/slow_inputs.py --verb diagnose nccl  those with "nccl" in their name
    python tests/hostile/slow_inputs.py --write DIR NAME      the files of one family, to look at

Each (family, verb) runs in a process of its own: CPU seconds and peak memory are the kernel's figures of it and of all
that it started. What is over the limits is listed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hangscope.cli.main import main
from hostile import slow_dumps, slow_logs, slow_sources  # noqa: F401 - they register their families
from hostile.slow_families import FAMILIES

CPU_S = 5.0
MEGABYTES = 500
SIZE = 1_900_000
SEED = 20
_GIVE_UP_S = int(os.environ.get("SLOW_GIVE_UP_S", "60"))
_MEMORY = 6 << 30

VERBS = {
    "diagnose": ("diagnose", "{input}", "--json"),
    "show": ("show", "{input}"),
    "report": ("report", "{input}", "-o", "{out}/a.html", "-o", "{out}/a.md", "-o", "{out}/a.perfetto-trace"),
    "bundle": ("bundle", "{input}", "-o", "{out}/a.tar.gz"),
}


@dataclass(frozen=True)
class Measured:
    family: str
    verb: str
    cpu_s: float
    megabytes: int
    status: int
    """Exit status; minus the signal where one ended it; 99 for an exception that nobody caught."""

    @property
    def over(self) -> bool:
        return self.cpu_s > CPU_S or self.megabytes > MEGABYTES or self.status not in (0, 1, 2, 3)

    def __str__(self) -> str:
        return f"{self.family:44} {self.verb:9} {self.cpu_s:7.1f} s {self.megabytes:6} MB  status {self.status}"


def write(name: str, folder: Path, size: int = SIZE) -> None:
    FAMILIES[name](folder, random.Random(f"{SEED} {name}"), size)


def measure(name: str, verb: str, folder: Path) -> Measured:
    """Run one verb over a family's files in a process of its own."""
    out = Path(tempfile.mkdtemp(prefix="slow-out-"))
    arguments = [part.format(input=folder, out=out) for part in VERBS[verb]]
    child = os.fork()
    if child == 0:
        _run(arguments)
    _, status, usage = os.wait4(child, 0)
    shutil.rmtree(out)
    code = os.waitstatus_to_exitcode(status)
    return Measured(name, verb, usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1000, code)


def _run(arguments: list[str]) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_GIVE_UP_S, _GIVE_UP_S + 5))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    status = 99
    try:
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            error = sys.stderr
            sys.stderr = nothing
            status = main(arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 99
    except BaseException:
        sys.stderr = error
        traceback.print_exc()
    finally:
        os._exit(status)


def families(wanted: Iterable[str]) -> list[str]:
    words = list(wanted)
    return [name for name in FAMILIES if not words or any(word in name for word in words)]


def run(names: Iterable[str], verbs: Iterable[str], size: int = SIZE) -> Iterable[Measured]:
    chosen = list(verbs)
    for name in names:
        with tempfile.TemporaryDirectory(prefix="slow-in-") as folder:
            write(name, Path(folder), size)
            for verb in chosen:
                yield measure(name, verb, Path(folder))


def command() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names; else all families")
    parser.add_argument("--verb", action="append", choices=VERBS)
    parser.add_argument("--size", type=int, default=SIZE)
    parser.add_argument("--write", type=Path, metavar="DIR", help="only write the files of one family")
    parser.add_argument("--part", default="1/1", help="2/3: every third family, from the second on")
    parser.add_argument("--all", action="store_true", help="print what is within the limits too")
    options = parser.parse_args()
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        write(options.names[0], options.write, options.size)
        return 0
    part, parts = map(int, options.part.split("/"))
    names = families(options.names)[part - 1 :: parts]
    count = 0
    over = []
    for measured in run(names, options.verb or VERBS, options.size):
        count += 1
        over += [measured] if measured.over else []
        if options.all or measured.over:
            print(measured, flush=True)
    print(f"{len(names)} families, {count} runs, {len(over)} over {CPU_S:.0f} s or {MEGABYTES} MB")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(command())
