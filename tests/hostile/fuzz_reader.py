"""Feeds the reader thousands of hostile files and holds it to its promises, in a process of its own.

    python tests/hostile/fuzz_reader.py --count 20000

No code from a file runs (an audit hook and a marker file watch), nothing is opened for writing, no file takes more than
two seconds of processor time, memory stays under 500 MB, and every failure is one of hangscope's own errors.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
SECONDS = 2.0
MEGABYTES = 500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        return work(given.seed, given.first, given.count, Path(given.worker))
    result = run(given.seed, given.first, given.count)
    print(json.dumps(result, indent=2))
    return 1 if result["failures"] else 0


def run(seed: int, first: int, count: int) -> dict[str, Any]:
    """Reads `count` files in a worker; one that kills the worker is a failure, and the rest goes on in a new one."""
    total: dict[str, Any] = {
        "files": 0,
        "failures": [],
        "megabytes": 0,
        "slowest_s": 0.0,
        "slowest": "",
        "outcomes": {},
        "kinds": {},
    }
    number, stop = first, first + count
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    with tempfile.TemporaryDirectory() as folder:
        while number < stop:
            command = [
                sys.executable,
                __file__,
                "--seed",
                str(seed),
                "--first",
                str(number),
                "--count",
                str(stop - number),
            ]
            done = subprocess.run(
                [*command, "--worker", folder], env=environment, capture_output=True, text=True, check=False
            )
            lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            for line in lines:
                if "outcome" in line:
                    total["files"] += 1
                    for table, key in (("outcomes", line["outcome"]), ("kinds", line["kind"])):
                        total[table][key] = total[table].get(key, 0) + 1
                    if line["seconds"] > total["slowest_s"]:
                        total["slowest_s"], total["slowest"] = line["seconds"], f"{line['kind']} {line['number']}"
                    number = line["number"] + 1
                    if line["outcome"] == "failure":
                        total["failures"].append(line)
                total["megabytes"] = max(total["megabytes"], line.get("megabytes", 0))
            if done.returncode:
                why = f"worker ended with {done.returncode}: {done.stderr[-2000:]}"
                total["failures"].append({"seed": seed, "number": number, "error": why})
                number += 1
        if os.listdir(folder):
            total["failures"].append({"error": "a payload ran: its marker file exists"})
    if total["megabytes"] > MEGABYTES:
        total["failures"].append({"error": f"{total['megabytes']} MB of memory"})
    return total


def work(seed: int, first: int, count: int, folder: Path) -> int:
    """The worker: reads file after file under limits that the kernel enforces."""
    sys.path.insert(0, str(HERE))
    from hangscope.errors import HangscopeError
    from hostile import hostile_files

    marker = str(folder / "ran")
    watch = _Watch()
    for number, data in enumerate(hostile_files.originals()):
        _read(data, number)  # whatever is imported or compiled at first use is not the files' doing
    baseline = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (baseline + MEGABYTES * 1_000_000, resource.RLIM_INFINITY))
    for number in range(first, first + count):
        kind, data = hostile_files.make(seed, number)
        data = data.replace(hostile_files.MARKER.encode(), marker.encode())
        outcome, error = "read", ""
        started = time.process_time()
        # SIGPROF counts processor time and kills the process, also in the middle of C code.
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        watch.events.clear()
        watch.active = True
        try:
            outcome = _read(data, number)
        except HangscopeError as refusal:
            outcome, error = "refused", str(refusal)
        except BaseException:
            outcome, error = "failure", traceback.format_exc()[-1500:]
        watch.active = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        if watch.events:
            outcome, error = "failure", f"did {collections.Counter(watch.events).most_common(5)}"
        line = {"number": number, "seed": seed, "kind": kind, "outcome": outcome}
        line["seconds"] = round(time.process_time() - started, 3)
        if outcome == "failure":
            line["error"] = error
        print(json.dumps(line), flush=True)
    print(json.dumps({"megabytes": peak_kb() // 1000}), flush=True)
    return 0


def peak_kb() -> int:
    """The most memory this process had. Not by getrusage, which still counts that of the process that started it."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _read(data: bytes, number: int) -> str:
    """Everything that hangscope does with a file before it is diagnosed."""
    from hangscope.errors import DamagedError
    from hangscope.model import Gap
    from hangscope.reader import archives
    from hangscope.reader.dumps import dump_file
    from hangscope.reader.join.assemble import assemble

    gaps: list[Gap] = []
    if archives.recognise(data[:512]):
        files = archives.members(data, file="archive", gaps=gaps)
    else:
        files = iter([(f"host/nccl_trace_rank_{number % 7}", data)])
    outcome = "nothing"
    raws = []
    for name, content in files:
        dump_file.recognise(content)
        try:
            raws.append(dump_file.read(content, file=name or "archive"))
            outcome = "read" if raws[-1].complete else "broken"
        except DamagedError:
            outcome = "refused"
        if len(raws) > 50:
            break
    job = assemble(raws)
    step = max(1, len(job.ops) // 200)
    for row in range(0, len(job.ops), step):
        assert job.ops[row].title
    for group in job.groups:
        assert group.label is not None
    for gap in job.gaps:
        assert str(gap.source) and gap.what
    return outcome


class _Watch:
    """Notes everything that running code, or writing, would do. Audit hooks see it below Python's own functions."""

    SUSPICIOUS = (
        "pickle.find_class", "exec", "compile", "import", "os.system", "os.exec", "os.posix_spawn", "os.fork",
        "subprocess.Popen", "socket.", "ctypes.", "marshal.", "os.rename", "os.remove", "os.mkdir", "shutil.", "code.",
    )  # fmt: skip

    def __init__(self) -> None:
        self.events: list[str] = []
        self.active = False
        sys.addaudithook(self._see)

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event == "open":
            mode = arguments[1]
            if isinstance(mode, str) and set(mode) & set("wax+"):
                self.events.append(f"open {mode}")
        elif event.startswith(self.SUSPICIOUS):
            self.events.append(event)


if __name__ == "__main__":
    sys.exit(main())
