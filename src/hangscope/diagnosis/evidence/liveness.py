"""Process liveness: a rank's process ended, is frozen, lives, or nobody can say. Each with what shows it.

A process that ended is a cause only if it ended first. PyTorch's watchdog aborts every victim in the end (SIGABRT), and
launchers stop the rest of a job with SIGTERM, then SIGKILL: those ends are effects. So is the end of a process whose
only exception says that a collective timed out or that a peer went away, even where it was the first to give up. How
ranks ended is put to the vote: where most ended in one way, that way is no cause.
"""

import signal
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from heapq import nlargest

from hangscope.diagnosis.align.column_tools import grouped
from hangscope.diagnosis.evidence.answer import Answer, no, not_known, yes
from hangscope.diagnosis.evidence.code_lines import ended_in, shown
from hangscope.diagnosis.evidence.process_ends import (
    EFFECTS,
    GONE,
    Ends,
    ending,
    lost_to_ras,
    raised,
    runs,
    silent_python,
    sources,
    speaker,
)
from hangscope.diagnosis.evidence.training_thread import Stacks
from hangscope.diagnosis.verdict import Finding
from hangscope.model import FATAL_ERROR, Job, Process, PythonError
from hangscope.text import short

# Exceptions that say who was stopped, not that a peer was lost.
_ORDERED = ("KeyboardInterrupt", "SystemExit", FATAL_ERROR)
# A process that ended this much before all others ended by itself, whatever its status says.
_FIRST_BY_S = 2.0
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
# In the text that NCCL and PyTorch print: the peer's process is gone, as far as this one can tell.
_REMOTE = ("remote process exited", "connection closed", "connection reset", "ncclremoteerror")


class Is(Enum):
    ENDED = "dead"
    FROZEN = "frozen"
    ALIVE = "alive"
    NOT_KNOWN = "unknown"


class How(Enum):
    """In which way it ended or froze."""

    OUT_OF_MEMORY = auto()
    RAISED = auto()
    STATUS = auto()
    GONE = auto()
    LOST_BY_PEERS = auto()
    STOPPED = auto()
    SLEEPS = auto()
    HOLDS_GIL = auto()
    GIL_HELD = auto()  # and by what, its own code or a CUDA call that waits for its GPU, is not recorded
    IN_CUDA = auto()
    ANSWERS_NOTHING = auto()
    REACTED_TO_NOTHING = auto()
    ANSWERED = auto()
    NOTHING_SAID = auto()


@dataclass(frozen=True, slots=True)
class Life:
    """What is known of one process. `seen`: something saw it; otherwise it was inferred from what is missing.
    `clean`: it exited with status 0, which is a cause only where others wait for it."""

    state: Is
    how: How
    seen: bool = True
    findings: tuple[Finding, ...] = ()
    error: PythonError | None = None
    process: Process | None = None
    clean: bool = False
    # The CUDA call that its CPU waits in.
    call: str = ""


