"""What is read from outside of NCCL jobs, in one call: is it what torch dumps, and what are the verdicts worth?

    python tests/live_scripts/outside_nccl.py --out DIR [--seconds 450] [--together 5] [--backend gloo] [NAME…]

Needs one GPU and a PyTorch with NCCL; `--backend gloo` tries the script without one. Four parts, worst things first:
torch's own dump beside what is read from outside (tests/sources/equality_trial.py); jobs started plainly that hang, and
`hangscope snapshot PID`; the same watched by `hangscope attach PID`; and under `hangscope run` as it is by default.

Into DIR come table.md, whose lines are written as they come, and evidence.tar.gz with the incidents (those of wrong
rows first). What there was no time for is a line of the table that says so. The exit status is 1 where a row was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "src")]

import run as prepared  # noqa: E402  (where it lies is set above)
import unprepared  # noqa: E402
from run import NCCL, PYTHON, SOURCE, TORCHRUN, Row, place_of  # noqa: E402

from hangscope.processes import linux_process  # noqa: E402

EQUALITY = Path(__file__).parents[1] / "sources" / "equality_trial.py"
STALL_S = 6.0
LONGEST_S = 100.0
EACH_S = 65.0
"""What a job takes at most with several beside it: less than that before the end, none is begun."""
MOST_EVIDENCE = 14 << 20
FIRST = ("collective", "fsdp_tp", "ring", "lone_norm", "regex", "beside_gloo", "stopped", "mesh_first", "store")
"""Of the hung jobs, what has to be seen even if time is short."""

Answer = tuple[bool | None, str]


@dataclass(frozen=True)
class Trial:
    part: str
    name: str
    made: Callable[[], Answer]
    alone: bool = False
    place: str = ""


class Table:
    """Lines as they come, on stdout and in the file."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("w")
        self._lock = threading.Lock()
        self.counts = {True: 0, False: 0, None: 0}
        self.wrong: list[str] = []
        self.say("| part | job | injected | verdict | line | seconds |")
        self.say("|---|---|---|---|---|---|")

    def close(self) -> None:
        with self._lock:
            self._stream.close()

    def say(self, line: str) -> None:
        with self._lock:
            if self._stream.closed:
                return
            print(line, flush=True)
            self._stream.write(line + "\n")
            self._stream.flush()

    def count(self, trial: Trial, answer: Answer) -> None:
        self.counts[answer[0]] += 1
        self.wrong += [trial.place] if answer[0] is False else []
        for line in answer[1].splitlines():
            self.say(f"| {trial.part} {line}" if line.startswith("|") else line)


def main() -> None:
    begun = time.monotonic()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=450.0)
    parser.add_argument("--together", type=int, default=5)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="outside-nccl-"))
    table = Table(given.out / "table.md")
    prepared.LONGEST_S = unprepared.LONGEST_S = LONGEST_S
    until = begun + given.seconds
    words = "import torch; print(torch.__version__, torch.cuda.is_available() and torch.cuda.nccl.version())"
    found = subprocess.run([PYTHON, "-c", words], capture_output=True, text=True, check=False)
    table.say(f"Python {platform.python_version()}, torch {found.stdout.strip() or found.stderr[-500:]}")
    equal, others = trials(given.backend, folder)
    equal, others = (
        [each for each in some if not given.names or any(name in each.name for name in given.names)]
        for some in (equal, others)
    )
    # one by one: jobs beside take the GPU's time from the ones that make thousands of operations
    lane, lanes = ThreadPoolExecutor(1), ThreadPoolExecutor(given.together)
    begun_all = [lane.submit(one, trial, table, until) for trial in equal]
    begun_all += [lanes.submit(one, trial, table, until) for trial in others if not trial.alone]
    wait(begun_all, timeout=until - time.monotonic())
    for trial in others:
        if trial.alone:
            one(trial, table, until)
    right, wrong, left = table.counts[True], table.counts[False], table.counts[None]
    unfinished = sum(not each.done() for each in begun_all)
    if unfinished:
        table.say(f"\n{unfinished} more did not come to their end in {given.seconds:g} s")
    table.say(f"\n{right} right, {wrong} wrong, {left} not judged; {time.monotonic() - begun:.0f} s")
    table.close()
    pack(folder, given.out / "evidence.tar.gz", table.wrong)
    for pid, _ in linux_process.descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    sys.stdout.flush()
    os._exit(1 if wrong else 0)  # threads that wait for jobs of theirs hold nothing up


