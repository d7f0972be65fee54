"""What torchrun, Slurm, mpirun and the shell log about processes that ended.

Every sentence gives two things: what it says about a process (a statement, merged with all other sources later) and
the failure itself, for those who ask whether anything failed at all.
"""

from __future__ import annotations

import re
from dataclasses import replace

from hangscope.model import OUTLIVED_SIGTERM, UNKNOWN, FailureKind, Process, Source
from hangscope.model.numbers import integer, is_number
from hangscope.model.process_ends import ENDS, ORDERED_ENDS, SIGNAL_NAMES, kind_of_end, plain_status
from hangscope.model.statements import Statement, Trust
from hangscope.model.times import parse_time
from hangscope.model.values import host_name
from hangscope.reader.logs.failure_line import FailureLine, make_failure
from hangscope.reader.logs.launchers.slurm_log import SlurmLog
from hangscope.reader.logs.line_writers import Writers
from hangscope.reader.logs.log_lines import Line

_FAILED = re.compile(r"failed \(exitcode: (?P<exit>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)")
_BLOCK_ROW = re.compile(r"^\s{0,4}(?P<key>time|host|rank|exitcode|error_file|traceback)\s*: (?P<value>.*)$")
_BLOCK_RANK = re.compile(r"(?P<rank>\d{1,6}) \(local_rank: (?P<local>\d+)\)")
_BLOCK_EXIT = re.compile(r"(?P<exit>-?\d+)\s+\(pid: (?P<pid>\d+)\)")
# As it looks after a form or a chat has taken its line ends and some of its blanks.
_ONE_ROW = re.compile(
    r"(?:host\s{0,20}: (?P<host>\S{1,255})\s{1,20})?\brank\s{0,20}:?\s{0,20}(?P<rank>\d{1,6})\s{0,20}"
    r"\(local[_ ]rank: (?P<local>\d+)\)\s{0,20}exitcode\s{0,20}: (?P<exit>-?\d+)\s{0,20}\(pid: (?P<pid>\d+)\)"
)
_CLOSING = re.compile(r"(?:Sending process (\d+) closing signal (\w+)|Closing process (\d+) via signal (\w+))")
_DEATH = re.compile(
    r"Received (?:Signals\.)?(?P<signal>\w+) death signal, shutting down workers"
    r"|SignalException: Process \d+ got signal: (?:Signals\.)?(?P<got>\w+)"
)
_STUCK = re.compile(r"Unable to shutdown process (\d+) via|Process (\d+) did not exit after")
_EXIT_CODE = re.compile(r"exit code:?\s{1,8}(\d{1,4})\b", re.IGNORECASE)
_MPI = re.compile(
    r"process rank (?P<rank>\d{1,6}) with PID (?P<pid>\d+) on node (?P<node>[\w.-]+) exited on signal (?P<signal>\d+)"
)
_MPI_ABORT = re.compile(r"MPI_ABORT was invoked on rank (?P<rank>\d{1,6})")
_MPI_NAME = re.compile(r"Process name: \[\[\d+,\d+\],(?P<rank>\d{1,6})\]")
_HYDRA = re.compile(r"^=\s+(?:RANK (?P<rank>\d+) )?PID (?P<pid>\d+) RUNNING AT (?P<node>\S+)")
_HYDRA_END = re.compile(r"^=\s+(?:EXIT CODE: (?P<exit>\d+)|KILLED BY SIGNAL: (?P<signal>\d+))")
_SHELL = re.compile(
    r"line \d+:\s+(?P<pid>\d+) (?P<how>Killed|Segmentation fault|Aborted|Bus error|Terminated|Illegal instruction)\b"
)
_ALONE = re.compile(
    r"^(?:\S{0,60}: line \d+: +)?(?P<how>Killed|Segmentation fault|Aborted|Bus error|Terminated)"
    r"(?: +\(core dumped\))?[.!]?$"
)

