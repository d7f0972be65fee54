"""The reader alone over single files, by thousands: everything that hangscope does with a file before a diagnosis.

No code from a file runs (an audit hook and a marker file watch), nothing is opened for writing, no file takes more than
two seconds of processor time, memory stays under 500 MB, and every failure is one of hangscope's own errors.
"""

from __future__ import annotations

import collections
import json
import os
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hangscope.errors import DamagedError, HangscopeError
from hangscope.model import Gap
from hangscope.reader import archives
from hangscope.reader.dumps import dump_file
from hangscope.reader.join.assemble import assemble
from hostile.asking import Watch
from hostile.inputs import files

SECONDS = 2.0
MEGABYTES = 500


@dataclass
class Read:
    """What came of many files."""

    failures: list[str] = field(default_factory=list)
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    megabytes: float = 0
    slowest: tuple[float, str] = (0.0, "")


def read_all(seed: str, numbers: Sequence[int], only: str | None = None) -> Read:
    """Reads the files of these numbers in a child; one that kills it is a failure, and another child goes on."""
    total = Read()
    waiting = list(numbers)
    with tempfile.TemporaryDirectory() as folder:
        while waiting:
            lines, status = _in_a_child(seed, waiting, only, Path(folder, "ran"))
            for line in lines:
                _count(total, line)
            waiting = waiting[sum("kind" in line for line in lines) :]
            if status != 0:
                total.failures.append(f"file {waiting[0]}: the process that read it ended with {status}")
                waiting = waiting[1:]
        if os.listdir(folder):
            total.failures.append("a payload ran: its marker file exists")
    if total.megabytes > MEGABYTES:
        total.failures.append(f"{total.megabytes:.0f} MB of memory")
    return total


def _count(total: Read, line: dict[str, Any]) -> None:
    total.megabytes = max(total.megabytes, line.get("megabytes", 0))
    if "kind" not in line:
        return
    total.outcomes[line["outcome"]] += 1
    total.kinds[line["kind"]] += 1
    total.slowest = max(total.slowest, (line["seconds"], f"{line['kind']} {line['number']}"))
    if line["outcome"] == "failure":
        total.failures.append(f"file {line['number']} {line['kind']}: {line['error']}")


def _in_a_child(seed: str, numbers: list[int], only: str | None, marker: Path) -> tuple[list[dict[str, Any]], int]:
    """(a line for each file and one for the memory, the exit status)."""
    with tempfile.TemporaryFile() as notes:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _read_under_limits(seed, numbers, only, str(marker), notes.fileno())
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        notes.seek(0)
        return [json.loads(line) for line in notes.read().splitlines()], os.waitstatus_to_exitcode(status)


def _read_under_limits(seed: str, numbers: list[int], only: str | None, marker: str, notes: int) -> None:
    """File after file, under limits that the kernel holds."""

    def note(**line: object) -> None:
        os.write(notes, json.dumps(line).encode() + b"\n")

    watch = Watch()
    for number, data in enumerate(files.originals()):
        read_one(data, number)  # whatever is imported or compiled at first use is not the files' doing
    baseline = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (baseline + MEGABYTES * 1_000_000, resource.RLIM_INFINITY))
    for number in numbers:
        kind, data = files.make(seed, number, only)
        data = data.replace(files.MARKER.encode(), marker.encode())
        error = ""
        started = time.process_time()
        # SIGPROF counts processor time and kills the process, also in the middle of C code.
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        watch.seen.clear()
        watch.active = True
        try:
            outcome = read_one(data, number)
        except HangscopeError:
            outcome = "refused"
        except BaseException:
            outcome, error = "failure", traceback.format_exc()[-1500:]
        watch.active = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        if watch.seen:
            outcome, error = "failure", f"did {collections.Counter(watch.seen).most_common(5)}"
        seconds = round(time.process_time() - started, 3)
        note(number=number, kind=kind, outcome=outcome, seconds=seconds, error=error)
    note(megabytes=peak_kb() / 1000)


def peak_kb() -> int:
    """The most memory this process had. Not by getrusage, which still counts that of the process that started it."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def read_one(data: bytes, number: int) -> str:
    """Everything that hangscope does with a file before it is diagnosed."""
    gaps: list[Gap] = []
    if archives.recognise(data[:512]):
        found = archives.members(data, file="archive", gaps=gaps)
    else:
        found = iter([(f"host/nccl_trace_rank_{number % 7}", data)])
    outcome = "nothing"
    raws: list[dump_file.RawDump] = []
    for name, content in found:
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
