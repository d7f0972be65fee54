"""Process liveness: a rank's process ended, is frozen, lives, or nobody can say. Each with what shows it.

An end is a cause only where the process ended of its own (`ended_first.py`), or where others wait for it.
"""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

from hangscope.diagnosis.align.column_tools import grouped
from hangscope.diagnosis.evidence.answer import Answer, no, not_known, yes
from hangscope.diagnosis.evidence.code_lines import ended_in, shown
from hangscope.diagnosis.evidence.ended_first import OwnEnds
from hangscope.diagnosis.evidence.process_ends import GONE, ending, raised, sources, speaker
from hangscope.diagnosis.evidence.ras_ranks import lost_to_ras
from hangscope.diagnosis.evidence.training_thread import Stacks
from hangscope.diagnosis.verdict import Finding
from hangscope.model import OUTLIVED_SIGTERM, FailureKind, Job, KernelMessage, Process, PythonError
from hangscope.text import short

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
    OUTLIVED_SIGTERM = auto()
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
        self._own_ends = OwnEnds(job)
        self._threads = Stacks(job)
        self._answered = self._threads.answered
        killed = (message for message in job.facts.kernel if message.kind == "oom")
        self._oom = grouped((message.pid, message) for message in killed if message.pid is not None)
        self._over_limit = {
            f.rank: f for f in reversed(job.facts.failures) if f.kind == FailureKind.HOST_OOM and not f.effect
        }
        self._left = dict(reversed(job.facts.clean_exits))
        self._holding = _silent_python(job)
        self._losses = _connection_losses(job)
        reacted = {rank for rank in job.ranks if not self._no_reaction(rank)}
        self._unreachable, self._dead = lost_to_ras(job, reacted | set(self._answered))
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
        return self._own_ends.errors.get(rank)

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

    @property
    def finished_cleanly(self) -> frozenset[int]:
        """Ranks that exited with status 0, where those are most of the job: their work was done."""
        return self._own_ends.finished_cleanly

    # ---- ended -------------------------------------------------------------------------------------------------------

    def _ended(self, rank: int, process: Process) -> Life | None:
        error = self.error(rank)
        memory = self._out_of_memory(rank, process)
        itself = self._own_ends.by_itself(rank, process)
        findings = tuple(self._signs_of_an_end(rank, process, memory, itself=itself))
        if not findings:
            return None
        if memory is not None:
            return Life(Is.ENDED, How.OUT_OF_MEMORY, True, findings, error, process)
        if error is not None:
            return Life(Is.ENDED, How.RAISED, True, findings, error, process)
        how = How.STATUS if itself and process.exit_status is not None else How.GONE
        status = 0 if process.exit_status is None and rank in self._left else process.exit_status
        clean = status == 0 and not self._own_ends.missed_by_victims(rank, process)
        return Life(Is.ENDED, how, True, findings, error, process, clean)

    def _out_of_memory(self, rank: int, process: Process) -> Finding | None:
        """By the kernel's log, or for one that was killed by whoever watched its memory limit."""
        killed = self._killed(process)
        if killed is not None:
            text = f"the kernel's out-of-memory killer ended pid {killed.pid}"
            return Finding(text, (killed.source,), (killed.text,))
        said = self._over_limit.get(rank) if process.exit_status == -signal.SIGKILL else None
        return Finding(f"rank {rank}: {short(said.text)}", (said.source,)) if said is not None else None

    def _killed(self, process: Process) -> KernelMessage | None:
        """Containers number their processes alike: the message must be of its node, as far as both say theirs."""
        said = self._oom.get(process.pid, ()) if process.pid is not None else ()
        return next((each for each in said if None in (each.node, process.node) or each.node == process.node), None)

    def _signs_of_an_end(
        self, rank: int, process: Process, memory: Finding | None, *, itself: bool
    ) -> Iterator[Finding]:
        if memory is not None:
            yield memory
        if itself and process.exit_status is not None:
            yield Finding(f"rank {rank} {ending(process)}", sources(process))
        error = self.error(rank)
        like_others = self._own_ends.raised_like_others(rank, process)
        if error is not None and (itself or like_others or self._no_reaction(rank)):
            text = f"rank {rank}'s log ends with {raised(error)}"
            yield Finding(text, (error.source,), ended_in(error.frames))
        if rank in self._left and not self._own_ends.reported_timeout(rank):
            yield Finding(f"rank {rank}'s Python ended without destroy_process_group()", (self._left[rank],))
        if rank in self._dead:
            yield Finding(f"NCCL's RAS considers rank {rank} dead", (self._dead[rank],))

    def _vanished(self, rank: int) -> Life | None:
        """No dump, no reaction in its log, and neighbours that lost the connection before anybody timed out."""
        if not self._no_reaction(rank) or rank in self._answered or not self._losses:
            return None
        return Life(Is.ENDED, How.LOST_BY_PEERS, False, self._losses[:2])

    # ---- frozen, alive -----------------------------------------------------------------------------------------------

    def _frozen(self, rank: int, process: Process) -> Life | None:
        if process.state in ("T", "t"):
            text = f"rank {rank}'s process is stopped (state T)"
            return Life(Is.FROZEN, How.STOPPED, True, (Finding(text, sources(process)),), process=process)
        if process.state == "D":
            at = f" in {process.wait_channel}" if process.wait_channel else ""
            text = f"rank {rank}'s process is in uninterruptible sleep{at}"
            return Life(Is.FROZEN, How.SLEEPS, True, (Finding(text, sources(process)),), process=process)
        if rank in self._holding:
            return self._holds_gil(rank, process)
        if process.state == OUTLIVED_SIGTERM:
            text = f"rank {rank}'s process did not exit when its launcher sent SIGTERM"
            return Life(Is.FROZEN, How.OUTLIVED_SIGTERM, True, (Finding(text, sources(process)),), process=process)
        return self._silent(rank, process) if self._no_reaction(rank) and rank not in self._answered else None

    def _holds_gil(self, rank: int, process: Process) -> Life:
        """Who runs ahead of its GPU fills the launch queue and waits in a CUDA call with the GIL held: so a held GIL
        marks victims as well as culprits, and what holds it decides."""
        call = self._threads.holds_gil_in(rank)
        found = [self._holding[rank]]
        stack = self._threads.main(rank)
        if stack is not None:
            native = tuple(f"{frame.name}  {frame.filename}" for frame in stack.native[:2])
            found.append(Finding(f"rank {rank} holds it here", (stack.source,), (*native, *shown(stack.frames, 4))))
        if process.gpu_busy_percent is not None:
            text = f"rank {rank}'s GPU is busy for {process.gpu_busy_percent:g} % of the time"
            found.append(Finding(f"{text}, at {process.gpu_power_w or 0.0:g} W", sources(process)))
        if call:
            return Life(Is.ALIVE, How.IN_CUDA, True, tuple(found), process=process, call=call)
        if call is None and len(self._holding) > 1:
            found.append(Finding(f"{len(self._holding)} ranks hold theirs, as ranks waiting for their GPU do"))
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
        if rank in self._whole_logs and (self.job.facts.communicators or self._own_ends.reports):
            return Life(Is.FROZEN, How.REACTED_TO_NOTHING, False, process=process)
        return None

    @cached_property
    def _whole_logs(self) -> set[int]:
        """Ranks whose log is whole: its silence says something. An excerpt's does not."""
        facts = self.job.facts
        whole = {rank for scope in facts.logs if scope.whole for rank in scope.ranks}
        return whole if facts.logs else {rank for rank, _ in facts.log_ranks}

    def _alive(self, rank: int) -> Life:
        if not self._no_reaction(rank):
            return Life(Is.ALIVE, How.ANSWERED)
        if rank in self._answered:
            text = f"rank {rank}'s process responded with its stack"
            return Life(Is.ALIVE, How.ANSWERED, True, (Finding(text, (self._answered[rank],)),))
        return Life(Is.ALIVE if self._process(rank).alive_at_end else Is.NOT_KNOWN, How.NOTHING_SAID, False)

    def _no_reaction(self, rank: int) -> bool:
        """Neither a dump nor a watchdog line: nothing shows that the process did anything once the job hung."""
        has_dump = any(dump.role == "dump" for dump in self.job.dumps.get(rank, ()))
        reported = rank in self._own_ends.reports
        return not has_dump and not reported and self._process(rank).python_answers is not True


