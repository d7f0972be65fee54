"""Jobs that nobody prepared: each is started plainly, hangs, and then `hangscope snapshot PID` is run once.

    python tests/live_scripts/unprepared.py [NAME…] [--keep DIR]    all classes of run.py that hang and stay
    python tests/live_scripts/unprepared.py --nccl [NAME…]          the same on NCCL: needs one GPU
    python tests/live_scripts/unprepared.py --seconds 8             how long a verdict takes, of a job of 8 ranks

Prints one line a job as a table for docs/live.md: what was injected, the verdict, whether its first two lines have the
line that the culprit is in, and the seconds from the command to the verdict.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from run import PYTHON, SOURCE, STUCK, TORCHRUN, Row, _nccl, _rows, place_of

STANDS_S = 10.0
"""After the fault, so that all ranks have come to where they wait."""
LONGEST_S = 180.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--nccl", action="store_true")
    parser.add_argument("--seconds", type=int, metavar="RANKS", default=0)
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="unprepared-"))
    folder.mkdir(parents=True, exist_ok=True)
    if given.seconds:
        words = (*TORCHRUN[:-1], f"--nproc-per-node={given.seconds}", STUCK, "collective")
        rows = [Row(f"collective, {given.seconds} ranks", words, "absent", (2,))]
    else:
        offered = [row for row in (_nccl("nccl") if given.nccl else _rows(folder)) if stays(row)]
        rows = [row for row in offered if not given.names or any(name in row.name for name in given.names)]
    print("| job | injected | verdict | line | seconds |\n|---|---|---|---|---|", flush=True)
    right = 0
    judged = 0
    for row in rows:
        answer, line = run(row, folder)
        judged += answer is not None
        right += answer is True
        print(line, flush=True)
    print(f"{right} of {judged} right")
    if given.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if right == judged and judged else 1


def stays(row: Row) -> bool:
    """Whether the job hangs and is still there a moment later, in its first attempt."""
    over = row.second or row.to_end or row.says or row.looks or row.kind in ("none", "dead", "unknown")
    return not over and row.outcome in ("", "hang") and "timeout" not in row.name and "monitored" not in row.name


def run(row: Row, folder: Path) -> tuple[bool | None, str]:
    """Whether the answer was right, None where the job had ended; and the line of the table."""
    place = folder / place_of(row)
    shutil.rmtree(place, ignore_errors=True)
    output = folder / f"{place.name}.out"
    head = f"| {row.name} | {row.kind} {list(row.ranks)} |"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HANGSCOPE", "TORCH_"))}
    with output.open("wb") as stream:
        job = subprocess.Popen(
            row.words, stdout=stream, stderr=stream, env={**environ, "OMP_NUM_THREADS": "1"}, start_new_session=True
        )
    try:
        if not hung(job, output):
            return None, f"{head} the job had ended | - | - |"
        begun = time.monotonic()
        words = [PYTHON, "-m", "hangscope", "snapshot", str(job.pid), "--dir", str(place)]
        paths = [str(SOURCE), *filter(None, [environ.get("PYTHONPATH")])]
        more = {**environ, "PYTHONPATH": os.pathsep.join(paths)}
        said = subprocess.run(words, capture_output=True, text=True, env=more, timeout=LONGEST_S, check=False)
        seconds = time.monotonic() - begun
        (folder / f"{place.name}.err").write_text(said.stderr)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    try:
        verdict: dict[str, Any] = json.loads((place / "verdict.json").read_text())
    except (OSError, ValueError):
        return False, f"{head} none: {said.stderr.strip().splitlines()[-1:]} | - | {seconds:.1f} |"
    ranks = tuple(culprit["rank"] for culprit in verdict["culprits"])
    right = verdict["kind"] in row.kind.split("|") and ranks == row.ranks
    first = "\n".join((place / "verdict.txt").read_text().splitlines()[:2])
    line = re.search(r"\(([\w.]+:\d+)\)|([\w.]+:\d+)", first)
    right &= not row.line or re.search(rf"\b{row.line}\b", first) is not None
    answer = f"{verdict['outcome']}, {verdict['kind']} {list(ranks)}, {verdict['confidence']}"
    found = (line[1] or line[2]) if line else "-"
    return right, f"{head} {answer}{'' if right else ' (wrong)'} | {found} | {seconds:.1f} |"


def hung(job: subprocess.Popen[bytes], output: Path) -> bool:
    """Wait for the fault and for the others to come to where they wait; whether the job is still there."""
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until and job.poll() is None and b"fault at " not in output.read_bytes():
        time.sleep(0.2)
    end = time.monotonic() + STANDS_S
    while time.monotonic() < end and job.poll() is None:
        time.sleep(0.2)
    return job.poll() is None


if __name__ == "__main__":
    sys.exit(main())
