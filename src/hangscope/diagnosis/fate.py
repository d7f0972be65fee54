"""What became of a rank's process: it ended, it is frozen, it lives, or nobody can say. Each with what shows it.

A process that ended is a cause only if it ended first. PyTorch's watchdog aborts every victim in the end (SIGABRT), and
launchers stop the rest of a job with SIGTERM, then SIGKILL: those ends are effects. So is the end of a process whose
only exception says that a collective timed out or that a peer went away, even where it was the first to give up.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.words import first_line
from hangscope.model import Job, Process, PythonError, Source

_EFFECTS = (-signal.SIGABRT, -signal.SIGTERM, 128 + signal.SIGABRT, 128 + signal.SIGTERM)
_ORDERED = ("KeyboardInterrupt", "SystemExit", "Fatal Python error")
"""Exceptions that say who was told to stop, not that a peer was lost."""
_FIRST_BY_S = 2.0
"""A process that ended this much before all others ended by itself, whatever its status says."""


@dataclass(frozen=True, slots=True)
class Fate:
    """`kind`: "dead", "frozen", "alive" or "unknown". `strength`: "strong" (something saw it) or "weak" (inferred)."""

    kind: str
    strength: str
    why: str
    findings: tuple[Finding, ...] = ()
    error: PythonError | None = None
    clean: bool = False
    """It exited with status 0: a cause only where others wait for it."""


class Fates:
    """The fate of every rank of a job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._errors = _own_errors(job)
        self._closed = _connection_losses(job)
        self._ras_missing, self._ras_dead = _ras_missing(job)
        self._answered = {r.rank for r in job.facts.watchdog}
        self._victims = {e.rank for e in job.facts.errors if e.consequence} - set(self._errors)
        self._gave_up = {
            e.rank for e in job.facts.errors if e.consequence and e.type not in _ORDERED and e.rank in self._victims
        }
        self._stacks = _answered_stacks(job)
        self._memory: dict[int, Fate] = {}

    def of(self, rank: int) -> Fate:
        if rank not in self._memory:
            self._memory[rank] = self._judge(rank)
        return self._memory[rank]

    def error(self, rank: int) -> PythonError | None:
        """The exception that this rank printed by itself, not as a victim."""
        return self._errors.get(rank)

    def _judge(self, rank: int) -> Fate:
        return (
            self._ended(rank)
            or self._frozen(rank)
            or self._vanished(rank)
            or self._alive(rank)
            or Fate("unknown", "weak", "")
        )

    # ---- dead --------------------------------------------------------------------------------------------------------

    def _ended(self, rank: int) -> Fate | None:
        process = self.job.processes.get(rank)
        error = self._errors.get(rank)
        findings: list[Finding] = []
        killed = [
            k
            for k in self.job.facts.kernel
            if k.kind == "oom" and process and k.pid is not None and k.pid == process.pid
        ]
        if killed:
            findings.append(
                Finding(
                    f"the kernel's out-of-memory killer ended pid {killed[0].pid}",
                    (killed[0].source,),
                    (killed[0].text,),
                )
            )
        ended = process is not None and self._ended_by_itself(rank, process)
        if process is not None and ended and process.exit_status is not None:
            findings.append(Finding(f"rank {rank} {_ending(process)}", (process.source,) if process.source else ()))
        if error is not None and (ended or self._no_sign_of_life(rank)):
            findings.append(_quote(rank, error))
        left = [source for r, source in self.job.facts.clean_exits if r == rank]
        if left and not self._reported_timeout(rank):
            findings.append(Finding(f"rank {rank}'s Python ended without destroy_process_group()", (left[0],)))
        if rank in self._ras_dead:
            findings.append(Finding(f"NCCL's RAS considers rank {rank} dead", (self._ras_dead[rank],)))
        if not findings:
            return None
        if killed:
            why = "was killed by the kernel: out of memory"
        elif error is not None:
            why = f"ended with {error.type}: {first_line(error.message)}"
        elif process is not None and ended and process.exit_status is not None:
            why = _ending(process)
        else:
            why = "is gone"
        clean = (
            not killed
            and error is None
            and process is not None
            and process.exit_status == 0
            and not self._missed_by_victims(rank, process)
        )
        return Fate("dead", "strong", why, tuple(findings), error, clean)

    def _ended_by_itself(self, rank: int, process: Process) -> bool:
        """Whether the process ended of its own, and not because the job around it was being taken down."""
        others = [p for r, p in self.job.processes.items() if r != rank]
        if process.exit_status is None:
            return process.state in ("gone", "Z") and not any(p.state in ("gone", "Z") for p in others)
        if self._after_capture(process):
            return False
        still_there = any(p.exit_status is None and p.state not in ("gone", "Z") for p in others)
        ends = [p.ended_at_s for p in others if p.ended_at_s is not None]
        if process.exit_status in _EFFECTS:
            causes = [
                p
                for r, p in self.job.processes.items()
                if r != rank and p.exit_status not in (None, 0, *_EFFECTS) and r not in self._gave_up
            ]
            if self._reported_timeout(rank) or causes:
                return False
            return still_there or (process.ended_at_s is not None and _well_before(process.ended_at_s, ends))
        if process.exit_status == 0:
            return (
                still_there
                or (process.ended_at_s is not None and any(e > process.ended_at_s + _FIRST_BY_S for e in ends))
                or self._missed_by_victims(rank, process)
            )
        alike = [p for p in others if p.exit_status == process.exit_status]
        if process.exit_status < 0 and len(alike) * 2 > len(others):
            return False  # one hand ended them all
        if process.exit_status > 0 and rank in self._gave_up:
            return False  # its only exception says that it waited for somebody else, or lost somebody
        if process.ended_at_s is None or not ends:
            return True
        if rank in self._victims and min(ends) <= process.ended_at_s:
            return False  # its only exception says that it lost somebody who was gone before it
        # A launcher's last resort is SIGKILL too, but it comes long after the first end.
        return process.ended_at_s <= min(ends) + _FIRST_BY_S

    def _missed_by_victims(self, rank: int, process: Process) -> bool:
        """Whether those that ended after it did so with an exception that only says that they lost somebody."""
        later = [
            other
            for other, p in self.job.processes.items()
            if other != rank
            and p.exit_status not in (None, 0)
            and None not in (p.ended_at_s, process.ended_at_s)
            and (p.ended_at_s or 0.0) > (process.ended_at_s or 0.0)
        ]
        return any(other in self._victims for other in later) and not any(other in self._errors for other in later)

    def _after_capture(self, process: Process) -> bool:
        """Whether it ended only after the stall had been noticed and captured."""
        taken = self.job.captured_at_ns
        return (
            self.job.reason == "stall"
            and taken is not None
            and process.ended_at_s is not None
            and process.ended_at_s * 1e9 > taken
        )

    def _vanished(self, rank: int) -> Fate | None:
        """No dump, no reaction in its log, and neighbours that lost the connection before anybody timed out."""
        if not self._no_sign_of_life(rank) or rank in self._stacks:
            return None
        if self._closed:
            return Fate(
                "dead",
                "weak",
                "left no dump, and its peers lost their connection to it before anyone timed out",
                self._closed[:2],
            )
        return None

    # ---- frozen ------------------------------------------------------------------------------------------------------

    def _frozen(self, rank: int) -> Fate | None:
        process = self.job.processes.get(rank)
        source = (process.source,) if process is not None and process.source else ()
        if process is not None and process.state in ("T", "t"):
            return Fate(
                "frozen",
                "strong",
                "is stopped (state T)",
                (Finding(f"rank {rank}'s process is stopped (state T)", source),),
            )
        if process is not None and process.state == "D":
            at = f" in {process.wait_channel}" if process.wait_channel else ""
            text = f"rank {rank}'s process is in uninterruptible sleep{at}"
            return Fate("frozen", "strong", f"is in uninterruptible sleep{at}", (Finding(text, source),))
        if process is not None and process.python_answers is False and process.state not in ("gone", "Z"):
            text = f"rank {rank}'s process lives, but no Python thread answers: something holds the GIL"
            return Fate("frozen", "strong", "holds the GIL and runs no Python", (Finding(text, source),))
        gil = [r for r in self.job.facts.watchdog if r.rank == rank and r.kind == "gil"]
        if gil:
            text = f"rank {rank}'s monitor thread could not take the GIL"
            return Fate("frozen", "strong", "holds the GIL and runs no Python", (Finding(text, (gil[0].source,)),))
        if not self._no_sign_of_life(rank) or rank in self._stacks:
            return None
        alive = process is not None and process.exit_status is None and process.alive_at_end
        in_ras = self._ras_missing.get(rank)
        if self._closed and not alive:
            return None
        if in_ras is not None or alive:
            findings = []
            if alive:
                findings.append(Finding(f"rank {rank}'s process never ended", source))
            if in_ras is not None:
                findings.append(
                    Finding(f"rank {rank} does not answer NCCL's RAS, and no peer lost its connection to it", (in_ras,))
                )
            return Fate("frozen", "strong", "exists, but answers nothing", tuple(findings))
        logs = [file for r, file in self.job.facts.log_ranks if r == rank]
        if logs and (self.job.facts.communicators or self._answered):
            return Fate("frozen", "weak", "reacted to nothing, and no peer lost its connection to it")
        return None

    # ---- alive -------------------------------------------------------------------------------------------------------

    def _alive(self, rank: int) -> Fate | None:
        if not self._no_sign_of_life(rank):
            return Fate("alive", "strong", "its process was alive")
        if rank in self._stacks:
            text = f"rank {rank}'s process answered with its stack"
            return Fate("alive", "strong", "its process answered", (Finding(text, (self._stacks[rank],)),))
        process = self.job.processes.get(rank)
        if process is not None and process.alive_at_end:
            return Fate("alive", "weak", "its process was still there")
        return None

    def _no_sign_of_life(self, rank: int) -> bool:
        """Neither a dump nor a watchdog line: nothing shows that the process did anything once the job hung."""
        has_dump = any(d.role == "dump" for d in self.job.dumps.get(rank, ()))
        process = self.job.processes.get(rank)
        answered_python = process is not None and process.python_answers is True
        return not has_dump and rank not in self._answered and not answered_python

    def _reported_timeout(self, rank: int) -> bool:
        return any(r.rank == rank and r.kind in ("timeout", "async_error") for r in self.job.facts.watchdog)