def one(trial: Trial, table: Table, until: float) -> None:
    """Make a trial while there is time; whatever it does, a line comes of it."""
    if time.monotonic() > until - EACH_S:
        table.count(trial, (None, f"| {trial.name} | - | not run: no time was left | - | - |"))
        return
    try:
        table.count(trial, trial.made())
    except Exception as error:  # one job of many: the others are still worth their time
        table.count(trial, (False, f"| {trial.name} | - | the trial broke: {type(error).__name__}: {error} | - | - |"))


def trials(backend: str, folder: Path) -> tuple[list[Trial], list[Trial]]:
    """Those of equality, and the others in the order of their worth."""
    words = ("hung", "between", "wrapped at 2,000", "entry", "at full", "2,000 entries", "ring of 80", "wrapped at 64")
    equal = [Trial("equality", word, partial(equality, backend, word)) for word in words]
    rows = [row for row in prepared._nccl(backend) if unprepared.stays(row)]
    rows.sort(key=lambda row: (row.name not in FIRST, FIRST.index(row.name) if row.name in FIRST else 0))
    rows[3:3] = list(fewer(backend))
    named = {row.name: row for row in rows}
    healthy = next(row for row in prepared._nccl(backend) if row.name == "healthy")
    hung = [
        Trial("snapshot", row.name, partial(unprepared.run, row, folder), row.alone, str(place_of(row))) for row in rows
    ]
    watched, under = folder / "attach", folder / "run"
    for place in (watched, under):
        place.mkdir()
    attached = [
        Trial("attach", name, partial(attach, row, watched), row.alone, f"attach/{place_of(row)}")
        for name, row in [(name, named[name]) for name in ("collective", "lone_norm", "ring", "regex")]
        + [("healthy", healthy)]
    ]
    prepared_too = [
        Trial("run", name, partial(by_run, row, under), row.alone, f"run/{place_of(row)}")
        for name, row in [(name, named[name]) for name in ("collective", "regex", "lone_norm", "ring")]
        + [("healthy", healthy)]
    ]
    moving = Trial("snapshot", "healthy, running", partial(snapshot_healthy, backend, folder), False, "healthy-running")
    return equal, [
        *hung[:4],
        attached[0],
        prepared_too[0],
        *hung[4:9],
        moving,
        *attached[1:],
        *prepared_too[1:],
        *hung[9:],
    ]


def fewer(backend: str) -> Iterator[Row]:
    """Two and three ranks."""
    for ranks, name, rank in ((2, "collective", 1), (3, "ring_reduce", 1)):
        torchrun = (*TORCHRUN[:-1], f"--nproc-per-node={ranks}")
        words = (*torchrun, NCCL, name, "--backend", backend, "--rank", str(rank))
        yield Row(f"{name}, {ranks} ranks", words, "absent", (rank,), line="wait_for_storage")


def equality(backend: str, word: str) -> Answer:
    command = [PYTHON, str(EQUALITY), PYTHON, "--backend", backend, "--only", word, "--reads", "1000"]
    said = run_bounded(command, 170.0)
    lines = [line.strip() for line in said.stdout.splitlines()[1:]]
    if not lines:
        return False, f"| {word} | - | nothing: {said.stderr.strip()[-300:]!r} | - | - |"
    return said.returncode == 0, "\n".join(f"| {line} | - | - | - | - |" for line in lines)


