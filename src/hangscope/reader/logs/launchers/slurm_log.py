"""What Slurm logs about the steps, tasks and nodes of a job: ``srun: error: n2: tasks 2-3: Exited with exit code 1``.

Who ended by itself is not who was ended: once Slurm stops a job (scancel, time limit, preemption, a node that
failed), every end that follows is the launcher's answer to that, whatever its status. Slurm notices a failed node
minutes after the other nodes' tasks have lost it, so the ends before that line are no causes either.
"""

from __future__ import annotations

import re
from dataclasses import replace

from hangscope.model import AFTER_HANG, PREEMPTION, TIME_LIMIT, UNKNOWN, FailureKind, Process, Source
from hangscope.model.numbers import integer, is_number
from hangscope.model.process_ends import ENDS, kind_of_end, plain_status
from hangscope.model.statements import Statement, Trust
from hangscope.model.values import host_name
from hangscope.reader.logs.failure_line import FailureLine, make_failure
from hangscope.reader.logs.log_lines import Line

MOST_STATEMENTS = 32_768
"""Tasks that are said to have ended, over all files: a line of forty bytes may speak of thousands."""
MOST_TASKS = 1024
"""Of one line, which speaks of one node."""

_TASKS = re.compile(r"(?:srun|slurmstepd): error: (?P<node>[\w.-]+): tasks? (?P<tasks>[\d,\-\[\]]+): (?P<how>.*)")
_RUNNING = re.compile(r"srun: (?:StepId=|step:)\S{1,60} tasks? (?P<tasks>[\d,\-\[\]]+): running")
_OUT_OF_MEMORY = re.compile(r"Detected \d+ oom[-_]kill event")
_NODE_FAILURE = re.compile(
    r"(?:srun|salloc|sbatch): error: Node failure on (?P<node>[\w.,\[\]-]+)|CANCELLED AT .{0,40}DUE TO NODE FAILURE"
)
_CANCELLED = re.compile(r"CANCELLED AT \S{1,40}(?: DUE TO (?P<why>[A-Z][A-Z ]{1,40}[A-Z]))?")
_FROM_OUTSIDE = frozenset((TIME_LIMIT.upper(), PREEMPTION.upper()))
"""Reasons that lie outside of the job; srun says that it aborts before slurmstepd says why."""
_STOPPED = re.compile(r"CANCELLED AT|Terminating StepId|Force Terminated|Job step aborted")
_NOT_STARTED = re.compile(
    r"execve\(\): (?P<program>.{1,300}?): (?P<why>No such file or directory|Permission denied|Exec format error)"
)
_EXIT_CODE = re.compile(r"exit code (\d+)", re.IGNORECASE)
_LAUNCHERS = re.compile(r"(?:^|/)(?:torchrun|accelerate|deepspeed|mpirun|ray|python3? -m torch)\b")
_NO_PROGRAM = {2, 13, 126, 127}
"""How a task ends whose program cannot be started."""
_NEAR = 8
"""Lines between two that are about one thing."""
_KILLED = {-9, -15}
_MOST_LEFT = 16
"""Tasks that are named as those that the others waited for."""