def _well_before(end: float, others: list[float]) -> bool:
    return bool(others) and end + _FIRST_BY_S < min(others)


def _own_errors(job: Job) -> dict[int, PythonError]:
    """The first exception of every rank that is not the effect of another rank's failure."""
    found: dict[int, PythonError] = {}
    for error in job.facts.errors:
        if error.rank is not None and not error.consequence:
            found.setdefault(error.rank, error)
    return found


def _answered_stacks(job: Job) -> dict[int, Source]:
    """Ranks whose process gave its own stack, with the source. One that was read from outside proves no life."""
    by_pid = {p.pid: r for r, p in job.processes.items() if p.pid is not None}
    crashed = {(e.source.file, e.rank) for e in job.facts.errors if e.type == "Fatal Python error"}
    found: dict[int, Source] = {}
    for stack in job.facts.stacks:
        rank = stack.rank if stack.rank is not None else by_pid.get(stack.pid) if stack.pid is not None else None
        if rank is not None and not stack.outside and (stack.source.file, rank) not in crashed:
            found.setdefault(rank, stack.source)
    return found


def _connection_losses(job: Job) -> tuple[Finding, ...]:
    """Reports of a lost peer that came before the first timeout and before any process was known to end as a victim."""
    first_timeout = min(
        (r.at_ns for r in job.facts.watchdog if r.kind == "timeout" and r.at_ns is not None), default=None
    )
    found: list[tuple[int, Finding]] = []
    for report in job.facts.watchdog:
        if report.kind != "async_error" or not _is_remote_error(report.error or ""):
            continue
        if first_timeout is None or report.at_ns is None or report.at_ns < first_timeout:
            found.append(
                (report.at_ns or 0, Finding(f"rank {report.rank}: {_short(report.error or '')}", (report.source,)))
            )
    for event in job.facts.transport:
        if event.kind not in ("connection_closed", "connection_error"):
            continue
        if first_timeout is not None and event.at_ns is not None and event.at_ns < first_timeout:
            who = f"rank {event.rank}" if event.rank is not None else event.node or "a rank"
            found.append((event.at_ns, Finding(f"{who}: {_short(event.text)}", (event.source,))))
    return tuple(finding for _, finding in sorted(found, key=lambda item: item[0]))


