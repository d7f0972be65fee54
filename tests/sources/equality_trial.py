"""By hand: what is read from outside beside torch's own dump, for the torch of another Python, in many situations.

    python tests/sources/equality_trial.py PYTHON [--reads 1000] [--backend nccl] [--only WORD]

PYTHON is an interpreter with torch 2.11 or newer; `nccl` needs one GPU. Prints a line for every situation, one for
dumps that torch made of itself between two readings of a running job, and one for readings of a job at full speed: how
many were good, how many were refused as torn, and how many were wrong. A reading is wrong where anything of an entry
differs from what the script of the job did.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from outside_jobs import differences, differences_of_entries, job, read_from_outside

from hangscope.sources.cannot_read import CannotRead
from hangscope.sources.flight_recorder import outside

SITUATIONS = (
    ("no entry", ["--steps", "0", "--then", "stop"], 2, {}),
    ("1 entry", ["--steps", "0", "--then", "hang"], 2, {}),
    ("hung, sub-groups, p2p, batches", ["--steps", "26", "--then", "hang"], 4, {}),
    ("hung, one rank holds the GIL", ["--steps", "10", "--then", "gil"], 2, {}),
    ("2,000 entries", ["--steps", "40", "--fill", "2000", "--then", "stop"], 2, {}),
    ("wrapped at 2,000", ["--steps", "40", "--fill", "2160", "--then", "hang"], 2, {}),
    ("ring of 80", ["--steps", "26", "--then", "hang"], 2, {"TORCH_FR_BUFFER_SIZE": "80"}),
    ("wrapped at 64", ["--steps", "50", "--then", "hang"], 3, {"TORCH_FR_BUFFER_SIZE": "64"}),
)
BETWEEN, AT_SPEED = "between two readings, running", "at full speed"
ROUNDS = 6
NAMES = ("all_reduce", "all_reduce", "all_gather")
MOVES = {"state", "time_discovered_started_ns", "time_discovered_completed_ns", "retired", "duration_ms"}
"""What becomes of an operation after it was recorded."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("python")
    parser.add_argument("--reads", type=int, default=1000)
    parser.add_argument("--backend", default="gloo", choices=("gloo", "nccl"))
    parser.add_argument("--only", default="", metavar="WORD", help="the situations with this word in their names")
    asked = parser.parse_args()
    words = [*asked.python.split(), "-c", "import sys, torch; print(torch.__version__, sys.version.split()[0])"]
    print(subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip(), flush=True)
    wrong = 0
    for number, (name, script, ranks, settings) in enumerate(SITUATIONS):
        if asked.only not in name:
            continue
        place = Path(tempfile.mkdtemp())
        try:
            words = [*script, "--backend", asked.backend]
            with job(place / str(number), *words, ranks=ranks, python=asked.python, **settings) as started:
                wrong += compare(name, started, "gil" in script, asked.backend)
        except AssertionError as error:
            print(f"  {name}: not run ({error})", flush=True)
            wrong += 1
        finally:
            shutil.rmtree(place, ignore_errors=True)
    if asked.only in BETWEEN:
        wrong += between(asked.python, asked.backend)
    if asked.only in AT_SPEED:
        wrong += running(asked.python, asked.reads, asked.backend)
    return 1 if wrong else 0


def compare(name: str, started: Any, holds_gil: bool, backend: str) -> int:
    """Print how many entries and frames are equal; the number of differences."""
    time.sleep(0.5)
    read = []
    begun = time.perf_counter()
    for rank in started.ranks:
        try:
            read.append(read_from_outside(rank.pid, backend))
        except CannotRead as error:
            read.append({"reason": error.reason})
    spent = (time.perf_counter() - begun) / len(read)
    # who holds the GIL for ever makes no dump of its own with frames
    comparable = started.ranks[:-1] if holds_gil else started.ranks
    of_torch = started.dumps_of_torch(len(comparable))
    found: list[str] = []
    entries = frames = 0
    for theirs, ours in zip(of_torch, read, strict=False):
        if "reason" in ours:
            found += [ours["reason"]] if theirs.get("entries") else []
            continue
        found += differences(theirs, ours)
        entries += len(ours["entries"])
        frames += sum(len(entry.get("frames", ())) for entry in ours["entries"])
    last = read[-1].get("entries", ())
    also = f"; the one that holds the GIL: {len(last)} entries, {sum(map(_frames, last))} frames" if holds_gil else ""
    print(
        f"  {name}: {len(of_torch)} ranks, {entries} entries, {frames} frames, {len(found)} differences, "
        f"{spent * 1e3:.0f} ms a rank{also} {found[:3] or ''}",
        flush=True,
    )
    return len(found)