WORDS = (
    "exitcode",
    "local_rank:",
    "closing signal",
    "via signal",
    "death signal",
    "got signal: ",
    "ChildFailedError",
    "Unable to shutdown process",
    "did not exit after",
    " error: ",
    "exited on signal",
    "MPI_ABORT",
    "Process name: [[",
    " RUNNING AT ",
    "EXIT CODE: ",
    "BY SIGNAL: ",
    "Killed",
    "Segmentation fault",
    "Aborted",
    "Bus error",
    "Terminated",
    "CANCELLED AT",
    "Terminating StepId",
    "Job step aborted",
    "Node failure on",
    "srun: ",
    "oom_kill",
)
"""Every line that speaks of a process that ended holds one of these."""
_ELASTIC_PARTS = ("process", "exitcode", "death signal", "ChildFailed", "got signal")
_ANY = re.compile("|".join(map(re.escape, WORDS)) + "|oom-kill event|xit code")


class LauncherLog:
    """Reads torchrun's, Slurm's, mpirun's and the shell's words about processes that ended."""

    def __init__(self, file: str, writers: Writers) -> None:
        self.file = file
        self.writers = writers
        self.statements: list[Statement] = []
        self.failures: list[FailureLine] = []
        self.elastic = False
        """Whether a torchrun spoke here: then Slurm's tasks are nodes and not ranks."""
        self.workers: set[int] = set()
        """Processes of torchrun's that it stopped, or saw fail: all that it started, where nothing is cut off."""
        self.traceback_ranks: dict[int, int] = {}
        """Line of a traceback in torchrun's summary → the rank whose it is."""
        self.slurm = SlurmLog(file, self.statements, self.failures)
        self._blocks: dict[str, dict[str, str]] = {}
        self._mpi: dict[str, Process] = {}

    def feed(self, line: Line, *, failing: bool = True) -> None:
        """Take one line; `failing` says whether it can be more than a row of torchrun's summary."""
        row = line.text
        if " : " in row or ": " in row[:14]:
            self._block(line)
        if not failing or _ANY.search(row) is None:
            return
        if any(part in row for part in _ELASTIC_PARTS):
            self._elastic(line)
        if "error: " in row or "CANCELLED" in row or "ermina" in row or "step aborted" in row or "srun: " in row:
            self.slurm.feed(line)
        self._mpirun(line)
        if match := _SHELL.search(row):
            process = Process(UNKNOWN, pid=integer(match["pid"]), exit_status=ENDS[match["how"]], alive_at_end=False)
            self._ended(line, process)
        elif match := _ALONE.match(row.strip()):
            code = ENDS[match["how"]]
            failure = make_failure(self.file, line, FailureKind.SIGNAL, code=code, effect=code == -15)
            self.failures.append(FailureLine(failure, line, line.at_ns))

    def _source(self, line: Line) -> Source:
        return Source(self.file, f"line {line.number}")

    def _add_statement(self, line: Line, process: Process, task: int | None = None) -> None:
        self.statements.append(Statement(Trust.LAUNCHER, replace(process, source=self._source(line)), task))

    def _add_failure(self, line: Line, kind: FailureKind, tasks: tuple[int, ...] = (), **values: object) -> None:
        """A failure of somebody else than the line's writer."""
        failure = make_failure(self.file, line, kind, **values)
        self.failures.append(FailureLine(failure, line, line.at_ns, of_writer=False, tasks=tasks))

    def _ended(self, line: Line, process: Process) -> None:
        """A process that a launcher saw end, with its exit status or minus its signal."""
        self._add_statement(line, process)
        status = process.exit_status or 0
        self._add_failure(
            line,
            kind_of_end(status),
            rank=None if process.rank == UNKNOWN else process.rank,
            node=process.node,
            local_rank=process.local_rank,
            pid=process.pid,
            code=status,
            at_ns=int(process.ended_at_s * 1e9) if process.ended_at_s is not None else None,
            effect=status in ORDERED_ENDS,
        )

    # ---- torchrun ----

    def _elastic(self, line: Line) -> None:
        if match := _FAILED.search(line.text):
            self.elastic = self.writers.launcher = True
            self.workers.add(integer(match["pid"]))
            self._ended(
                line,
                Process(
                    UNKNOWN,
                    local_rank=integer(match["local"]),
                    pid=integer(match["pid"]),
                    exit_status=integer(match["exit"]),
                    alive_at_end=False,
                ),
            )
        elif match := _CLOSING.search(line.text):
            self.elastic = self.writers.launcher = True
            pid = integer(match[1] or match[3])
            self.workers.add(pid)
            # alive until the launcher stopped it: how it ended then says nothing about it
            self._add_statement(line, Process(UNKNOWN, pid=pid, alive_at_end=True))
            number = SIGNAL_NAMES.get(match[2] or match[4])
            self._add_failure(
                line, FailureKind.LAUNCHER_KILL, pid=pid, code=None if number is None else -number, effect=True
            )
        elif match := _STUCK.search(line.text):
            pid = integer(match[1] or match[2])
            self._add_statement(line, Process(UNKNOWN, pid=pid, alive_at_end=True, state=OUTLIVED_SIGTERM))
        elif match := _DEATH.search(line.text):
            self.elastic = self.writers.launcher = True
            said = match["signal"] or match["got"]
            number = integer(said) if is_number(said) else SIGNAL_NAMES.get(said)
            self._add_failure(line, FailureKind.LAUNCHER_SIGNAL, code=None if number is None else -number, effect=True)
        elif "ChildFailedError" in line.text:
            self.elastic = self.writers.launcher = True
            self._add_failure(
                line, FailureKind.EXIT, effect=True, detail="torchrun ends because a process of its failed"
            )
        elif match := _ONE_ROW.search(line.text):
            self._row(line, match["rank"], match["local"], match["exit"], match["pid"], match["host"], None)

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
            self.traceback_ranks[line.number] = integer(rank["rank"])
        if match["key"] != "exitcode" or "rank" not in block:
            return
        rank = _BLOCK_RANK.match(block["rank"])
        ended = _BLOCK_EXIT.match(block["exitcode"])
        if rank is not None and ended is not None:
            at = parse_time(block.get("time", ""))
            self._row(line, rank["rank"], rank["local"], ended["exit"], ended["pid"], block.get("host"), at)

    def _row(
        self, line: Line, rank: str, local: str, status: str, pid: str, host: str | None, at_ns: int | None
    ) -> None:
        self.elastic = self.writers.launcher = True
        self._ended(
            line,
            Process(
                integer(rank),
                node=host_name(host),
                local_rank=integer(local),
                pid=integer(pid),
                exit_status=integer(status),
                ended_at_s=at_ns / 1e9 if at_ns else None,
                alive_at_end=False,
            ),
        )

    # ---- mpirun ----

    def _mpirun(self, line: Line) -> None:
        row = line.text
        if match := _MPI.search(row):
            process = Process(
                integer(match["rank"]),
                node=host_name(match["node"]),
                pid=integer(match["pid"]) or None,  # PRRTE says 0 where it does not know it
                exit_status=-integer(match["signal"]),
                alive_at_end=False,
            )
            self._ended(line, process)
        elif match := _MPI_ABORT.search(row):
            self._add_failure(line, FailureKind.EXIT, rank=integer(match["rank"]))
        elif match := _MPI_NAME.search(row):
            self._mpi[line.stream] = Process(integer(match["rank"]), alive_at_end=False)
        elif match := _HYDRA.match(row):
            rank = integer(match["rank"]) if match["rank"] else UNKNOWN
            node = host_name(match["node"])
            self._mpi[line.stream] = Process(rank, node=node, pid=integer(match["pid"]), alive_at_end=False)
        elif line.stream in self._mpi and (ended := _HYDRA_END.match(row) or _EXIT_CODE.search(row)):
            known = self._mpi.pop(line.stream)
            number = integer(ended[1] or ended[2])
            # MPICH's process manager writes the raw wait status: a small number is a signal, unless it is 1 or 2
            killed = ended.re is _HYDRA_END and (ended["signal"] is not None or number in {6, 7, 9, 11, 15})
            status = -number if killed else plain_status(number)
            self._ended(
                line,
                Process(known.rank, node=known.node, pid=known.pid, exit_status=status, alive_at_end=False),
            )