def _is_remote_error(text: str) -> bool:
    lowered = text.lower()
    return any(
        part in lowered
        for part in ("remote process exited", "connection closed", "connection reset", "ncclremoteerror")
    )


def _ras_missing(job: Job) -> tuple[dict[int, Source], dict[int, Source]]:
    """Global ranks that RAS could not reach, and those it considers dead, with the source."""
    by_pid = {p.pid: r for r, p in job.processes.items() if p.pid is not None}
    missing: dict[int, Source] = {}
    dead: dict[int, Source] = {}
    for report in job.facts.ras:
        for entry in report.ranks:
            if not (entry.missing or entry.unresponsive or entry.dead):
                continue
            rank = by_pid.get(entry.pid) if entry.pid is not None else None
            if rank is None and report.size == job.world_size:
                rank = entry.rank
            if rank is not None:
                missing.setdefault(rank, report.source)
                if entry.dead:
                    dead.setdefault(rank, report.source)
    return missing, dead


def _ending(process: Process) -> str:
    status = process.exit_status
    if status is None:
        return "is gone"
    if status < 0:
        try:
            return f"was ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"was ended by signal {-status}"
    if status == 0:
        return "exited by itself with status 0 while the others went on"
    return f"exited with status {status}"


def _quote(rank: int, error: PythonError) -> Finding:
    frames = tuple(f"{f.filename}:{f.line}  {f.name}" for f in error.frames[-3:])
    return Finding(f"rank {rank}'s log ends with {error.type}: {first_line(error.message)}", (error.source,), frames)


def _short(text: str, limit: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
