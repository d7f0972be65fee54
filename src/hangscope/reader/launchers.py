"""What torchrun, Slurm, mpirun and the shell log about processes that ended."""

from __future__ import annotations

import re
import signal

from hangscope.model import Source
from hangscope.reader.lines import Line, Writers, parse_time
from hangscope.reader.rosters import LAUNCHER, Note
from hangscope.reader.values import host_name

_FAILED = re.compile(r"failed \(exitcode: (?P<exit>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\) of binary")
_BLOCK_ROW = re.compile(r"^\s{0,4}(?P<key>time|host|rank|exitcode|error_file|traceback)\s*: (?P<value>.*)$")
_BLOCK_RANK = re.compile(r"(?P<rank>\d{1,6}) \(local_rank: (?P<local>\d+)\)")
_BLOCK_EXIT = re.compile(r"(?P<exit>-?\d+)\s+\(pid: (?P<pid>\d+)\)")
_CLOSING = re.compile(r"(?:Sending process (\d+) closing signal (\w+)|Closing process (\d+) via signal (\w+))")
_STUCK = re.compile(r"Unable to shutdown process (\d+) via|Process (\d+) did not exit after")
_SRUN = re.compile(r"(?:srun|slurmstepd): error: (?P<node>[\w.-]+): tasks? (?P<tasks>[\d,\-]+): (?P<how>.*)")
_MPI = re.compile(
    r"process rank (?P<rank>\d{1,6}) with PID (?P<pid>\d+) on node (?P<node>[\w.-]+) exited on signal (?P<signal>\d+)"
)
_SHELL = re.compile(r"line \d+:\s+(?P<pid>\d+) (?P<how>Killed|Segmentation fault|Aborted|Bus error|Terminated)\b")

WORDS = (
    "exitcode",
    "local_rank:",
    "closing signal",
    "via signal",
    "Unable to shutdown process",
    "did not exit after",
    ": error: ",
    "exited on signal",
    " Killed",
    " Segmentation fault",
    " Aborted",
    " Bus error",
    " Terminated",
    "CANCELLED AT",
    "Terminating StepId",
    "Job step aborted",
)
"""Every line that speaks of a process that ended holds one of these."""

_ENDS = {
    "Killed": -signal.SIGKILL,
    "Out Of Memory": -signal.SIGKILL,
    "Segmentation fault": -signal.SIGSEGV,
    "Aborted": -signal.SIGABRT,
    "Bus error": -signal.SIGBUS,
    "Terminated": -signal.SIGTERM,
}


class LauncherLog:
    """Reads torchrun's, Slurm's, mpirun's and the shell's words about processes that ended."""

    def __init__(self, file: str, writers: Writers) -> None:
        self.file = file
        self.writers = writers
        self.notes: list[Note] = []
        self.elastic = False
        """Whether a torchrun spoke here: then Slurm's tasks are nodes and not ranks."""
        self.traceback_ranks: dict[int, int] = {}
        """Line of a traceback in torchrun's summary → the rank whose it is."""
        self._blocks: dict[str, dict[str, str]] = {}
        self._stopping = False
        """Slurm has begun to end the step: whom it kills from here on did nothing wrong."""

    def feed(self, line: Line) -> None:
        row = line.text
        if " : " in row or ": " in row[:14]:
            self._block(line)
        if "process" in row or "exitcode" in row:
            self._elastic(line)
        if "CANCELLED AT" in row or "Terminating StepId" in row or "Job step aborted" in row:
            self._stopping = True
        if "error:" in row and (match := _SRUN.search(row)):
            self._slurm(match, line)
        elif "exited on signal" in row and (match := _MPI.search(row)):
            self.notes.append(
                Note(
                    LAUNCHER,
                    self._source(line),
                    rank=int(match["rank"]),
                    node=host_name(match["node"]),
                    pid=int(match["pid"]),
                    exit_status=-int(match["signal"]),
                    alive_at_end=False,
                )
            )
        elif match := _SHELL.search(row):
            self.notes.append(
                Note(
                    LAUNCHER,
                    self._source(line),
                    pid=int(match["pid"]),
                    exit_status=_ENDS[match["how"]],
                    alive_at_end=False,
                )
            )

    def _source(self, line: Line) -> Source:
        return Source(self.file, f"line {line.number}")

    def _elastic(self, line: Line) -> None:
        if match := _FAILED.search(line.text):
            self.elastic = self.writers.launcher = True
            self.notes.append(
                Note(
                    LAUNCHER,
                    self._source(line),
                    local_rank=int(match["local"]),
                    pid=int(match["pid"]),
                    exit_status=int(match["exit"]),
                    alive_at_end=False,
                )
            )
        elif match := _CLOSING.search(line.text):
            self.elastic = self.writers.launcher = True
            # alive until the launcher stopped it: how it ended then says nothing about it
            self.notes.append(Note(LAUNCHER, self._source(line), pid=int(match[1] or match[3]), alive_at_end=True))
        elif match := _STUCK.search(line.text):
            self.notes.append(
                Note(LAUNCHER, self._source(line), pid=int(match[1] or match[2]), alive_at_end=True, state="D")
            )

    def _block(self, line: Line) -> None:
        """One failure in torchrun's summary: five rows, then the traceback."""
        match = _BLOCK_ROW.match(line.text)
        if match is None:
            return
        block = self._blocks.setdefault(line.stream, {})
        if match["key"] == "time":
            block.clear()
        block[match["key"]] = match["value"].strip()
        if match["key"] == "traceback" and (rank := _BLOCK_RANK.match(block.get("rank", ""))):
            self.traceback_ranks[line.number] = int(rank["rank"])
        if match["key"] != "exitcode" or "rank" not in block:
            return
        rank, ended = _BLOCK_RANK.match(block["rank"]), _BLOCK_EXIT.match(block["exitcode"])
        if rank is None or ended is None:
            return
        self.elastic = self.writers.launcher = True
        at = parse_time(block.get("time", ""))
        self.notes.append(
            Note(
                LAUNCHER,
                self._source(line),
                rank=int(rank["rank"]),
                node=host_name(block.get("host")),
                local_rank=int(rank["local"]),
                pid=int(ended["pid"]),
                exit_status=int(ended["exit"]),
                ended_at_s=at / 1e9 if at else None,
                alive_at_end=False,
            )
        )

    def _slurm(self, match: re.Match[str], line: Line) -> None:
        how = match["how"].strip()
        status = next((code for word, code in _ENDS.items() if how.startswith(word)), None)
        if status is None and (code := re.search(r"exit code (\d+)", how)):
            status = int(code[1])
        if status is None:
            return
        stopped = self._stopping and status in {-signal.SIGKILL, -signal.SIGTERM}
        for task in expand_range(match["tasks"]):
            self.notes.append(
                Note(
                    LAUNCHER,
                    self._source(line),
                    node=host_name(match["node"]),
                    task=task,
                    exit_status=None if stopped else status,
                    alive_at_end=stopped,
                )
            )


def expand_range(spec: str, limit: int = 100_000) -> list[int]:
    """``0-2,7`` as numbers."""
    found: list[int] = []
    for part in spec.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            continue
        found.extend(range(int(first), min(int(last or first), int(first) + limit) + 1))
    return found
