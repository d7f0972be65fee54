"""`--on-hang kill` over jobs that pause and jobs that hang: none of the first may be ended, all of the second must be.

    python tests/live_scripts/kill_trial.py [--healthy 50] [--hung 20] [--together 2] [--keep DIR]

A healthy job saves, evaluates, compiles, loads slowly or sleeps, on one rank, while the others wait; some for longer
than the threshold, and for up to three times as long as it did before. A hung one blocks for ever. All run with a short
`--kill-after`, so that patience alone saves nobody: what works is not ended, and what went on before has its time.
Takes some twenty seconds a job.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
PAUSES = ("saves", "evaluates", "compiles", "loads")
HANGS = ("loader_blocks", "no_barrier", "caught_in_main", "thread_dies", "eval_on_one")
STALL_S = 4.0
KILL_S = 8.0
LONGEST_S = 240.0


@dataclass(frozen=True)
class Trial:
    name: str
    words: tuple[str, ...]
    hangs: bool


def trials(healthy: int, hung: int) -> list[Trial]:
    """Each with lengths of its own, the same at every start."""
    drawn = random.Random(0)
    found = []
    for number in range(healthy):
        kind = PAUSES[number % len(PAUSES)]
        first = drawn.uniform(2.0, 9.0)
        lengths = f"{first:.1f},{first * drawn.uniform(1.0, 3.0):.1f}"
        words = (*TORCHRUN, str(HERE / "pauses.py"), kind, "--lengths", lengths)
        found.append(Trial(f"healthy-{number}-{kind}-{lengths}", words, hangs=False))
    for number in range(hung):
        kind = HANGS[number % len(HANGS)]
        found.append(Trial(f"hung-{number}-{kind}", (*TORCHRUN, str(HERE / "everyday.py"), kind), hangs=True))
    return found


def run(trial: Trial, folder: Path) -> tuple[bool, str]:
    """Whether it went as it has to, and a line about it."""
    incident = folder / trial.name
    options = ("--stall-after", str(STALL_S), "--on-hang", "kill", "--kill-after", str(KILL_S), "--grace", "3")
    command = [sys.executable, "-m", "hangscope", "run", "--dir", str(incident), *options, "--", *trial.words]
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    begun = time.monotonic()
    with (folder / f"{trial.name}.txt").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environ, start_new_session=True)
        try:
            status: int | str = process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            status = "never ended"
            process.wait(60)
    text = (folder / f"{trial.name}.txt").read_text(errors="replace")
    ended = "SIGTERM, and SIGKILL after" in text
    ended_well = ended and status != "never ended" and _is_complete(incident)
    right = ended_well if trial.hangs else not ended and status == 0
    did = "ended" if ended else "left alone"
    return right, f"{trial.name}: {did}, status {status}, {time.monotonic() - begun:.0f} s"


def _is_complete(incident: Path) -> bool:
    """Whether the evidence of an ended job is all there: its verdict, and every rank's recorder and stack."""
    try:
        verdict = json.loads((incident / "verdict.json").read_text())
    except (OSError, ValueError):
        return False
    dumps, stacks = (len(list(incident.glob(f"nodes/*/{name}"))) for name in ("dumps/*.json", "stacks/rank_?.2.txt"))
    return verdict["outcome"] in ("hang", "wait") and dumps >= 2 and stacks >= 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--healthy", type=int, default=50)
    parser.add_argument("--hung", type=int, default=20)
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="kill-trial-"))
    folder.mkdir(parents=True, exist_ok=True)
    right = {True: 0, False: 0}
    with ThreadPoolExecutor(given.together) as pool:
        chosen = trials(given.healthy, given.hung)
        for trial, (good, line) in zip(chosen, pool.map(lambda each: run(each, folder), chosen), strict=True):
            right[trial.hangs] += good
            print(line if good else f"{line}  WRONG", flush=True)
    print(f"{right[False]} of {given.healthy} healthy jobs left alone, {right[True]} of {given.hung} hung ones ended")
    return 0 if sum(right.values()) == given.healthy + given.hung else 1


if __name__ == "__main__":
    sys.exit(main())
