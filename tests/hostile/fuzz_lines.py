"""Lines that every reader of logs knows, with values that no real line has: none may take the verdict away.

    python tests/hostile/fuzz_lines.py --seconds 60 --seed 1       what raised, with the lines that do it
    python tests/hostile/fuzz_lines.py --seed 1 --first 17 --count 1 --keep FILE    that text again, to look at

The lines are those of docs/log-formats.md, of the excerpts, pasted logs and recorded jobs, one of each shape. Numbers
become extreme, so do times; digits become those of other scripts; lines are cut, repeated, joined, and hold bytes that
are no text. Each text is read, judged and shown in this process, where nothing is contained.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))  # also run as a script

from hangscope.diagnosis import diagnose
from hangscope.errors import RAISE, HangscopeError
from hangscope.reader.load import load
from hangscope.report.export import to_json
from hangscope.report.op_times import op_times
from hangscope.report.page.render_page import render_page
from hangscope.report.terminal import render_text
from hangscope.report.ticket import render_ticket

TESTS = Path(__file__).parents[1]
SOURCES = ("excerpts/*.txt", "pasted/*/*", "pasted/*", "recorded_slurm/*.txt", "cases*/**/*.log", "cases*/**/*.txt")
SLOW_S = 5.0
MOST_OF_A_FILE = 400_000
NUMBERS = (
    "0", "-1", "1", "255", "256", "65536", "2147483648", "4294967295", "1048576", "1048577", "9223372036854775807",
    "9223372036854775808", "18446744073709551616", "999999999999999999", "9" * 19, "9" * 40, "9" * 400,
    "1" + "0" * 4500, "00000000000000000007", "1e309", "-0", "0x7fffffffffffffff", "nan", "inf", "1_000", "٣", "²",
    "７", "৪", "Ⅷ", "½", "",
)  # fmt: skip
TIMES = (
    "9999-12-31T23:59:59-08:00", "0001-01-01T00:00:00+08:00", "1969-12-31 23:59:59", "2242-03-16T12:56:33Z",
    "2026-02-30 00:00:00", "2026-13-01 00:00:00", "2026-01-01 24:00:00", "2026-01-01 23:59:60", "0000-00-00 00:00:00",
    "2026-01-01T00:00:00.999999999+99:99", "٢٠٢٦-٠١-٠١ ٠٠:٠٠:٠٠", "9999-12-31 23:59:59,999", "2038-01-19T03:14:08Z",
)  # fmt: skip
SHAPES = (
    "token expires {}", "[{}] INFO start", "{} [rank0]: RuntimeError: x", "[rank3]:[E1115 02:30:11.204 {}] boom",
    "srun: error: n1: task 1: {}", "{} n1 kernel: Out of memory: Killed process 7 (python)", "({} pid=7) Traceback",
    "slurmstepd: error: *** STEP 31.0 ON n1 CANCELLED AT {} ***", "n1:7:7 [0] {} NCCL WARN x", "step {} loss 2.1",
    "  time      : {}", "{}: W1115 torch.distributed.run] x", "torch.distributed.elastic: got signal: {}",
)  # fmt: skip
"""Where a time or a number may stand that no wording has there."""
BYTES = ("\0", "\x1b[31m", "\u202e", "\ud800", "\udcff", "\ufeff", "\r", "\x0b", "\x85", "\u2028", "🧨", "a\u0301" * 40)
_VALUE = re.compile(r"(?<![A-Za-z_])\d+(?:\.\d+)?")
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d\S*")
_SCRIPTS = ("٠١٢٣٤٥٦٧٨٩", "０１２３４５６７８９", "०१२३४५६७८९", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def known_lines() -> list[str]:
    """One line of every shape that the texts of the tests and the page on formats have."""
    by_shape: dict[str, str] = {}
    for text in _texts():
        for line in text[:MOST_OF_A_FILE].splitlines():
            shape = re.sub(r"[0-9a-f]{6,}|\d+", "#", line)
            if line.strip():
                by_shape.setdefault(shape[:200], line[:2000])
    return [by_shape[shape] for shape in sorted(by_shape)]


def _texts() -> Iterator[str]:
    yield (TESTS.parent / "docs" / "log-formats.md").read_text()
    for pattern in SOURCES:
        for path in sorted(TESTS.glob(pattern)):
            if path.is_file() and path.suffix in (".txt", ".log", ""):
                yield path.read_bytes().decode("utf-8", "replace")


def mutated(rng: Random, line: str) -> str:
    """The line with one to three things in it that no real one has."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        line = rng.choice(_MUTATIONS)(rng, line)
    return line[:20_000]


def _number(rng: Random, line: str) -> str:
    places = list(_VALUE.finditer(line))
    if not places:
        return line + rng.choice(NUMBERS)
    at = rng.choice(places)
    return line[: at.start()] + rng.choice(NUMBERS) + line[at.end() :]


def _all_numbers(rng: Random, line: str) -> str:
    value = rng.choice(NUMBERS)
    return _VALUE.sub(lambda _: value, line)


def _time(rng: Random, line: str) -> str:
    value = rng.choice(TIMES)
    if _ISO.search(line):
        return _ISO.sub(lambda _: value, line, count=1)
    return rng.choice((f"{value} {line}", f"[{value}] {line}", f"{line} {value}"))