def _silent_python(job: Job) -> dict[int, Finding]:
    """Ranks none of whose Python threads answers, with how that was seen: something holds the GIL."""
    found: dict[int, Finding] = {}
    for report in job.facts.watchdog:
        if report.kind == "gil":
            text = f"rank {report.rank}'s monitor thread could not take the GIL"
            found.setdefault(report.rank, Finding(text, (report.source,)))
    for rank, process in job.processes.items():
        if process.python_answers is False and process.state not in GONE:
            text = f"rank {rank}'s process is alive, but no Python thread responds: something holds the GIL"
            found[rank] = Finding(text, sources(process))
    return found


def _connection_losses(job: Job) -> tuple[Finding, ...]:
    """Reports of a lost peer that came before the first timeout and before any process was known to end as a victim."""
    timeouts = [r.at_ns for r in job.facts.watchdog if r.kind == "timeout" and r.at_ns is not None]
    first = min(timeouts, default=None)
    found = [*_losses_reported(job, first), *(_losses_warned_of(job, first) if first is not None else ())]
    return tuple(finding for _, finding in sorted(found, key=lambda item: item[0]))


def _losses_reported(job: Job, first_ns: int | None) -> Iterator[tuple[int, Finding]]:
    """(when, what) a watchdog said of a peer that went away."""
    for report in job.facts.watchdog:
        error = report.error or ""
        early = first_ns is None or report.at_ns is None or report.at_ns < first_ns
        if early and report.kind == "async_error" and any(part in error.lower() for part in _REMOTE):
            yield report.at_ns or 0, Finding(f"rank {report.rank}: {short(error)}", (report.source,))


def _losses_warned_of(job: Job, first_ns: int) -> Iterator[tuple[int, Finding]]:
    """(when, what) NCCL warned of."""
    for event in job.facts.transport:
        closed = event.kind in ("connection_closed", "connection_error")
        if closed and event.at_ns is not None and event.at_ns < first_ns:
            yield event.at_ns, Finding(f"{speaker(event)}: {short(event.text)}", (event.source,))