def _frames(entry: dict[str, Any]) -> int:
    return len(entry.get("frames", ()))


def between(python: str, backend: str) -> int:
    """Dumps that torch made of itself while the job ran, between two readings; the number of differences.

    What both readings have alike, torch has to have as well. Else the fields that never change have to agree.
    """
    place = Path(tempfile.mkdtemp())
    whole = moving = 0
    found: list[str] = []
    try:
        with job(place / "run", "--steps", "40", "--then", "run", "--backend", backend, python=python) as started:
            processes = [outside.open_process(rank.pid) for rank in started.ranks]
            for _ in range(ROUNDS):
                before = [_by_number(process.dump(backend)) for process in processes]
                of_torch = started.dumps_of_torch()
                after = [_by_number(process.dump(backend)) for process in processes]
                for one, theirs, other in zip(before, of_torch, after, strict=True):
                    for entry in theirs["entries"]:
                        ours, later = one.get(entry["record_id"]), other.get(entry["record_id"])
                        if ours is None and later is None:
                            continue
                        if ours == later:
                            whole += 1
                            found += differences_of_entries(entry, ours)
                        else:
                            moving += 1
                            fixed = {name: value for name, value in entry.items() if name not in MOVES}
                            seen = {name: value for name, value in (ours or later or {}).items() if name not in MOVES}
                            found += differences_of_entries(fixed, seen)
                time.sleep(0.1)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(
        f"  {BETWEEN}: {whole} entries that stood, {moving} that moved, {len(found)} differences {found[:3] or ''}",
        flush=True,
    )
    return len(found) if whole else 1


def _by_number(dump: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {entry["record_id"]: entry for entry in dump["entries"]}


def running(python: str, reads: int, backend: str) -> int:
    """Read a job at full speed; the number of wrong readings."""
    place = Path(tempfile.mkdtemp())
    good = torn = wrong = entries = 0
    examples: list[str] = []
    script = ["--steps", "5", "--then", "run", "--backend", backend]
    try:
        with job(place / "run", *script, python=python, TORCH_FR_BUFFER_SIZE="200") as started:
            processes = [outside.open_process(rank.pid) for rank in started.ranks]
            for number in range(reads):
                try:
                    dump = processes[number % len(processes)].dump(backend, stacks=number % 4 == 0)
                except CannotRead as error:
                    torn += 1
                    examples += [error.reason] if torn < 3 else []
                    continue
                bad = mistakes(dump, backend)
                good += not bad
                wrong += bool(bad)
                entries += len(dump["entries"])
                examples += bad[:1] if wrong < 4 else []
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(f"  {AT_SPEED}: {good} good, {torn} refused, {wrong} wrong; {entries} entries {examples or ''}", flush=True)
    return wrong


def mistakes(dump: dict[str, Any], backend: str) -> list[str]:
    """What cannot be, of a job that makes the same three calls again and again."""
    found = []
    for entry in dump["entries"]:
        number = entry["record_id"]
        step, call = divmod(number, 3)
        if entry["profiling_name"] != f"{backend}:{NAMES[call]}":
            found.append(f"{number}: {entry['profiling_name']}")
        shapes = ([[4, 3 + step % 5]], [[2]], [[3]])[call]
        if entry["input_sizes"] != shapes:
            found.append(f"{number}: {entry['input_sizes']}")
        types = (["Float"], ["Long"], ["Half"])[call]
        if entry["input_dtypes"] != types or entry["is_p2p"] or entry["pg_id"] not in (0, 1):
            found.append(f"{number}: {entry['input_dtypes']} {entry['pg_id']}")
        expected = 2 * step + 1 + (call == 2) if call != 1 else step + 1
        if entry["collective_seq_id"] != expected:
            found.append(f"{number}: sequence number {entry['collective_seq_id']}, not {expected}")
        names = [frame["name"] for frame in entry.get("frames", ())]
        if "frames" in entry and names[-3:] != ["step", "main", "<module>"]:
            found.append(f"{number}: frames {names}")
    return found


if __name__ == "__main__":
    sys.exit(main())