class Liveness:
    """The process of every rank of a job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        own = [e for e in reversed(job.facts.errors) if not e.consequence]
        self._errors = {e.rank: e for e in own if e.rank is not None}
        victims = [e for e in job.facts.errors if e.consequence and e.rank not in self._errors]
        self._victims = {e.rank for e in victims}
        self._gave_up = {e.rank for e in victims if e.type not in _ORDERED}
        self._threads = Stacks(job)
        self._stacks = self._threads.answered
        self._reports = grouped((report.rank, report) for report in job.facts.watchdog)
        self._oom = {k.pid: k for k in job.facts.kernel if k.kind == "oom" and k.pid is not None}
        self._left = dict(reversed(job.facts.clean_exits))
        self._ends, self._holding = Ends(job), silent_python(job)
        self._losses = _connection_losses(job)
        shown = {r for r in job.ranks if not self._no_reaction(r)} | set(self._stacks)
        self._unreachable, self._dead = lost_to_ras(job, shown)
        self._memory: dict[int, Life] = {}

    def of(self, rank: int) -> Life:
        if rank not in self._memory:
            process = self._process(rank)
            self._memory[rank] = (
                self._ended(rank, process) or self._frozen(rank, process) or self._vanished(rank) or self._alive(rank)
            )
        return self._memory[rank]

    def _process(self, rank: int) -> Process:
        return self.job.processes.get(rank) or Process(rank)

    def error(self, rank: int) -> PythonError | None:
        """The exception that this rank printed by itself, not as a victim."""
        return self._errors.get(rank)

    def alive(self, rank: int) -> Answer:
        """Was the process there when the job hung?"""
        life = self.of(rank)
        if life.state is Is.NOT_KNOWN or not life.seen:
            return not_known("neither a dump nor a line nor an exit status of it")
        return no() if life.state is Is.ENDED else yes()

    @cached_property
    def lost(self) -> frozenset[int]:
        """Ranks whose end or freeze was seen."""
        return frozenset(r for r in self.job.ranks if self.of(r).seen and self.of(r).state in (Is.ENDED, Is.FROZEN))

    @cached_property
    def finished_cleanly(self) -> frozenset[int]:
        """Ranks that exited with status 0, where those are most of the job: their work was done."""
        clean = frozenset(r for r, p in self.job.processes.items() if p.exit_status == 0)
        return clean if len(clean) * 2 > len(self.job.ranks) else frozenset()

    # ---- ended -------------------------------------------------------------------------------------------------------

    def _ended(self, rank: int, process: Process) -> Life | None:
        error, killed = self._errors.get(rank), self._oom.get(process.pid) if process.pid is not None else None
        itself = self._by_itself(rank, process)
        with_status = itself and process.exit_status is not None
        findings: list[Finding] = []
        if killed is not None:
            text = f"the kernel's out-of-memory killer ended pid {killed.pid}"
            findings.append(Finding(text, (killed.source,), (killed.text,)))
        if with_status:
            findings.append(Finding(f"rank {rank} {ending(process)}", sources(process)))
        if error is not None and (itself or self._no_reaction(rank)):
            findings.append(_quote(rank, error))
        if rank in self._left and not self._reported_timeout(rank):
            findings.append(Finding(f"rank {rank}'s Python ended without destroy_process_group()", (self._left[rank],)))
        if rank in self._dead:
            findings.append(Finding(f"NCCL's RAS considers rank {rank} dead", (self._dead[rank],)))
        if not findings:
            return None
        how = How.STATUS if with_status else How.GONE
        if killed is not None or error is not None:
            how = How.OUT_OF_MEMORY if killed is not None else How.RAISED
        status = 0 if process.exit_status is None and rank in self._left else process.exit_status
        clean = killed is None and error is None and status == 0 and not self._missed_by_victims(rank, process)
        return Life(Is.ENDED, how, True, tuple(findings), error, process, clean)

    def _by_itself(self, rank: int, process: Process) -> bool:
        """Whether the process ended of its own, and not because the job around it was being taken down."""
        status, at_s, ends = process.exit_status, process.ended_at_s, self._ends
        if status is None:
            return process.state in GONE and ends.gone == 1
        if self._after_capture(process):
            return False
        still_there = ends.running > runs(process)
        first_other, last_other = ends.besides(process)
        if status in EFFECTS:
            if self._reported_timeout(rank) or self._other_causes(rank) or ends.most(status):
                return False
            return still_there or (at_s is not None and first_other is not None and at_s + _FIRST_BY_S < first_other)
        if status == 0:
            later = at_s is not None and last_other is not None and last_other > at_s + _FIRST_BY_S
            missed = still_there or later or self._missed_by_victims(rank, process)
            return missed and rank not in self.finished_cleanly
        if (status < 0 or status >= 128) and ends.most(status):
            return False  # one hand ended them all
        if status > 0 and rank in self._gave_up:
            return False  # its only exception says that it waited for somebody else, or lost somebody
        if status in _KILLED and self._outlived_the_hang(rank, at_s):
            return False  # it was there when the hang was noticed: whoever killed it came later
        if at_s is None or first_other is None:
            return True
        if rank in self._victims and first_other <= at_s:
            return False  # its only exception says that it lost somebody who was gone before it
        # A launcher's last resort is SIGKILL too, but it comes long after the first end.
        return at_s <= first_other + _FIRST_BY_S

    def _outlived_the_hang(self, rank: int, at_s: float | None) -> bool:
        """Whether its own watchdog spoke of the hang, before its end where times are known."""
        spoke = [r.at_ns for r in self._reports.get(rank, ()) if r.kind in ("timeout", "async_error", "status")]
        return bool(spoke) and (at_s is None or all(at_ns is None or at_ns / 1e9 < at_s for at_ns in spoke))

    def _other_causes(self, rank: int) -> bool:
        """Whether somebody else ended in a way that is not an effect."""
        return bool(self._causes - {rank})

    def _missed_by_victims(self, rank: int, process: Process) -> bool:
        """Whether those that ended after it did so with an exception that only says that they lost somebody."""
        if process.ended_at_s is None:
            return False
        later = [r for r in self._last_failed if r != rank and self._ends.failed[r] > process.ended_at_s]
        return any(r in self._victims for r in later) and not any(r in self._errors for r in later)

    @cached_property
    def _causes(self) -> set[int]:
        return {r for r in self._ends.causes if r not in self._gave_up}

    @cached_property
    def _last_failed(self) -> list[int]:
        """Of victims, and of those with an error of their own, the two who failed last."""
        kinds = ([r for r in self._ends.failed if r in known] for known in (self._victims, self._errors))
        return [r for found in kinds for r in nlargest(2, found, key=self._ends.failed.__getitem__)]

    def _after_capture(self, process: Process) -> bool:
        """Whether it ended only after the stall had been noticed and captured."""
        taken, at_s = self.job.captured_at_ns, process.ended_at_s
        return self.job.reason == "stall" and taken is not None and at_s is not None and at_s * 1e9 > taken

    def _vanished(self, rank: int) -> Life | None:
        """No dump, no reaction in its log, and neighbours that lost the connection before anybody timed out."""
        if not self._no_reaction(rank) or rank in self._stacks or not self._losses:
            return None
        return Life(Is.ENDED, How.LOST_BY_PEERS, False, self._losses[:2])

    # ---- frozen, alive -----------------------------------------------------------------------------------------------

    def _frozen(self, rank: int, process: Process) -> Life | None:
        if process.state in ("T", "t"):
            how, text = How.STOPPED, "process is stopped (state T)"
        elif process.state == "D":
            at = f" in {process.wait_channel}" if process.wait_channel else ""
            how, text = How.SLEEPS, f"process is in uninterruptible sleep{at}"
        elif rank in self._holding:
            return self._holds_gil(rank, process)
        else:
            return self._silent(rank, process) if self._no_reaction(rank) and rank not in self._stacks else None
        return Life(Is.FROZEN, how, True, (Finding(f"rank {rank}'s {text}", sources(process)),), process=process)

    def _holds_gil(self, rank: int, process: Process) -> Life:
        """Who runs ahead of its GPU fills the launch queue and waits in a CUDA call with the GIL held: so a held GIL
        marks victims as well as culprits, and what holds it decides."""
        call, found, stack = self._threads.holds_gil_in(rank), [Finding(*self._holding[rank])], self._threads.main(rank)
        if stack is not None:
            native = tuple(f"{frame.name}  {frame.filename}" for frame in stack.native[:2])
            found.append(Finding(f"rank {rank} holds it here", (stack.source,), (*native, *shown(stack.frames, 4))))
        if process.gpu_busy_percent is not None:
            text = f"rank {rank}'s GPU is busy for {process.gpu_busy_percent:g} % of the time"
            found.append(Finding(f"{text}, at {process.gpu_power_w or 0.0:g} W", sources(process)))
        if call:
            return Life(Is.ALIVE, How.IN_CUDA, True, tuple(found), process=process, call=call)
        if call is None and len(self._holding) > 1:
            found.append(Finding(f"{len(self._holding)} ranks hold theirs, as those do that wait for their GPU"))
            return Life(Is.ALIVE, How.GIL_HELD, True, tuple(found), process=process)
        how = How.HOLDS_GIL if call is not None else How.GIL_HELD
        return Life(Is.FROZEN, how, True, tuple(found), process=process)

    def _silent(self, rank: int, process: Process) -> Life | None:
        """A process that is there and reacts to nothing."""
        there = process.exit_status is None and bool(process.alive_at_end) and process.state not in GONE
        alive = there and process.unanswered is not False
        if self._losses and not alive:
            return None
        findings: list[Finding] = []
        if alive:
            findings.append(Finding(f"rank {rank}'s process never ended", sources(process)))
        if rank in self._unreachable:
            text = f"rank {rank} does not answer NCCL's RAS, and no peer lost its connection to it"
            findings.append(Finding(text, (self._unreachable[rank],)))
        if findings:
            return Life(Is.FROZEN, How.ANSWERS_NOTHING, True, tuple(findings), process=process)
        if rank in self._whole_logs and (self.job.facts.communicators or self._reports):
            return Life(Is.FROZEN, How.REACTED_TO_NOTHING, False, process=process)
        return None

    @cached_property
    def _whole_logs(self) -> set[int]:
        """Ranks whose log goes on to the end: its silence says something. An excerpt's does not."""
        facts = self.job.facts
        whole = {rank for scope in facts.logs if scope.to_end for rank in scope.ranks}
        return whole if facts.logs else {rank for rank, _ in facts.log_ranks}

    def _alive(self, rank: int) -> Life:
        if not self._no_reaction(rank):
            return Life(Is.ALIVE, How.ANSWERED)
        if rank in self._stacks:
            text = f"rank {rank}'s process answered with its stack"
            return Life(Is.ALIVE, How.ANSWERED, True, (Finding(text, (self._stacks[rank],)),))
        return Life(Is.ALIVE if self._process(rank).alive_at_end else Is.NOT_KNOWN, How.NOTHING_SAID, False)

    def _no_reaction(self, rank: int) -> bool:
        """Neither a dump nor a watchdog line: nothing shows that the process did anything once the job hung."""
        has_dump = any(d.role == "dump" for d in self.job.dumps.get(rank, ()))
        return not has_dump and rank not in self._reports and self._process(rank).python_answers is not True

    def _reported_timeout(self, rank: int) -> bool:
        return any(r.kind in ("timeout", "async_error") for r in self._reports.get(rank, ()))


def _connection_losses(job: Job) -> tuple[Finding, ...]:
    """Reports of a lost peer that came before the first timeout and before any process was known to end as a victim."""
    timeouts = [r.at_ns for r in job.facts.watchdog if r.kind == "timeout" and r.at_ns is not None]
    first = min(timeouts, default=None)
    found: list[tuple[int, Finding]] = []
    for report in job.facts.watchdog:
        early = first is None or report.at_ns is None or report.at_ns < first
        error = report.error or ""
        if early and report.kind == "async_error" and any(part in error.lower() for part in _REMOTE):
            found.append((report.at_ns or 0, Finding(f"rank {report.rank}: {short(error)}", (report.source,))))
    for event in job.facts.transport:
        closed = event.kind in ("connection_closed", "connection_error")
        if closed and first is not None and event.at_ns is not None and event.at_ns < first:
            found.append((event.at_ns, Finding(f"{speaker(event)}: {short(event.text)}", (event.source,))))
    return tuple(finding for _, finding in sorted(found, key=lambda item: item[0]))


def _quote(rank: int, error: PythonError) -> Finding:
    return Finding(f"rank {rank}'s log ends with {raised(error)}", (error.source,), ended_in(error.frames))