def by_run(row: Row, folder: Path) -> Answer:
    right, line = prepared.run(row, folder)
    return right, in_columns(line)


def in_columns(line: str) -> str:
    """A line of run.py with what stderr says behind the verdict."""
    name, injected, said, verdict, after = line.strip("| ").split(" | ")
    return f"| {name} | {injected} | {verdict} | {said} | {after} |"


def attach(row: Row, folder: Path) -> Answer:
    """The job is started plainly and attached to soon; then it hangs, or ends well."""
    place = folder / place_of(row)
    out, err = folder / f"{place.name}.out", folder / f"{place.name}.err"
    options = ["--dir", str(place), "--stall-after", str(STALL_S), "--keep"]
    with started(row, out) as job, err.open("wb") as said:
        time.sleep(4.0)
        words = [PYTHON, "-m", "hangscope", "attach", str(job.pid), *options]
        watch = subprocess.Popen(words, stdout=said, stderr=said, env=with_hangscope(), start_new_session=True)
        try:
            limit = time.monotonic() + LONGEST_S
            while time.monotonic() < limit and watch.poll() is None and not (place / "verdict.txt").exists():
                time.sleep(0.2)
            if watch.poll() is None:
                watch.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                watch.wait(20)
            status = job.poll()
        finally:
            end_group(watch)
    text = out.read_text(errors="replace") + err.read_text(errors="replace")
    right, line = prepared._judge(row, place, text, 1 if status is None else status)
    return right, in_columns(line)


def snapshot_healthy(backend: str, folder: Path) -> Answer:
    """A snapshot of a job that goes on: it is not called hung."""
    four = (*TORCHRUN[:-1], "--nproc-per-node=4")
    row = Row("healthy, running", (*four, NCCL, "fsdp_tp", "--backend", backend, "--rank", "9"))
    place = folder / "healthy-running"
    with started(row, folder / "healthy-running.out") as job:
        time.sleep(30.0)
        begun = time.monotonic()
        words = [PYTHON, "-m", "hangscope", "snapshot", str(job.pid), "--dir", str(place)]
        said = subprocess.run(words, capture_output=True, text=True, env=with_hangscope(), timeout=120, check=False)
        seconds = time.monotonic() - begun
        alive = job.poll() is None
    first = next(iter((place / "verdict.txt").read_text().splitlines()), "-") if place.exists() else said.stderr[-200:]
    right = alive and not re.match(r"(HANG|CRASH|WAIT)\b", first)
    return right, f"| healthy, running | none | {first.strip()} | - | {seconds:.1f} |"


# ---- processes, all of which end with the script ---------------------------------------------------------------------


@contextlib.contextmanager
def started(row: Row, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A job as somebody starts it who knows nothing of hangscope."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HANGSCOPE", "TORCH_"))}
    environ["OMP_NUM_THREADS"] = "1"
    with output.open("wb") as stream:
        job = subprocess.Popen(row.words, stdout=stream, stderr=stream, env=environ, start_new_session=True)
    try:
        yield job
    finally:
        end_group(job)


def end_group(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_bounded(words: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=with_hangscope(), start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        err += f"\nended after {seconds:g} s"
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def with_hangscope() -> dict[str, str]:
    paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def pack(folder: Path, archive: Path, wrong: list[str]) -> None:
    """The incidents, of wrong rows first, while there is room."""
    room = MOST_EVIDENCE
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]

    def worth(path: Path) -> tuple[bool, bool, str]:
        name = str(path.relative_to(folder))
        return not any(place and name.startswith(place) for place in wrong), path.stat().st_size > 1 << 20, name

    with tarfile.open(archive, "w:gz") as packed:
        for path in sorted(files, key=worth):
            size = path.stat().st_size
            if size // 4 > room:
                continue
            room -= size // 4 + 512  # text and pickles: a quarter and less of it is left
            packed.add(path, arcname=str(path.relative_to(folder)))


if __name__ == "__main__":
    main()