class SlurmLog:
    """Reads Slurm's lines of one file into `statements` and `failures`, which it shares with other launchers."""

    def __init__(self, file: str, statements: list[Statement], failures: list[FailureLine]) -> None:
        self.passed_over = 0
        """Tasks that were said to have ended, beyond those that are kept: at least so many."""
        self._file = file
        self._statements = statements
        self._failures = failures
        self._cancelled = False
        """Whether somebody outside ended the job, before Slurm began to take it down after a failure."""
        self._stopping = False
        """Whether everybody is being ended: a process that ends from here on did nothing wrong."""
        self._exited: set[int] = set()
        """Tasks that ended while nobody stopped them."""
        self._statements_of_exits: list[int] = []
        self._failures_of_exits: list[int] = []
        self._not_started: tuple[int, str, FailureLine] | None = None
        """The line that says which program was not found: its number, the program, and what was made of it."""

    def feed(self, line: Line) -> None:
        row = line.text
        if match := _NODE_FAILURE.search(row):
            node = host_name(match["node"]) if match["node"] else None
            self._add(line, FailureKind.NODE_FAILED, node=node)
            self._stopping = True
            self._take_exits_back()
        elif match := _NOT_STARTED.search(row):
            self._add(line, FailureKind.NOT_STARTED, detail=f"{match['program']}: {match['why']}")
            self._not_started = (line.number, match["program"], self._failures[-1])
        elif _STOPPED.search(row):
            self._stop(line)
        elif match := _TASKS.search(row):
            self._ended(match, line)
        elif match := _RUNNING.search(row):
            self._left_running(line, expand_range(match["tasks"], MOST_TASKS), None)
        elif _OUT_OF_MEMORY.search(row):
            self._add(line, FailureKind.HOST_OOM, code=-9)

    def _add(self, line: Line, kind: FailureKind, tasks: tuple[int, ...] = (), **values: object) -> None:
        failure = make_failure(self._file, line, kind, **values)
        self._failures.append(FailureLine(failure, line, line.at_ns, of_writer=False, tasks=tasks))

    def _source(self, line: Line) -> Source:
        return Source(self._file, f"line {line.number}")

    def _stop(self, line: Line) -> None:
        """Somebody outside ends the job, or Slurm does because a task has failed."""
        cancelled = _CANCELLED.search(line.text)
        from_outside = cancelled is not None and cancelled["why"] in _FROM_OUTSIDE and not self._exited
        if cancelled is None or (self._stopping and not from_outside):
            self._add(line, FailureKind.LAUNCHER_KILL, effect=True)
        else:
            self._cancelled = True
            self._add(line, FailureKind.CANCELLED, detail=(cancelled["why"] or "").lower(), effect=True)
        self._stopping = True

    def stop_after_hang(self, line: Line) -> None:
        """We ended the job ourselves (`--on-hang kill`): whatever ends from here on did nothing wrong."""
        self._stopping = True
        self._add(line, FailureKind.CANCELLED, detail=AFTER_HANG, effect=True)

    def _take_exits_back(self) -> None:
        """Whoever ended before Slurm noticed that a node had failed had lost its peers there."""
        for at in self._statements_of_exits:
            said = self._statements[at]
            self._statements[at] = replace(said, process=replace(said.process, exit_status=None, alive_at_end=True))
        for at in self._failures_of_exits:
            known = self._failures[at]
            self._failures[at] = known._replace(
                failure=replace(known.failure, kind=FailureKind.LAUNCHER_KILL, effect=True)
            )
        self._statements_of_exits.clear()
        self._failures_of_exits.clear()

    def _ended(self, match: re.Match[str], line: Line) -> None:
        how = match["how"].strip()
        status = _status(how)
        if not status or self._explains_not_started(line, match, status):
            return
        tasks = self._kept_tasks(match["tasks"])
        # srun ends the other tasks once one has failed, and does not always say so
        stopped = self._stopping or (status in _KILLED and bool(self._exited))
        node = host_name(match["node"])
        if self._was_waited_for(tasks, status):
            self._left_running(line, tasks, node)
            return
        ended = None if stopped else status
        process = Process(UNKNOWN, source=self._source(line), node=node, exit_status=ended, alive_at_end=stopped)
        kind = (
            FailureKind.LAUNCHER_KILL
            if stopped
            else FailureKind.HOST_OOM
            if how.startswith("Out Of")
            else kind_of_end(status)
        )
        if not stopped:
            self._exited.update(tasks)
        if kind == FailureKind.EXIT:
            self._failures_of_exits.append(len(self._failures))
            self._statements_of_exits.extend(range(len(self._statements), len(self._statements) + len(tasks)))
        self._statements.extend(Statement(Trust.LAUNCHER, process, task) for task in tasks)
        self._add(line, kind, tuple(tasks), node=node, code=status, effect=stopped or status == -15)

    def _was_waited_for(self, tasks: list[int], status: int) -> bool:
        """Whether one task was still there when somebody ended a job whose other tasks had given up."""
        if not self._cancelled or status not in _KILLED or len(tasks) != 1 or len(self._exited) < 2:
            return False
        [task] = tasks
        last = max(self._exited)
        unaccounted = last + 1 - len(self._exited)
        return task not in self._exited and unaccounted == (1 if task < last else 0)

    def _left_running(self, line: Line, tasks: list[int], node: str | None) -> None:
        process = Process(UNKNOWN, source=self._source(line), node=node, alive_at_end=True)
        for task in tasks[:_MOST_LEFT]:
            self._statements.append(Statement(Trust.LAUNCHER, process, task))
            self._add(line, FailureKind.LEFT_RUNNING, (task,), node=node)

    def _kept_tasks(self, spec: str) -> list[int]:
        if len(self._statements) >= MOST_STATEMENTS:
            self.passed_over += 1
            return []
        return expand_range(spec, MOST_TASKS)

    def _explains_not_started(self, line: Line, match: re.Match[str], status: int) -> bool:
        """Whether a task's end only says which one a program before it could not be started for."""
        if self._not_started is None or status not in _NO_PROGRAM:
            return False
        number, program, said = self._not_started
        if line.number - number > _NEAR or self._failures[-1] is not said:
            return False
        # who starts a launcher has one task a node
        tasks = () if _LAUNCHERS.search(program) else tuple(expand_range(match["tasks"]))
        failure = replace(said.failure, node=host_name(match["node"]), beside=(self._source(line),))
        self._failures[-1] = explained = said._replace(failure=failure, tasks=tasks)
        self._not_started = (number, program, explained)
        self._exited.update(tasks or (0,))
        return True


def _status(how: str) -> int | None:
    """The exit status, or minus the signal, in Slurm's words for an end."""
    for word, status in ENDS.items():
        if how.startswith(word):
            return status
    code = _EXIT_CODE.search(how)
    return plain_status(integer(code[1])) if code is not None else None


def expand_range(spec: str, limit: int = 100_000) -> list[int]:
    """``0-2,7`` as numbers, also in brackets; the first ones of a list that nobody could have."""
    found: list[int] = []
    for part in spec.strip("[]").split(","):
        first, dash, last = part.partition("-")
        if not is_number(first) or (dash and not is_number(last)):
            continue
        found.extend(range(integer(first), min(integer(last or first), integer(first) + limit) + 1))
        if len(found) > limit:
            return found[: limit + 1]
    return found
