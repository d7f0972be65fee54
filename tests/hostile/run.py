"""Hostile evidence of every class over every verb, each question in a process of its own.

    python tests/hostile/run.py --count 3000 --seed 1        some of every class; what fell, and the slowest of each
    python tests/hostile/run.py --only dump_lies             one class (--list names them)
    python tests/hostile/run.py --only dump_lies --first 17 --count 1 --keep DIR    that one again, to look at
    python tests/hostile/run.py --only files --count 20000   single dumps and archives, read without a verb
    python tests/hostile/run.py --only files:laughs          one kind of them

An input is made from the seed, its number and its class alone. checks.py says what must hold for a verb, reading.py
what must hold for a file that is read.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))  # also run as a script

from hostile import asking, checks, questions, reading
from hostile.inputs import CLASSES, files

FILES = "files"
KINDS = [f"{FILES}:{kind}" for kind in files.KIND_NAMES]


@dataclass
class Asked:
    """One input, one question, what was wrong."""

    name: str
    end: asking.Ended
    wrong: list[str]


def one(seed: str, number: int, name: str, keep: Path | None = None) -> Asked:
    """Make one input, ask a question about it, and say what was wrong."""
    rng = Random(f"{seed}/{number}/{name}")
    base = keep or Path(tempfile.mkdtemp(prefix="hostile-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    base.mkdir(exist_ok=True)
    try:
        for folder in ("cwd", "home", "tmp", "out", "canary"):
            (base / folder).mkdir(exist_ok=True)
        (base / "canary" / "secret.log").write_text("[rank0]: RuntimeError: canary\n")
        for file in ("stdout", "stderr", "watch"):
            (base / file).touch()
        given = CLASSES[name](rng, base / "in")
        base.chmod(0o755)
        if given.uid:
            for path in ("cwd", "home", "tmp", "out", "stdout", "stderr"):
                os.chown(base / path, given.uid, given.uid)
        asked = questions.question(rng, given, base / "out")
        before = checks.beside(base)
        end = asking.ask(asked, base, given.uid)
        return Asked(name, end, checks.problems(given, end, base, before))
    finally:
        if keep is None:
            subprocess.run(["rm", "-rf", str(base)], check=True)


def classes(only: list[str]) -> list[str]:
    """The classes that are asked for, in the order in which they take turns."""
    return [name for name in sorted(CLASSES) if not only or name in only]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3000, help="how many inputs; of single files, ten times as many")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--only", action="append", default=[], metavar="CLASS", choices=[*CLASSES, FILES, *KINDS])
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the input there and show the answer")
    parser.add_argument("--list", action="store_true", help="name the classes")
    asked = parser.parse_args()
    if asked.list:
        print("\n".join([*classes([]), *KINDS]))
        return 0
    asking.preload()
    fallen = 0
    wanted = classes(asked.only)
    if wanted and not all(name.startswith(FILES) for name in asked.only or wanted):
        fallen += _ask(asked, wanted)
    kinds = [name for name in asked.only if name.startswith(FILES)] or ([] if asked.only else [FILES])
    for kind in kinds:
        fallen += _read(asked, kind)
    return 1 if fallen else 0


def _ask(asked: argparse.Namespace, names: list[str]) -> int:
    """Questions about inputs; how many problems there were."""
    fallen: Counter[str] = Counter()
    slowest: dict[str, float] = defaultdict(float)
    verbs: Counter[str] = Counter()
    for number in range(asked.first, asked.first + asked.count):
        done = one(asked.seed, number, names[number % len(names)], asked.keep)
        slowest[done.name] = max(slowest[done.name], done.end.spent_s)
        verbs[done.end.question.verb] += 1
        words = " ".join(done.end.question.words)
        for what in done.wrong:
            fallen[f"{done.name}: {re.sub(r'[0-9.]+ (s|MB)$', '', what)}"] += 1
            print(f"{number:6} {done.name:18} {what}   [{words[:90]}]", flush=True)
        if asked.keep:
            end = done.end
            print(words, f"{end.status} {end.spent_s:.2f} s {end.megabytes:.0f} MB", sep="\n")
            print(end.out[-3000:].decode("utf-8", "replace"), end.err[-3000:].decode("utf-8", "replace"), sep="\n")
    print(f"{asked.count} inputs of {len(slowest)} classes, {sum(fallen.values())} problems")
    for what, times in fallen.most_common():
        print(f"{times:6} {what}")
    worst = sorted(slowest.items(), key=lambda one: -one[1])[:12]
    print("slowest of each class:", ", ".join(f"{name} {spent:.1f} s" for name, spent in worst))
    print("asked:", ", ".join(f"{verb} {count}" for verb, count in sorted(verbs.items())))
    return sum(fallen.values())


def _read(asked: argparse.Namespace, kind: str) -> int:
    """Single files, read; how many problems there were."""
    count = asked.count if asked.only else 10 * asked.count
    only = kind.partition(":")[2] or None
    found = reading.read_all(asked.seed, range(asked.first, asked.first + count), only)
    print("\n".join(found.failures[:50]))
    print(f"{found.kinds.total()} files of {len(found.kinds)} kinds, {len(found.failures)} problems")
    print(", ".join(f"{outcome} {times}" for outcome, times in found.outcomes.most_common()))
    print(f"slowest: {found.slowest[0]:.2f} s, {found.slowest[1]}; {found.megabytes:.0f} MB")
    return len(found.failures)


if __name__ == "__main__":
    sys.exit(main())