def _shape(rng: Random, line: str) -> str:
    return rng.choice(SHAPES).format(rng.choice((*TIMES, *NUMBERS)))


def _script(rng: Random, line: str) -> str:
    return line.translate(str.maketrans("0123456789", rng.choice(_SCRIPTS)))


def _byte(rng: Random, line: str) -> str:
    at = rng.randrange(len(line) + 1)
    return line[:at] + rng.choice(BYTES) + line[at:]


def _cut(rng: Random, line: str) -> str:
    at = rng.randrange(len(line) + 1)
    return rng.choice((line[:at], line[at:]))


def _long(rng: Random, line: str) -> str:
    words = line.split(" ")
    at = rng.randrange(len(words))
    words[at] = words[at] * rng.choice((20, 300)) or "x" * 9000
    return " ".join(words)


def _tagged(rng: Random, line: str) -> str:
    value = rng.choice(NUMBERS)
    form = rng.choice(("[rank{}]: ", "{}: ", "[{}]: ", "[1,{}]<stderr>:", "[default{}]:", "(W pid={}, ip=1.2.3.4) "))
    return form.format(value) + line


def _list(rng: Random, line: str) -> str:
    value = rng.choice(("0-999999999", "0-999999999999999999", "[0-7,²-٣]", "5-0", "-", ",,,", "0," * 3000, "1-2-3"))
    places = list(_VALUE.finditer(line))
    if not places:
        return line
    at = rng.choice(places)
    return line[: at.start()] + value + line[at.end() :]


_MUTATIONS = (_number, _number, _number, _all_numbers, _time, _shape, _script, _byte, _cut, _long, _tagged, _list)


def text_of(rng: Random, lines: list[str]) -> list[str]:
    """A text of known lines, some of them mutated: most of the time neighbours, which are often of one shape."""
    begin = rng.randrange(len(lines))
    some = (
        lines[begin : begin + rng.randrange(1, 40)]
        if rng.random() < 0.6
        else rng.choices(lines, k=rng.randrange(1, 25))
    )
    return [mutated(rng, line) if rng.random() < 0.5 else line for line in some]


@dataclass
class Fuzzed:
    """What came of it."""

    texts: int = 0
    lines: int = 0
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


def judge(lines: list[str], folder: Path) -> None:
    """Read, judge and show one text; in two files, as two nodes' would be. Raises what hangscope raises by mistake."""
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    (folder / "job.log").write_bytes(data)
    try:
        job = load(folder)
        verdict = diagnose(job)
    except HangscopeError:
        return
    to_json(verdict)
    render_text(verdict, verbose=True, job=job)
    render_ticket(verdict, job)
    render_page(verdict, job, op_times(job))


def problem(lines: list[str], folder: Path) -> str | None:
    """What is wrong with how a text is dealt with."""
    begun = time.process_time()
    try:
        judge(lines, folder)
    except Exception as error:
        places = traceback.extract_tb(error.__traceback__)[-4:]
        where = " < ".join(f"{Path(place.filename).name}:{place.lineno}" for place in reversed(places))
        return f"{type(error).__name__}: {str(error)[:80]!a} ({where})"
    spent = time.process_time() - begun
    return f"slow: {spent:.1f} s" if spent > SLOW_S else None


def smallest(lines: list[str], folder: Path) -> list[str]:
    """The lines without which it would not happen."""
    kept = lines
    for index in reversed(range(len(lines))):
        without = [line for at, line in enumerate(kept) if at != index]
        if without and problem(without, folder) is not None:
            kept = without
    return kept


def fuzz(seed: str, first: int = 0, count: int = 1 << 30, seconds: float = 10.0, keep: Path | None = None) -> Fuzzed:
    """Texts from the first on, until the time is up."""
    known = known_lines()
    done = Fuzzed()
    seen: set[str] = set()
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        folder = Path(name)
        for number in range(first, first + count):
            lines = text_of(Random(f"{seed}/{number}"), known)
            if keep is not None:
                keep.write_text("\n".join(lines), errors="surrogatepass")
            begun = time.process_time()
            wrong = problem(lines, folder)
            done.slowest_s = max(done.slowest_s, time.process_time() - begun)
            done.texts += 1
            done.lines += len(lines)
            if wrong is not None and (place := wrong.rpartition("(")[2].partition(" ")[0]) not in seen:
                seen.add(place)
                shown = "\n".join(f"        {line[:300]!a}" for line in smallest(lines, folder)[:8])
                done.failures.append(f"text {number}: {wrong}\n{shown}")
            if time.monotonic() > end:
                break
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=0, help="number of the first text")
    parser.add_argument("--count", type=int, default=1 << 30, help="how many texts at most")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write the text there")
    asked = parser.parse_args()
    os.environ[RAISE] = "1"
    done = fuzz(asked.seed, asked.first, asked.count, asked.seconds, asked.keep)
    print("\n".join(done.failures))
    print(f"{done.texts} texts of {done.lines} lines, {len(done.failures)} problems; slowest {done.slowest_s:.2f} s")
    return 1 if done.failures else 0


if __name__ == "__main__":
    sys.exit(main())
